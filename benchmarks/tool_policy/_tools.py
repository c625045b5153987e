"""Draws tool-calling problems from a small catalogue of tools.

Rows have the columns of ToolRL's training file, so that the `tool_calling` task can read them. The
prompt is shorter than ToolRL's prompt: it contains the signatures of the offered tools, then the
request.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Value: TypeAlias = str | int | float | bool
"""Value of a parameter."""

OFFERED = 2
"""Number of tools offered per request, including the tools that are needed."""

PARALLEL_SHARE = 0.3
"""Probability that a request needs two calls."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describes a typed parameter of a tool."""

    name: str
    kind: str
    """A JSON type: `string`, `integer`, `number` or `boolean`."""
    values: Mapping[str, Value]
    """Possible words in the request, each with the correct value in the call."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Describes a tool and the text of a request for this tool."""

    name: str
    request: str
    """Text of the request, with parameter names in braces."""
    parameters: tuple[Parameter, ...]

    @property
    def signature(self) -> str:
        """Signature shown in the prompt, such as `timer(minutes: integer)`."""
        typed = ", ".join(f"{p.name}: {p.kind}" for p in self.parameters)
        return f"{self.name}({typed})"


@dataclass(frozen=True, slots=True)
class Call:
    """Stores one requested call: the tool, and the word in the request for each parameter."""

    tool: Tool
    words: tuple[str, ...]

    @property
    def request(self) -> str:
        """Part of the user's message that asks for this call."""
        names = (p.name for p in self.tool.parameters)
        return self.tool.request.format(**dict(zip(names, self.words, strict=True)))

    @property
    def arguments(self) -> dict[str, Value]:
        """Correct value of each parameter."""
        return {p.name: p.values[w] for p, w in zip(self.tool.parameters, self.words, strict=True)}


@dataclass(frozen=True, slots=True)
class Problem:
    """Stores a request: the offered tools and the correct calls."""

    offered: tuple[Tool, ...]
    calls: tuple[Call, ...]

    @property
    def prompt(self) -> list[dict[str, str]]:
        """Chat messages: the signatures of the tools, then the request."""
        return [
            {"role": "system", "content": "\n".join(tool.signature for tool in self.offered)},
            {"role": "user", "content": " and ".join(call.request for call in self.calls)},
        ]

    @property
    def thought(self) -> str:
        """Text of the thinking block in the reference answer."""
        return "use " + " and ".join(call.tool.name for call in self.calls)

    @property
    def gold(self) -> str:
        """Reference answer, which gets the maximum of every reward."""
        lines = [call_line(call.tool.name, call.arguments) for call in self.calls]
        return f"{thinking(self.thought)}\n{call_block(lines)}"


def call_line(name: str, arguments: Mapping[str, Value]) -> str:
    """Return one tool call as one line of JSON."""
    return json.dumps({"name": name, "parameters": arguments})


def call_block(lines: Sequence[str]) -> str:
    """Return the calls of a response, one per line, between tags."""
    block = "\n".join(lines)
    return f"<tool_call>\n{block}\n</tool_call>"


def thinking(thought: str) -> str:
    """Return the thinking block of a response, between tags."""
    return f"<think> {thought} </think>"


def draw_problem(rng: np.random.Generator) -> Problem:
    """Draw the offered tools, the needed tools and the values of their parameters."""
    picked = rng.permutation(len(CATALOGUE))[:OFFERED]
    needed = picked[: 2 if rng.random() < PARALLEL_SHARE else 1]
    calls = tuple(draw_call(CATALOGUE[i], rng) for i in needed)
    return Problem(tuple(CATALOGUE[i] for i in sorted(picked)), calls)


def draw_call(tool: Tool, rng: np.random.Generator) -> Call:
    """Draw a value for each parameter of a tool."""
    return Call(tool, tuple(str(rng.choice(list(p.values))) for p in tool.parameters))


def tool_rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return rows, with the columns of ToolRL's training file.

    Args:
        count: Number of rows.
        seed: Random seed. With the same seed, a larger `count` only appends rows.
    """
    rng = np.random.default_rng(seed)
    return [_row(draw_problem(rng), index) for index in range(count)]


def _row(problem: Problem, index: int) -> dict[str, Any]:
    return {
        "data_source": "tool-policy",
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
"""All tools."""
