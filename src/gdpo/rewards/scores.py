"""Defines the results of scoring: a value, `None`, or a failure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from gdpo._shapes import Float

SHOWN = 200
"""Maximum number of characters of a completion or exception that a message shows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Stores how a reward broke its contract on one rollout."""

    reward: str
    index: int
    """Index of the rollout in the batch."""
    kind: str
    """`raised <Exception>`, `not a number`, `out of range`, `timed out`, or `worker died`."""
    message: str
    error: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception, if the reward raised it in this process and `on_error` is `raise`."""
    turn: int | None = None
    """Index of the turn. None: the reward does not score turns."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Scores:
    """Stores the reward array of a batch and the failures."""

    values: Float[np.ndarray, "rollout reward"]
    """The scores in float64. NaN means that the reward does not apply or failed. For a reward that
    scores turns, the total over the turns."""
    failures: tuple[Failure, ...]
    turns: Mapping[str, Sequence[Sequence[float]]] = field(
        default_factory=dict[str, Sequence[Sequence[float]]]
    )
    """For each reward that scores turns, the scores of each turn of each rollout. NaN as in
    `values`."""

    def failed(self, reward: str) -> int:
        """Return the number of rollouts on which this reward failed."""
        return len({failure.index for failure in self.failures if failure.reward == reward})

    def kinds(self, reward: str) -> Mapping[str, int]:
        """Return the number of rollouts on which this reward failed, by kind of failure."""
        failed = {(f.kind, f.index): f for f in self.failures if f.reward == reward}
        return Counter(kind for kind, _ in failed)


Result: TypeAlias = float | Failure | None
"""Result of one reward on one rollout. None: the reward does not apply."""
