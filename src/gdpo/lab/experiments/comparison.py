"""Stores the results of an experiment and writes its conclusion."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np

from gdpo._shapes import Float
from gdpo._text import counted
from gdpo.lab.experiments.reading import Experiment
from gdpo.lab.experiments.statistics import ALPHA, FEWEST_SEEDS, Interval, Survival, fewest_seeds
from gdpo.report.text import number


@dataclass(frozen=True, slots=True)
class Outcome:
    """Stores one estimator's results on one reward over all seeds."""

    label: str
    reward: str
    runs: int
    """Number of runs with at least one step."""
    failed: int
    """Number of runs that failed after their first step. The reward that they reached is used."""
    final: Interval
    """Interquartile mean, over the seeds, of a run's final reward: its mean over the last tenth
    of the steps. There is no interval with fewer than 5 seeds."""
    best: Interval
    """Interquartile mean, over the seeds, of a run's best reward: its highest running mean."""
    finals: Float[np.ndarray, " seed"]
    """Final reward of each run, in the order of `Experiment.runs_of`. NaN: the run has no steps."""
    reached: int
    """Number of runs that reached the threshold."""
    survival: Survival


@dataclass(frozen=True, slots=True)
class Difference:
    """Stores one estimator's difference from the baseline on one reward."""

    label: str
    baseline: str
    reward: str
    pairs: int
    """Number of seeds for which the runs of both have ended with a final reward, or failed."""
    final: Interval
    """Mean paired difference of the final rewards. Above 0: this estimator ends higher."""
    p_value: float
    """P-value of the two-sided permutation test of the final rewards."""
    p_adjusted: float
    """`p_value` after Holm's correction for all comparisons of estimators and rewards."""
    p_floor: float
    """Smallest attainable p-value with this number of seeds, before correction."""
    p_time: float
    """P-value of the permutation test of the number of steps to the threshold (log-rank statistic).
    The usual chi-squared approximation gives p-values that are too small with few seeds."""
    p_time_adjusted: float
    """`p_time` after Holm's correction."""
    excess: float
    """Number of runs of this estimator that reached the threshold, minus the number expected if the
    estimators were equivalent. Above 0: this estimator was sooner. `p_time` is its p-value."""
    constant: bool = False
    """Whether all runs of the experiment ended with the same value of this reward. If so, the
    correction does not count this comparison."""
    untimed: bool = False
    """Whether no ended run of the experiment reached the threshold of this reward. If so, the
    correction of `p_time` does not count this comparison."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Stores all results of an experiment."""

    experiment: Experiment
    outcomes: tuple[Outcome, ...]
    """One outcome per reward and estimator, grouped by reward."""
    differences: tuple[Difference, ...]
    """One difference per reward and estimator, grouped by reward. The baseline and the pairs in
    `Experiment.unlike` are left out."""

    @property
    def fewest_seeds(self) -> int:
        """Smallest number of seeds that an estimator has, or shares with the baseline."""
        counts = [o.runs for o in self.outcomes] + [d.pairs for d in self.differences]
        return min(counts, default=0)

    @property
    def exploratory(self) -> bool:
        """Whether there are too few seeds to report a difference."""
        return self.fewest_seeds < FEWEST_SEEDS

    @property
    def by_place(self) -> dict[tuple[str, str], Difference]:
        """The differences by label and reward."""
        return {(d.label, d.reward): d for d in self.differences}

    def outcome(self, label: str, reward: str) -> Outcome:
        """Return an estimator's outcome on a reward."""
        return next(o for o in self.outcomes if (o.label, o.reward) == (label, reward))


_LISTED = 4
"""Maximum number of further differences to name."""


