"""Groups that are worth looking at, chosen while a run is read: numbers only, and not many.

Of each step one group somewhere, the one that the estimators disagree on most, and others if they
are wanted; of long runs of every second step, every fourth, and so on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from gdpo.analysis.replay import Advantages, disagreement
from gdpo.analysis.steps import Batch

KEPT = 400
"""Groups at most."""

_SAMPLES = 8
"""Rollouts of a group that are kept, at most: those with the largest disagreement."""

_ROWS = 200_000
"""Groups whose rollouts lie further back in their file are passed over: texts are read from the
start."""

GOLDEN = 0.6180339887498949
"""The parts of its multiples after the point lie evenly, however many there are."""


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """Some rollouts of a group, and where their texts are."""

    run: str
    format: str
    step: int
    place: int
    """Which of the groups of the step."""
    samples: tuple[int, ...]
    """Which of the samples of the group."""
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
    """Takes some groups of the steps whose turn it is.

    Args:
        per_step: Groups of a step at most, 2 at least; with many steps they become fewer.
    """

    def __init__(self, per_step: int = 2) -> None:
        self._kept: list[tuple[int, int, SampledGroup]] = []
        """With the number of the step, and the rank of the group among those of its step."""
        self._steps, self._stride, self._ranks = 0, 1, per_step

    @property
    def groups(self) -> list[SampledGroup]:
        """What was kept, in the order of the steps."""
        return [group for _, _, group in self._kept]

    def turn(self) -> bool:
        """Go on to the next step: whether it is one to be looked at."""
        self._steps += 1
        return (self._steps - 1) % self._stride == 0

    def look(self, batch: Batch, advantages: Mapping[str, Advantages]) -> None:
        """Take groups of the step whose turn it is, by what the estimators make of it."""
        step, placed = self._steps - 1, batch.placed
        apart = disagreement(np.stack(list(advantages.values())), batch.there)
        near = np.flatnonzero(np.max(np.where(batch.there, batch.table.row[placed], 0), 1) < _ROWS)
        if len(near):
            some = int(near[int(len(near) * ((step * GOLDEN) % 1))])
            worst = int(near[int(np.argmax(np.max(apart[near], axis=1)))])
            places = list(dict.fromkeys((some, worst, *near[: self._ranks].tolist())))
            self._kept += [
                (step, rank, _group(batch, place, advantages, apart))
                for rank, place in enumerate(places[: self._ranks])
            ]
        while len(self._kept) > KEPT:
            if self._ranks > 2:
                self._ranks = max(2, min(self._ranks, max(rank for _, rank, _ in self._kept)) // 2)
            else:
                self._stride *= 2
            self._kept = [
                kept for kept in self._kept if kept[1] < self._ranks and kept[0] % self._stride == 0
            ]


def _group(
    batch: Batch, place: int, advantages: Mapping[str, Advantages], apart: Advantages
) -> SampledGroup:
    table, placed = batch.table, batch.placed
    there = np.flatnonzero(batch.there[place])
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
        samples=tuple(shown.tolist()),
        size=int(np.sum(batch.there[place])),
        names=table.names,
        file=table.files[int(file[0])],
        rows=tuple(table.row[rows].tolist()),
        rewards=batch.rewards[place, shown],
        advantages={name: values[place, shown] for name, values in advantages.items()},
        disagreement=apart[place, shown],
        num_tokens=table.num_tokens[rows],
        cut=table.cut[rows],
    )
