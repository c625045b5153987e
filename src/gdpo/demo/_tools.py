"""The demo's tool-calling problems: a small catalogue of tools, and rows drawn from it by a seed.

A row has the shape of ToolRL's training file, so the `tool_calling` task reads it like any other.
Only the prompt is shorter than ToolRL's: the signatures of the tools on offer, then the request.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Value: TypeAlias = str | int | float | bool
"""What a parameter of a call can hold."""

OFFERED = 2
"""Tools on offer per request, the needed ones among them."""

PARALLEL_SHARE = 0.3
"""Probability that a request needs two calls."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A typed parameter of a tool."""

    name: str
    kind: str
    """A JSON type: `string`, `integer`, `number` or `boolean`."""
    values: Mapping[str, Value]
    """What a request says, and what the call must then hold."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, and how people ask for it."""

    name: str
    request: str
    """What a user writes, with the parameters' names in braces."""
    parameters: tuple[Parameter, ...]

    @property
    def signature(self) -> str:
        """The tool as the prompt shows it: `timer(minutes: integer)`."""
        typed = ", ".join(f"{p.name}: {p.kind}" for p in self.parameters)
        return f"{self.name}({typed})"


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a tool: for each of its parameters, in order, the words of the request."""

    tool: Tool
    words: tuple[str, ...]

    @property
    def request(self) -> str:
        """The part of the user's message that asks for this call."""
        names = (p.name for p in self.tool.parameters)
        return self.tool.request.format(**dict(zip(names, self.words, strict=True)))

    @property
    def arguments(self) -> dict[str, Value]:
        """The right value of each parameter."""
        return {p.name: p.values[w] for p, w in zip(self.tool.parameters, self.words, strict=True)}


@dataclass(frozen=True, slots=True)
class Problem:
    """A request, the tools on offer, and the calls that answer it."""

    offered: tuple[Tool, ...]
    calls: tuple[Call, ...]

    @property
    def prompt(self) -> list[dict[str, str]]:
        """Chat messages: the tools' signatures, then the request."""
        return [
            {"role": "system", "content": "\n".join(tool.signature for tool in self.offered)},
            {"role": "user", "content": " and ".join(call.request for call in self.calls)},
        ]

    @property
    def thought(self) -> str:
        """What the thinking block of the gold answer says."""
        return "use " + " and ".join(call.tool.name for call in self.calls)

    @property
    def gold(self) -> str:
        """The answer that gets the maximum of every reward."""
        lines = [call_line(call.tool.name, call.arguments) for call in self.calls]
        return f"{thinking(self.thought)}\n{call_block(lines)}"


def call_line(name: str, arguments: Mapping[str, Value]) -> str:
    """One tool call as one line of JSON."""
    return json.dumps({"name": name, "parameters": arguments})


def call_block(lines: Sequence[str]) -> str:
    """The calls of an answer, one a line, between their tags."""
    block = "\n".join(lines)
    return f"<tool_call>\n{block}\n</tool_call>"


def thinking(thought: str) -> str:
    """The thinking of an answer, between its tags."""
    return f"<think> {thought} </think>"


def draw_problem(rng: np.random.Generator) -> Problem:
    """Draw the tools on offer, which of them are needed, and with what values."""
    picked = rng.permutation(len(CATALOGUE))[:OFFERED]
    needed = picked[: 2 if rng.random() < PARALLEL_SHARE else 1]
    calls = tuple(draw_call(CATALOGUE[i], rng) for i in needed)
    return Problem(tuple(CATALOGUE[i] for i in sorted(picked)), calls)


def draw_call(tool: Tool, rng: np.random.Generator) -> Call:
    """Draw a value for each parameter of a tool."""
    return Call(tool, tuple(str(rng.choice(list(p.values))) for p in tool.parameters))


def tool_rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Rows of the demo's dataset, in the shape of ToolRL's training file.

    Args:
        count: Number of rows.
        seed: The same seed gives the same rows; a smaller count gives the first of them.
    """
    rng = np.random.default_rng(seed)
    return [_row(draw_problem(rng), index) for index in range(count)]


def _row(problem: Problem, index: int) -> dict[str, Any]:
    return {
        "data_source": "gdpo-demo",
        "prompt": problem.prompt,
        "ability": "tool calling",
        "reward_model": {"style": "rule", "ground_truth": problem.gold},
        "extra_info": {"index": index},
    }


def _same(*words: str) -> dict[str, Value]:
    return {word: word for word in words}


_CITY = _same("Oslo", "Paris", "Rome", "Lima", "Tokyo", "Cairo", "Delhi", "Quito")
_ARTIST = _same("Bach", "Abba", "Queen", "Adele", "Sting", "Bowie")
_ROOM = _same("kitchen", "hall", "bath", "attic", "garage")
_UNIT = _same("dollar", "yen", "peso", "rupee", "pound")
_DISH = _same("pizza", "soup", "salad", "pasta", "curry")
_COUNT: dict[str, Value] = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}
_AMOUNT: dict[str, Value] = {"1.5": 1.5, "2.5": 2.5, "7.5": 7.5, "9.5": 9.5, "20.5": 20.5}
_LEVEL: dict[str, Value] = {"a half": 0.5, "a quarter": 0.25, "full": 1.0, "a third": 0.33}
_ORDER: dict[str, Value] = {"shuffled": True, "in order": False}
_SWITCH: dict[str, Value] = {"on": True, "off": False}

CATALOGUE: tuple[Tool, ...] = (
    Tool(
        "weather",
        "weather in {city} for {days} days",
        (Parameter("city", "string", _CITY), Parameter("days", "integer", _COUNT)),
    ),
    Tool(
        "flight",
        "fly from {start} to {goal}",
        (Parameter("start", "string", _CITY), Parameter("goal", "string", _CITY)),
    ),
    Tool(
        "play",
        "play {artist} {shuffle}",
        (Parameter("artist", "string", _ARTIST), Parameter("shuffle", "boolean", _ORDER)),
    ),
    Tool(
        "lights",
        "turn the {room} light {on}",
        (Parameter("room", "string", _ROOM), Parameter("on", "boolean", _SWITCH)),
    ),
    Tool(
        "convert",
        "convert {amount} euro to {unit}",
        (Parameter("amount", "number", _AMOUNT), Parameter("unit", "string", _UNIT)),
    ),
    Tool("timer", "set a timer for {minutes} minutes", (Parameter("minutes", "integer", _COUNT),)),
    Tool(
        "order",
        "order {count} {dish}",
        (Parameter("count", "integer", _COUNT), Parameter("dish", "string", _DISH)),
    ),
    Tool("volume", "set volume to {level}", (Parameter("level", "number", _LEVEL),)),
)
"""What can be asked for."""
