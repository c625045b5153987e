"""Stories like GSM8K's with two steps, and careless responses for the warm start of a policy.

A correct response is `<think>4+3=7. 7-2=5.</think>` and `<answer>5</answer>`. Most warm-start
responses lack the format, about half are wrong, and many are too long.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from benchmarks.tool_policy._texts import Example

from gdpo.lab.tasks import TASKS, Problem

NAMES = ("Ann", "Bob", "Eve", "Max")
THINGS = ("apples", "coins", "books", "eggs")
_MORE = ("buys", "finds", "gets")
_LESS = ("loses", "sells", "eats")

TOKEN_LIMIT = 22
"""Token limit: a concise correct response has at most 19 tokens, a wordy one has more than 22."""


@dataclass(frozen=True, slots=True)
class Story:
    """A question and its solution."""

    name: str
    thing: str
    numbers: tuple[int, int, int]
    verbs: tuple[str, str]

    @property
    def question(self) -> str:
        """The question."""
        a, b, c = self.numbers
        first, second = self.verbs
        return f"{self.name} has {a} {self.thing}, {first} {b}, {second} {c}. How many?"

    @property
    def answer(self) -> int:
        """The correct answer."""
        a, b, c = self.numbers
        return _apply(_apply(a, self.verbs[0], b), self.verbs[1], c)

    def worked(self, first: int, second: int) -> str:
        """Return the two steps with these results."""
        a, b, c = self.numbers
        return f"{a}{_sign(self.verbs[0])}{b}={first}. {first}{_sign(self.verbs[1])}{c}={second}."


@dataclass(frozen=True, slots=True)
class Careless:
    """Probabilities with which the warm-start responses are correct."""

    well_formed: float = 0.05
    """A response has thinking and answer between their tags. The others lack the closing tag of the
    thinking, or the tags of the answer."""
    right_step: float = 0.75
    """The result of a step is correct. Otherwise it is off by 1 or 2."""
    concise: float = 0.3
    """A response has only the steps. Otherwise it repeats the question first."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Source files that define the texts."""
        return (__file__,)

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """Return `count` stories with careless responses."""
        stories = [draw_story(rng) for _ in range(count)]
        return [Example(_prompt(story.question), self._answer(story, rng)) for story in stories]

    def _answer(self, story: Story, rng: np.random.Generator) -> str:
        a, b, c = story.numbers
        first = self._result(_apply(a, story.verbs[0], b), rng)
        second = self._result(_apply(first, story.verbs[1], c), rng)
        steps = story.worked(first, second)
        if rng.random() > self.concise:
            question = story.question.removesuffix(" How many?")
            steps = f"{question} {steps}"
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
    """Return a random story whose results are 0 or more."""
    verbs = tuple(str(rng.choice(_MORE if rng.random() < 0.5 else _LESS)) for _ in range(2))
    while True:
        a, b, c = (int(n) for n in rng.integers(1, 10, size=3))
        first = _apply(a, verbs[0], b)
        if first >= 0 and _apply(first, verbs[1], c) >= 0:
            name, thing = str(rng.choice(NAMES)), str(rng.choice(THINGS))
            return Story(name, thing, (a, b, c), (verbs[0], verbs[1]))


def story_rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return rows in the format of GSM8K."""
    rng = np.random.default_rng(seed)
    stories = [draw_story(rng) for _ in range(count)]
    return [{"question": s.question, "answer": f"#### {s.answer}"} for s in stories]


def _read_row(row: Any) -> Problem:
    """Return GSM8K's problem without the system message, which is too long for the policy."""
    return replace(TASKS["gsm8k"].read_row(row), prompt=_prompt(row["question"]))


STORIES = replace(TASKS["gsm8k"], name="stories", read_row=_read_row)
"""The task of the stories, with GSM8K's rewards."""


def _prompt(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _apply(number: int, verb: str, by: int) -> int:
    return number + by if verb in _MORE else number - by


def _sign(verb: str) -> str:
    return "+" if verb in _MORE else "-"
