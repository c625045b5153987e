"""Defines a task, which turns a dataset row into a prompt, a reference and rewards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gdpo.rewards import Reference, Reward

Row: TypeAlias = Mapping[str, Any]
"""One row of a dataset, as read from the file."""

Message: TypeAlias = dict[str, str]
"""A chat message: `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Stores what training needs from one row."""

    prompt: list[Message]
    """Chat messages. The policy's chat template turns them into text."""
    reference: Reference
    """What the rewards score a completion against. Every problem of a task has the same keys."""
    asked: tuple[str, ...] = ()
    """The user's text, one entry per turn, without text that the task adds. Near-duplicate rows are
    found by it. Empty: the user messages of the prompt."""
    answer: str | None = None
    """The expected answer as text. Two rows with the same question but different answers are not
    duplicates. None: answers are not compared."""


@dataclass(frozen=True, slots=True)
class Task:
    """Defines how to read the rows of a kind of problem, and the rewards for its completions."""

    name: str
    columns: tuple[tuple[str, ...], ...]
    """Accepted sets of columns. A row must have all columns of one set, and may have others."""
    read_row: Callable[[Row], Problem]
    """Function that reads one row. It raises a DataError that names the column if a value cannot be
    used."""
    rewards: tuple[Reward, ...]
    """Rewards, in the order of the reward array."""
    gold_completion: Callable[[Reference], str | None]
    """Function that returns a completion with the reference answer. It must get the maximum of
    every reward that scores text and applies. None: the row has no reference answer."""
    bad_completion: str
    """A completion that gets less than the maximum of at least one reward, for every reference."""
    judges_every_row: tuple[str, ...] = ()
    """Names of rewards that must apply to every row. If one does not apply to a row, no response to
    the row can be correct: an evaluation names the row and counts it as wrong. Other rewards may
    skip rows, such as a reward for tool calls on a row that needs no call."""

    def reward(self, name: str) -> Reward | None:
        """Return the reward of this name; None if the task has no such reward."""
        return next((reward for reward in self.rewards if reward.name == name), None)
