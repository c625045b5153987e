"""What an experiment left behind: runs of several arms and seeds, read from their directories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float

State: TypeAlias = Literal["waiting", "running", "interrupted", "finished", "failed"]

OPEN: tuple[State, ...] = ("waiting", "running", "interrupted")
"""States of runs that are not done: an interrupted one goes on when `gdpo compare` does."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A reward that is compared."""

    name: str
    low: float
    high: float
    weight: float | None
    """None: the arms have different ones."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: an arm with a seed."""

    arm: str
    seed: int
    path: Path
    """Its run directory, which need not be there yet."""
    state: State
    why: str
    """Why it failed; empty otherwise."""
    means: Mapping[str, Float[np.ndarray, " step"]]
    """By reward: its mean over the rollouts of each step so far. NaN: it applied to none."""
    lengths: Mapping[str, Float[np.ndarray, " step"]] = field(
        default_factory=dict[str, Float[np.ndarray, " step"]]
    )
    """`mean` and `max`: tokens of the completions of each step so far. Empty: not logged."""

    @property
    def steps(self) -> int:
        """Steps so far."""
        return max((len(values) for values in self.means.values()), default=0)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Arms that were trained with the same seeds on the same task."""

    name: str
    path: Path
    """The folder that holds the runs; of a single run, the run directory."""
    arms: tuple[str, ...]
    """Estimators, with the values that are their own (`gdpo length.weight=0.5`); the first is what
    the others are compared with."""
    seeds: tuple[int, ...]
    rewards: tuple[Measured, ...]
    total_steps: int
    """Of each run."""
    runs: tuple[Run, ...]
    """One per arm and seed, arm by arm."""
    reach: float
    """Share of a reward's range whose first crossing is timed."""
    unlike: frozenset[tuple[str, str]] = frozenset()
    """Arms and rewards with another gate or other options than in the first arm: their means are of
    something else, and are not compared."""

    def runs_of(self, arm: str) -> tuple[Run, ...]:
        """The runs of an arm, seed by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def curves(self, arm: str, reward: str) -> Float[np.ndarray, "seed step"]:
        """The mean reward of each step, a row per seed; NaN where a run has not come so far."""
        return self._table([run.means.get(reward) for run in self.runs_of(arm)])

    def lengths(self, arm: str, figure: str) -> Float[np.ndarray, "seed step"]:
        """Likewise the `mean` or `max` of the completions' lengths, in tokens."""
        return self._table([run.lengths.get(figure) for run in self.runs_of(arm)])

    def _table(
        self, curves: Sequence[Float[np.ndarray, " step"] | None]
    ) -> Float[np.ndarray, "seed step"]:
        table = np.full((len(curves), self.total_steps), np.nan)
        for row, curve in zip(table, curves, strict=True):
            values = np.empty(0) if curve is None else curve[: self.total_steps]
            row[: len(values)] = values
        return table
