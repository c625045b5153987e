"""What an experiment left behind: runs of several arms and seeds, read from their directories."""

from collections.abc import Mapping
from dataclasses import dataclass
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
    weight: float


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
    """Estimators; the first is what the others are compared with."""
    seeds: tuple[int, ...]
    rewards: tuple[Measured, ...]
    total_steps: int
    """Of each run."""
    runs: tuple[Run, ...]
    """One per arm and seed, arm by arm."""
    reach: float
    """Share of a reward's range whose first crossing is timed."""

    def runs_of(self, arm: str) -> tuple[Run, ...]:
        """The runs of an arm, seed by seed."""
        return tuple(run for run in self.runs if run.arm == arm)

    def curves(self, arm: str, reward: str) -> Float[np.ndarray, "seed step"]:
        """The mean reward of each step, a row per seed; NaN where a run has not come so far."""
        table = np.full((len(self.runs_of(arm)), self.total_steps), np.nan)
        for row, run in zip(table, self.runs_of(arm), strict=True):
            values = run.means.get(reward, np.empty(0))[: self.total_steps]
            row[: len(values)] = values
        return table
