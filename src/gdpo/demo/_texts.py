"""What the demo's policy is warm-started on: careless answers.

Nearly all of them lack the required format, in ways in which models lack it, and their calls hold
mistakes. A policy that learned from them writes the format rarely and right calls sometimes: the
state in which training on several rewards begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gdpo.demo import _tools
from gdpo.demo._tools import (
    CATALOGUE,
    Call,
    Problem,
    call_block,
    call_line,
    draw_problem,
    thinking,
)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, and an answer that a policy learns from."""

    prompt: list[dict[str, str]]
    """Chat messages."""
    answer: str


class Texts(Protocol):
    """What a policy is warm-started on: a frozen dataclass, whose fields are part of its key."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Files whose code decides the texts."""
        ...

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """So many examples."""
        ...


@dataclass(frozen=True, slots=True)
class Carelessness:
    """How often the texts are right. All are probabilities."""

    well_formed: float = 0.04
    """Of a text: thinking, then the calls."""
    bare: float = 0.7
    """Of a text that is not well-formed: the calls without any thinking. The others never close
    their thinking."""
    right_value: float = 0.7
    """Of a parameter: its value is copied from the request, not drawn anew."""
    right_name: float = 0.75
    """Of a call: it names the tool that was asked for, not any tool."""
    whole_json: float = 0.75
    """Of a call: its last brace is there."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Files whose code decides the texts."""
        return (__file__, _tools.__file__)

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """So many requests, and careless answers to them."""
        problems = [draw_problem(rng) for _ in range(count)]
        answers = [careless_answer(problem, rng, self) for problem in problems]
        return [Example(p.prompt, answer) for p, answer in zip(problems, answers, strict=True)]


def careless_answer(problem: Problem, rng: np.random.Generator, how: Carelessness) -> str:
    """An answer to the problem, with mistakes."""
    lines = [_careless_line(call, rng, how) for call in problem.calls]
    return _arranged(problem.thought, lines, rng, how)


def _careless_line(call: Call, rng: np.random.Generator, how: Carelessness) -> str:
    arguments = dict(call.arguments)
    for parameter in call.tool.parameters:
        if rng.random() > how.right_value:
            arguments[parameter.name] = parameter.values[rng.choice(list(parameter.values))]
    right_name = rng.random() < how.right_name
    name = call.tool.name if right_name else str(rng.choice([tool.name for tool in CATALOGUE]))
    line = call_line(name, arguments)
    return line if rng.random() < how.whole_json else line[:-1]


def _arranged(
    thought: str, lines: Sequence[str], rng: np.random.Generator, how: Carelessness
) -> str:
    calls = call_block(lines)
    if rng.random() < how.well_formed:
        return f"{thinking(thought)}\n{calls}"
    if rng.random() < how.bare:
        return calls
    return f"<think> {thought}\n{calls}"
