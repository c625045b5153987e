"""Draws the careless responses that warm-start the policy.

Nearly all responses break the required format in ways that are common in real models, and many
calls are wrong. A policy trained on these responses rarely uses the format and sometimes writes
correct calls, which is a typical starting point for training with several rewards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from benchmarks.tool_policy import _tools
from benchmarks.tool_policy._tools import (
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
    """Stores a prompt and the response that the policy learns."""

    prompt: list[dict[str, str]]
    """Chat messages."""
    answer: str


class Texts(Protocol):
    """Draws warm-start texts.

    An implementation is a frozen dataclass, because its fields are part of the policy's cache key.
    """

    @property
    def sources(self) -> tuple[str, ...]:
        """Source files that define the texts."""
        ...

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """Return `count` examples."""
        ...


@dataclass(frozen=True, slots=True)
class Carelessness:
    """Draws tool-calling responses with random mistakes."""

    well_formed: float = 0.04
    """Probability that a text has the required format: thinking, then the calls."""
    bare: float = 0.7
    """Probability that a text without the format has no thinking. All other texts without the
    format have an unclosed thinking block."""
    right_value: float = 0.7
    """Probability that a parameter has the value from the request instead of a random value."""
    right_name: float = 0.75
    """Probability that a call uses the requested tool instead of a random tool."""
    whole_json: float = 0.75
    """Probability that a call keeps its last brace."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Source files that define the texts."""
        return (__file__, _tools.__file__)

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """Return `count` requests with careless responses."""
        problems = [draw_problem(rng) for _ in range(count)]
        answers = [careless_answer(problem, rng, self) for problem in problems]
        return [Example(p.prompt, answer) for p, answer in zip(problems, answers, strict=True)]


def careless_answer(problem: Problem, rng: np.random.Generator, how: Carelessness) -> str:
    """Return a response to the problem, with random mistakes."""
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
