"""What is known after an experiment: the figures of every arm, and their differences."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gdpo.experiments._experiment import Experiment, Measured

FEWEST_SEEDS = 5
"""With fewer an arm, a result is exploratory, nothing is called better, and averages have no
intervals."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval. NaN: it cannot be told."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Survival:
    """The share of runs that have not reached the threshold yet (Kaplan-Meier)."""

    steps: Float[np.ndarray, " time"]
    """Where the share changes, the first being 0."""
    share: Float[np.ndarray, " time"]
    """From that step on."""
    low: Float[np.ndarray, " time"]
    high: Float[np.ndarray, " time"]
    median: Interval
    """Steps until half of the runs have; NaN: not within the steps that were run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One reward in one arm, over its seeds."""

    arm: str
    reward: str
    runs: int
    """With at least one step."""
    failed: int
    """Of these, that failed before their last step; they count with what they
    reached."""
    final: Interval
    """Interquartile mean over the seeds of the mean of the last tenth of a run's steps. Under 5
    seeds it has no interval."""
    best: Interval
    """Likewise of the highest running mean."""
    finals: Float[np.ndarray, " seed"]
    """Of each run of the arm, as `Experiment.runs_of` has them; NaN: of a run without a step."""
    reached: int
    """Runs that came to the threshold."""
    survival: Survival


@dataclass(frozen=True, slots=True)
class Difference:
    """One reward in one arm against the first arm, seed by seed."""

    arm: str
    baseline: str
    reward: str
    pairs: int
    """Seeds whose runs have ended in both arms, with a final; a failed run has one too."""
    final: Interval
    """Mean of the paired differences of the finals: above 0, this arm ends higher."""
    p_value: float
    """Two-sided permutation test of the finals."""
    p_adjusted: float
    """Corrected for the number of arms and rewards compared (Holm)."""
    p_floor: float
    """The least p-value that so many seeds can give."""
    p_time: float
    """Permutation test with the log-rank statistic of the steps to the threshold. The chi-squared
    approximation goes below the floor with few seeds."""
    p_time_adjusted: float
    excess: float
    """Runs of this arm that came to the threshold, less those expected were the arms alike: above
    0, it came there sooner. What `p_time` is the p-value of."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that is known after an experiment."""

    experiment: Experiment
    outcomes: tuple[Outcome, ...]
    """Reward by reward, in each the arms."""
    differences: tuple[Difference, ...]
    """Reward by reward, in each all arms but the first, and those of `Experiment.unlike`."""
    hypervolumes: tuple[tuple[str, Interval], ...]
    """By arm: share of the box of all rewards' ranges that the final means dominate, all rewards
    scaled to [0, 1]; empty for a single reward, and where arms gate or make one otherwise."""
    question: str
    answer: str
    """One sentence, with its interval."""
    exploratory: bool
    """Fewer than 5 seeds in an arm, or in common with the first."""

    def outcome(self, arm: str, reward: str) -> Outcome:
        """That of one reward in one arm."""
        return next(o for o in self.outcomes if (o.arm, o.reward) == (arm, reward))

    def threshold(self, reward: Measured) -> float:
        """What a run has to come to."""
        return reward.low + self.experiment.reach * (reward.high - reward.low)