def headline(comparison: Comparison) -> str:
    """Return an experiment's conclusion as one sentence: the clearest difference, if any.

    A difference is reported if its corrected p-value is below 0.05 and at least 5 seeds were
    compared. The clearest has the smallest p-value and, among equals, the largest share of its
    reward's range. Final rewards come before times to the threshold. If these seeds could not have
    shown any difference, the sentence states how many are needed.
    """
    experiment = comparison.experiment
    first, *others = experiment.labels
    compared = [d for d in comparison.differences if d.pairs > 0]
    if not others:
        return _ends(comparison)
    if not comparison.differences:
        return "No reward has the same definition as in the baseline, so nothing can be compared."
    if not compared:
        return f"No seed has ended for both {first} and another estimator."
    if reported := _reported(comparison):
        return _sentence(comparison, *reported[0])
    between = f"between {others[0]} and {first}" if len(others) == 1 else f"from {first}"
    seeds = max(d.pairs for d in compared)
    corrected_for = (sum(not d.constant for d in compared), sum(not d.untimed for d in compared))
    needed = fewest_seeds(min(filter(None, corrected_for), default=0))
    enough = "" if seeds >= needed else f"; at least {needed} seeds are needed to show one"
    return f"No difference {between} was found with {counted(seeds, 'seed')}{enough}."


def further(comparison: Comparison) -> str:
    """Return a sentence that names the differences after the clearest one, or ""."""
    rest = [f"{d.label} {way} in {d.reward}" for d, way in _reported(comparison)[1:]]
    if len(rest) > _LISTED:
        rest = [*rest[:_LISTED], f"{len(rest) - _LISTED} more"]
    return f"Also: {listed(rest)}." if rest else ""


def _reported(comparison: Comparison) -> list[tuple[Difference, str]]:
    """Return the significant differences and their directions, by ascending p-value.

    Times to the threshold are reported only if no final reward differs.
    """
    spans = {r.name: r.high - r.low for r in comparison.experiment.rewards}
    tested = [d for d in comparison.differences if d.pairs >= FEWEST_SEEDS]
    ends = [d for d in tested if d.p_adjusted < ALPHA]
    times = [d for d in tested if d.p_time_adjusted < ALPHA]
    ends.sort(key=lambda d: (d.p_adjusted, d.p_value, -abs(d.final.value) / spans[d.reward]))
    times.sort(key=lambda d: d.p_time_adjusted)
    return [(d, "higher" if d.final.value > 0 else "lower") for d in ends] or [
        (d, "sooner" if d.excess > 0 else "later") for d in times
    ]


def _sentence(comparison: Comparison, d: Difference, way: str) -> str:
    seeds = counted(d.pairs, "seed")
    if way in ("sooner", "later"):
        medians = [
            "not reached" if isnan(step) else f"step {step:.0f}"
            for label in (d.label, d.baseline)
            for step in [comparison.outcome(label, d.reward).survival.median.value]
        ]
        return (
            f"{d.label} reaches {100 * comparison.experiment.reach:.3g} % of the range of "
            f"{d.reward} {way} than {d.baseline} (median {' versus '.join(medians)}, {seeds}, "
            f"{_corrected(d.p_time_adjusted)})."
        )
    reward = next(r for r in comparison.experiment.rewards if r.name == d.reward)
    ends = (d.final.value, d.final.low, d.final.high)
    if way == "lower":
        ends = (-d.final.value, -d.final.high, -d.final.low)
    size, low, high = (number(end, reward.low, reward.high) for end in ends)
    interval = "" if isnan(d.final.low) else f"95 % interval {low} to {high}, "
    return (
        f"{d.label} ends {size} {way} than {d.baseline} in {d.reward} ({interval}{seeds}, "
        f"{_corrected(d.p_adjusted)})."
    )


def _corrected(p: float) -> str:
    return "corrected p < 0.001" if p < 0.001 else f"corrected p = {p:.2g}"


def _ends(comparison: Comparison) -> str:
    """Return a sentence about the final rewards of the only label."""
    (label,) = comparison.experiment.labels
    ends = [
        f"{reward.name} at {number(outcome.final.value, reward.low, reward.high)}"
        for reward in comparison.experiment.rewards
        for outcome in [comparison.outcome(label, reward.name)]
        if not isnan(outcome.final.value)
    ]
    return f"{label} ends {listed(ends)}." if ends else f"No run of {label} has a step yet."


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
