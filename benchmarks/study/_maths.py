"""A tiny world like GSM8K: stories of two steps, and a policy that answers them carelessly.

A right answer is `<think>4+3=7. 7-2=5.</think>` and `<answer>5</answer>`. The policy is
warm-started on answers that mostly lack the format, are half wrong, and often say too much.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdpo.demo._texts import Example
from gdpo.tasks import TASKS, Problem

NAMES = ("Ann", "Bob", "Eve", "Max")
THINGS = ("apples", "coins", "books", "eggs")
_MORE = ("buys", "finds", "gets")
_LESS = ("loses", "sells", "eats")

TOKEN_LIMIT = 22
"""Tokens within which a concise right answer fits (19 at most), and a wordy one does not."""


@dataclass(frozen=True, slots=True)
class Story:
    """A question, and how it is worked out."""

    name: str
    thing: str
    numbers: tuple[int, int, int]
    verbs: tuple[str, str]

    @property
    def question(self) -> str:
        """What is asked."""
        a, b, c = self.numbers
        first, second = self.verbs
        return f"{self.name} has {a} {self.thing}, {first} {b}, {second} {c}. How many?"

    @property
    def answer(self) -> int:
        """The right one."""
        a, b, c = self.numbers
        return _apply(_apply(a, self.verbs[0], b), self.verbs[1], c)

    def worked(self, first: int, second: int) -> str:
        """Two steps with these results."""
        a, b, c = self.numbers
        return f"{a}{_sign(self.verbs[0])}{b}={first}. {first}{_sign(self.verbs[1])}{c}={second}."


@dataclass(frozen=True, slots=True)
class Careless:
    """How often the texts are as they should be. All are probabilities."""

    well_formed: float = 0.05
    """Of a text: thinking and answer between their tags. The others lack the closing tag of the
    thinking, or the tags of the answer."""
    right_step: float = 0.75
    """Of a step: its result is right, not off by a little."""
    concise: float = 0.3
    """Of a text: the steps alone, without the question told again."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Files whose code decides the texts."""
        return (__file__,)

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """So many stories, and careless answers to them."""
        stories = [draw_story(rng) for _ in range(count)]
        return [Example(_prompt(story.question), self._answer(story, rng)) for story in stories]

    def _answer(self, story: Story, rng: np.random.Generator) -> str:
        a, b, c = story.numbers
        first = self._result(_apply(a, story.verbs[0], b), rng)
        second = self._result(_apply(first, story.verbs[1], c), rng)
        steps = story.worked(first, second)
        if rng.random() > self.concise:
            told = story.question.removesuffix(" How many?")
            steps = f"{told} {steps}"
        if rng.random() < self.well_formed:
            return f"<think>{steps}</think>\n<answer>{second}</answer>"
        if rng.random() < 0.5:
            return f"<think>{steps}\n<answer>{second}</answer>"
        return f"<think>{steps}</think>\n{second}"

    def _result(self, right: int, rng: np.random.Generator) -> int:
        if rng.random() < self.right_step:
            return right
        return max(0, right + int(rng.choice([-2, -1, 1, 2])))


def draw_story(rng: np.random.Generator) -> Story:
    """A story whose results are 0 or more."""
    verbs = tuple(str(rng.choice(_MORE if rng.random() < 0.5 else _LESS)) for _ in range(2))
    while True:
        a, b, c = (int(n) for n in rng.integers(1, 10, size=3))
        first = _apply(a, verbs[0], b)
        if first >= 0 and _apply(first, verbs[1], c) >= 0:
            name, thing = str(rng.choice(NAMES)), str(rng.choice(THINGS))
            return Story(name, thing, (a, b, c), (verbs[0], verbs[1]))


def story_rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Rows in the shape of GSM8K."""
    rng = np.random.default_rng(seed)
    stories = [draw_story(rng) for _ in range(count)]
    return [{"question": s.question, "answer": f"#### {s.answer}"} for s in stories]


def _read_row(row: Any) -> Problem:
    """GSM8K's reference, and the question alone: its system message is too long for the policy."""
    return replace(TASKS["gsm8k"].read_row(row), prompt=_prompt(row["question"]))


STORIES = replace(TASKS["gsm8k"], name="stories", read_row=_read_row)
"""The task: GSM8K's rewards on stories."""


def _prompt(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _apply(number: int, verb: str, by: int) -> int:
    return number + by if verb in _MORE else number - by


def _sign(verb: str) -> str:
    return "+" if verb in _MORE else "-"
