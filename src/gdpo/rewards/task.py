"""Defines a task, which turns a dataset row into a prompt, a reference and rewards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gdpo.errors import DataError
from gdpo.rewards.reward import Reference, Reward

Row: TypeAlias = Mapping[str, Any]
"""One row of a dataset, as read from the file."""

Message: TypeAlias = dict[str, str]
"""A chat message: `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Stores the data of one row that training needs."""

    prompt: list[Message]
    """Chat messages. The policy's chat template turns the messages into text."""
    reference: Reference
    """Data that the rewards score a completion against. Every problem of a task has the same
    keys."""
    asked: tuple[str, ...] = ()
    """The user's text, with one entry per turn and without text that the task adds. Used to find
    near-duplicate rows. Empty: use the user messages of the prompt."""
    answer: str | None = None
    """The expected answer as text. Two rows with the same question but different answers are not
    near-duplicates. None: answers are not compared."""
    weights: Any = None
    """The row's cell of the column with weights per prompt, which `load_problems` sets: a mapping
    from reward name to a number, which is not checked yet. None: the configured weights."""


@dataclass(frozen=True, slots=True)
class Task:
    """Defines how to read the rows of a dataset, and which rewards score the completions."""

    name: str
    columns: tuple[tuple[str, ...], ...]
    """Accepted sets of columns. A row must have all columns from one set, and may have other
    columns."""
    read_row: Callable[[Row], Problem]
    """Function that reads one row. If a value is invalid, the function raises a DataError with the
    column's name."""
    rewards: tuple[Reward, ...]
    """Rewards, in the order of the reward array."""
    gold_completion: Callable[[Reference], str | None]
    """Function that returns a completion with the reference answer. This completion must get the
    maximum of every applicable reward that scores text. None: the row has no reference answer."""
    bad_completion: str
    """A completion that, for every reference, gets less than the maximum of at least one reward."""
    judges_every_row: tuple[str, ...] = ()
    """Names of rewards that must apply to every row. If such a reward does not apply to a row, no
    response to the row can be correct. An evaluation then lists the row and counts the row as
    wrong. Other rewards may skip rows. For example, a reward for tool calls skips rows that need no
    call."""

    def reward(self, name: str) -> Reward | None:
        """Return the reward with this name, or None if the task has no such reward."""
        return next((reward for reward in self.rewards if reward.name == name), None)


def without_arrays(value: Any) -> Any:
    """Return a row or a value in JSON types, with arrays (as in data frames) converted to lists.

    Raises:
        DataError: If the value is nested too deeply.
    """
    try:
        return _without_arrays(value)
    except RecursionError as error:
        raise DataError("a row is nested too deeply to be read. Flatten or remove it") from error


def _without_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_arrays(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_without_arrays(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
