"""What a task is: it turns a dataset row into a prompt, a reference and rewards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gdpo.rewards import Reference, Reward

Row: TypeAlias = Mapping[str, Any]
"""One row of a dataset, as it was read."""

Message: TypeAlias = dict[str, str]
"""A chat message: `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What training needs of one row."""

    prompt: list[Message]
    """Chat messages; the policy's own chat template turns them into text."""
    reference: Reference
    """What the rewards judge a completion against. Every problem of a task has the same keys."""
    asked: tuple[str, ...] = ()
    """What the user said, turn by turn, without the task's own words around it; by it rows are
    compared with each other. Empty: the user messages of the prompt."""
    answer: str | None = None
    """What is wanted, as text: rows that are asked the same but want something else are no
    duplicates. None: whatever is wanted, they are."""


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of problem: how its rows are read, and what is wanted of an answer."""

    name: str
    columns: tuple[tuple[str, ...], ...]
    """Sets of columns that a row may have; one whole set must be there. More columns do no harm."""
    read_row: Callable[[Row], Problem]
    """Raises DataError, naming the column, where a value of the row cannot be used."""
    rewards: tuple[Reward, ...]
    """In the order of the reward array."""
    gold_completion: Callable[[Reference], str | None]
    """A completion that gets the maximum of every reward of the text that applies; None where the
    row brings none."""
    bad_completion: str
    """A completion that gets less than the maximum of at least one reward, whatever the
    reference."""
    judges_every_row: tuple[str, ...] = ()
    """Names of rewards that must apply to every row. Where one does not, no response to the row can
    be right: an evaluation names the row and counts it as wrong. Rewards that are not named here
    may leave rows out, as calls of tools do where a response is wanted."""

    def reward(self, name: str) -> Reward | None:
        """The reward of this name, or None."""
        return next((reward for reward in self.rewards if reward.name == name), None)
