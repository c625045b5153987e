"""Groups that are worth looking at, chosen while a run is read: numbers only, and not many.

Of each step one group somewhere, and the one that the estimators disagree on most; of long runs of
every second step, every fourth, and so on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from gdpo.analysis._steps import Batch
from gdpo.analysis.replay import Advantages, disagreement

_KEPT = 400
"""Groups at most."""

_SAMPLES = 8
"""Rollouts of a group that are kept, at most: those with the largest disagreement."""

_ROWS = 200_000
"""Groups whose rollouts lie further back in their file are passed over: texts are read from the
start."""

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """Some rollouts of a group, and where their texts are."""

    run: str
    format: str
    step: int
    place: int
    """Which of the groups of the step."""
    size: int
    """Of the group; it may be larger than what is kept of it."""
    names: tuple[str, ...]
    file: Path
    rows: tuple[int, ...]
    """See `read_texts`."""
    rewards: Float[np.ndarray, "sample reward"]
    advantages: Mapping[str, Float[np.ndarray, " sample"]]
    """By estimator; NaN: it could not be called."""
    disagreement: Float[np.ndarray, " sample"]
    num_tokens: Float[np.ndarray, " sample"]
    cut: Float[np.ndarray, " sample"]


class Sample:
    """Takes a few groups of the steps whose turn it is."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, SampledGroup]] = []
        self._seen, self._stride = 0, 1

    @property
    def groups(self) -> list[SampledGroup]:
        """What was kept, in the order of the steps."""
        return [group for _, group in self._kept]

    def turn(self) -> bool:
        """Go on to the next step: whether it is one to be looked at."""
        self._seen += 1
        return (self._seen - 1) % self._stride == 0

    def look(self, batch: Batch, advantages: Mapping[str, Advantages]) -> None:
        """Take groups of the step whose turn it is, by what the estimators make of it."""
        turn, placed = self._seen - 1, batch.placed
        apart = disagreement(np.stack(list(advantages.values())), placed >= 0)
        near = np.flatnonzero(np.max(np.where(placed >= 0, batch.table.row[placed], 0), 1) < _ROWS)
        if len(near):
            some = near[int(len(near) * ((turn * _GOLDEN) % 1))]
            worst = near[int(np.argmax(np.max(apart[near], axis=1)))]
            for place in dict.fromkeys((int(some), int(worst))):
                self._kept.append((turn, _group(batch, place, advantages, apart)))
        while len(self._kept) > _KEPT:
            self._stride *= 2
            self._kept = [pair for pair in self._kept if pair[0] % self._stride == 0]


def _group(
    batch: Batch, place: int, advantages: Mapping[str, Advantages], apart: Advantages
) -> SampledGroup:
    table, placed = batch.table, batch.placed
    there = np.flatnonzero(placed[place] >= 0)
    # A group is of one file, or its rollouts are shown as far as they are of one.
    file = table.file[placed[place, there]]
    there = there[file == file[0]]
    shown = np.sort(there[np.argsort(-apart[place, there], kind="stable")][:_SAMPLES])
    rows = placed[place, shown]
    return SampledGroup(
        run=table.run,
        format=table.format,
        step=int(table.steps[0]),
        place=place,
        size=int(np.sum(placed[place] >= 0)),
        names=table.names,
        file=table.files[int(file[0])],
        rows=tuple(table.row[rows].tolist()),
        rewards=batch.rewards[place, shown],
        advantages={name: values[place, shown] for name, values in advantages.items()},
        disagreement=apart[place, shown],
        num_tokens=table.num_tokens[rows],
        cut=table.cut[rows],
    )
