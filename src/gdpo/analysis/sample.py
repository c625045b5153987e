"""Samples groups to display while a run is being read, and keeps only numbers.

Each step, or every second, fourth, ... of a long run, gives an arbitrary group, the one on which
the estimators disagree most, and more if requested.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gdpo._shapes import Float
from gdpo.analysis.replay import Advantages, disagreement, viewed
from gdpo.rollouts.table import RewardArrays, RolloutTable

KEPT = 400
"""Maximum number of groups to keep."""

_SAMPLES = 8
"""Maximum number of rollouts to keep from a group: those with the largest disagreement."""

_ROWS = 200_000
"""Row of a file after which no group is chosen: texts are read from the start."""

_VALUES = 100_000
"""Maximum number of values to keep for the turns of a group."""

GOLDEN = 0.6180339887498949
"""The fractional parts of its multiples are spread evenly from 0 to 1."""


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """Stores some rollouts of a group, and where to find their texts."""

    table: RolloutTable
    """The rollouts, without their turns if these are more than `_VALUES` values."""
    place: int
    samples: tuple[int, ...]
    size: int
    """Number of rollouts in the group."""
    file: Path
    rows: tuple[int, ...]
    advantages: Mapping[str, Float[np.ndarray, " sample"]]
    """Advantages, keyed by estimator. NaN if the estimator could not be called."""
    disagreement: Float[np.ndarray, " sample"]


class GroupSampler:
    """Collects at least two groups from each of some steps, spread over the runs."""

    def __init__(self, per_step: int = 2) -> None:
        self._kept: list[tuple[int, int, SampledGroup]] = []
        """Groups, each with its step number and its rank within the step."""
        self._steps, self._stride, self._ranks = 0, 1, per_step

    @property
    def groups(self) -> list[SampledGroup]:
        """Kept groups, in step order."""
        return [group for _, _, group in self._kept]

    def look(self, batch: RewardArrays, advantages: Mapping[str, Advantages] | None) -> None:
        """Add groups of the next step, chosen by the disagreement of the estimators.

        Of a long run, only some steps count. Default of `advantages`: those of `viewed`.
        """
        step, placed = self._steps, batch.placed
        self._steps += 1
        if step % self._stride:
            return
        advantages = viewed(batch) if advantages is None else advantages
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
    batch: RewardArrays, place: int, advantages: Mapping[str, Advantages], apart: Advantages
) -> SampledGroup:
    table, placed = batch.table, batch.placed
    every = np.flatnonzero(batch.there[place])
    # If a group is spread over several files, only the rollouts of the first file are shown.
    file = table.file[placed[place, every]]
    there = every[file == file[0]]
    shown = np.sort(there[np.argsort(-apart[place, there], kind="stable")][:_SAMPLES])
    used = table.take(placed[place, shown])
    if used.by_turn.rewards.size > _VALUES:
        used = replace(used, turns=None)
    return SampledGroup(
        table=used,
        place=place,
        samples=tuple(shown.tolist()),
        size=len(every),
        file=table.files[int(file[0])],
        rows=tuple(used.row.tolist()),
        advantages={name: values[place, shown] for name, values in advantages.items()},
        disagreement=apart[place, shown],
    )
