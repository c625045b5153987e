"""What is known after an experiment: the figures of every estimator, and their differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np
from jaxtyping import Float

from gdpo.experiments.reading import OPEN, Experiment, Measured

FEWEST_SEEDS = 5
"""With fewer an estimator, a result is exploratory, nothing is called better, and averages have no
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
    """One reward in one estimator, over its seeds."""

    label: str
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
    """Of each run of the estimator, as `Experiment.runs_of` has them; NaN: of a run without a step."""
    reached: int
    """Runs that came to the threshold."""
    survival: Survival


@dataclass(frozen=True, slots=True)
class Difference:
    """One reward in one estimator against the first estimator, seed by seed."""

    label: str
    baseline: str
    reward: str
    pairs: int
    """Seeds whose runs have ended in both estimators, with a final; a failed run has one too."""
    final: Interval
    """Mean of the paired differences of the finals: above 0, this estimator ends higher."""
    p_value: float
    """Two-sided permutation test of the finals."""
    p_adjusted: float
    """Corrected for the number of estimators and rewards compared (Holm)."""
    p_floor: float
    """The least p-value that so many seeds can give."""
    p_time: float
    """Permutation test with the log-rank statistic of the steps to the threshold. The chi-squared
    approximation goes below the floor with few seeds."""
    p_time_adjusted: float
    excess: float
    """Runs of this estimator that came to the threshold, less those expected were the estimators alike: above
    0, it came there sooner. What `p_time` is the p-value of."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that is known after an experiment."""

    experiment: Experiment
    outcomes: tuple[Outcome, ...]
    """Reward by reward, in each the estimators."""
    differences: tuple[Difference, ...]
    """Reward by reward, in each all estimators but the first, and those of `Experiment.unlike`."""
    hypervolumes: tuple[tuple[str, Interval], ...]
    """By estimator: share of the box of all rewards' ranges that the final means dominate, all rewards
    scaled to [0, 1]; empty for a single reward, and where estimators gate or make one otherwise."""
    question: str
    answer: str
    """One sentence, with its interval."""
    exploratory: bool
    """Fewer than 5 seeds in an estimator, or in common with the first."""

    def outcome(self, label: str, reward: str) -> Outcome:
        """That of one reward in one estimator."""
        return next(o for o in self.outcomes if (o.label, o.reward) == (label, reward))

    def threshold(self, reward: Measured) -> float:
        """What a run has to come to."""
        return reward.low + self.experiment.reach * (reward.high - reward.low)


ALPHA = 0.05
"""A corrected p-value below this is told as a difference."""


def question(experiment: Experiment) -> str:
    """What the experiment was made to find out."""
    rewards = [reward.name for reward in experiment.rewards]
    if len(experiment.labels) == 1:
        return (
            f"How far does {experiment.labels[0]} come on {experiment.name} in {listed(rewards)}?"
        )
    first, *others = experiment.labels
    does = "Does" if len(others) == 1 else "Do"
    singular = len(rewards) == 1
    return (
        f"{does} {listed(others)} do better than {first} on {experiment.name}: "
        f"{'does' if singular else 'do'} {listed(rewards)} end higher, or reach "
        f"{_percent(experiment.reach)} of {'its' if singular else 'their'} range sooner?"
    )


def answer(
    experiment: Experiment, outcomes: Sequence[Outcome], differences: Sequence[Difference]
) -> str:
    """What is known, in one sentence: the best-supported result, with its interval.

    A difference is told where a corrected p-value is below 0.05. What speaks against it is told
    with it: a difference the other way, runs that never came to the threshold, runs that failed.
    """
    compared = [d for d in differences if d.pairs > 0]
    open_runs = sum(run.state in OPEN for run in experiment.runs)
    undone = f"{open_runs} of {len(experiment.runs)} runs are not done yet"
    if len(experiment.labels) == 1:
        parts = [_alone(experiment, outcomes)]
    elif not differences:
        parts = ["No reward is the same in two estimators, so that none can be compared"]
    elif not compared:
        yet = " yet" if open_runs else ""
        parts = [f"No seed has ended both in {experiment.labels[0]} and in another estimator{yet}"]
    elif max(d.pairs for d in compared) == 1:
        parts = [_one_seed(experiment, outcomes)]
    else:
        parts = _compared(experiment, outcomes, compared)
    parts += [*_failures(experiment, outcomes), *([undone] if open_runs else [])]
    return "; ".join(parts) + "."


def _alone(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    known = [o for o in outcomes if not isnan(o.final.value)]
    if not known:
        return f"No run of {experiment.labels[0]} has a step yet"
    ends = [f"{o.reward} at {o.final.value:.3g} ({_range(o.final)})" for o in known]
    return f"{experiment.labels[0]} ends {listed(ends)} over {_seeds(known[0].runs)}"


def _one_seed(experiment: Experiment, outcomes: Sequence[Outcome]) -> str:
    ends = [
        f"{reward.name} ends at "
        + listed(
            [
                f"{_of(outcomes, label, reward.name).final.value:.3g} in {label}"
                for label in experiment.labels
            ]
        )
        for reward in experiment.rewards
    ]
    return f"One seed shows how the estimators behave, not which is better: {'; '.join(ends)}"


def _compared(
    experiment: Experiment, outcomes: Sequence[Outcome], differences: Sequence[Difference]
) -> list[str]:
    spans = {reward.name: reward.high - reward.low for reward in experiment.rewards}
    # Among p-values that are equal, as at the floor, the larger share of its range.
    by_support = sorted(
        differences, key=lambda d: (d.p_adjusted, d.p_value, -abs(d.final.value) / spans[d.reward])
    )
    best = by_support[0]
    count = len(differences)
    soonest = min(differences, key=lambda d: d.p_time_adjusted)
    if best.p_adjusted < ALPHA and best.pairs >= FEWEST_SEEDS:
        parts = [_higher(best, count), *_other_way(best, by_support, count)]
    elif soonest.p_time_adjusted < ALPHA and soonest.pairs >= FEWEST_SEEDS:
        best = soonest
        parts = [_sooner(experiment, best, outcomes, count)]
    else:
        parts = [_untold(best, experiment.labels, count), *_floor(best, count)]
    return [*parts, *_never(experiment, best, outcomes)]


def _higher(d: Difference, count: int) -> str:
    return (
        f"{d.label} ends {_way(d)} than {d.baseline} in {d.reward}, by {abs(d.final.value):.3g} "
        f"({_range(_magnitude(d.final))}, {_seeds(d.pairs)}, {_p(d.p_adjusted, count)})"
    )


def _other_way(best: Difference, by_support: Sequence[Difference], count: int) -> list[str]:
    contrary = [
        d
        for d in by_support
        if d.p_adjusted < ALPHA and d.pairs >= FEWEST_SEEDS and d.final.value * best.final.value < 0
    ]
    return ["but " + _higher(contrary[0], count)] if contrary else []


def _sooner(experiment: Experiment, d: Difference, outcomes: Sequence[Outcome], count: int) -> str:
    ours, theirs = (_of(outcomes, label, d.reward) for label in (d.label, d.baseline))
    way = "sooner" if d.excess > 0 else "later"
    return (
        f"{d.label} comes to {_percent(experiment.reach)} of {d.reward} {way} than {d.baseline} "
        f"(half of the runs {_median(ours)} against {_median(theirs)}, {_seeds(d.pairs)}, "
        f"{_p(d.p_time_adjusted, count)}), and where they end no difference can be told"
    )


def _untold(d: Difference, labels: Sequence[str], count: int) -> str:
    between = f"between {d.label} and {d.baseline}" if len(labels) == 2 else f"from {d.baseline}"
    whose = f"in {d.reward}" if len(labels) == 2 else f"that of {d.label} in {d.reward}"
    return (
        f"No difference {between} can be told with {_seeds(d.pairs)}: the best supported, "
        f"{whose}, is {d.final.value:+.3g} ({_range(d.final)}, {_p(d.p_adjusted, count)})"
    )


def _floor(d: Difference, count: int) -> list[str]:
    if d.p_floor * count < ALPHA:
        return []
    corrected = f", {min(1.0, d.p_floor * count):.2g} when corrected" if count > 1 else ""
    return [f"with {_seeds(d.pairs)} no p-value can be below {d.p_floor:.2g}{corrected}"]


def _never(experiment: Experiment, d: Difference, outcomes: Sequence[Outcome]) -> list[str]:
    of_both = [_of(outcomes, label, d.reward) for label in (d.label, d.baseline)]
    return [
        f"{o.runs - o.reached} of {o.runs} runs of {o.label} never came to "
        f"{_percent(experiment.reach)} of {o.reward}"
        for o in of_both
        if o.reached < o.runs and not _running(experiment, o.label)
    ]


def _running(experiment: Experiment, label: str) -> bool:
    return any(run.state in OPEN for run in experiment.runs_of(label))


def _failures(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[str]:
    parts: list[str] = []
    for label in experiment.labels:
        runs = experiment.runs_of(label)
        early = next((o.failed for o in outcomes if o.label == label), 0)
        lost = sum(run.state == "failed" and run.steps == 0 for run in runs)
        if early:
            counted = "counts with what it" if early == 1 else "count with what they"
            parts.append(
                f"{early} of {len(runs)} runs of {label} ended early and {counted} reached"
            )
        if lost:
            left = "its first step and is" if lost == 1 else "their first step and are"
            parts.append(f"{lost} of {len(runs)} runs of {label} ended before {left} left out")
    return parts


def _of(outcomes: Sequence[Outcome], label: str, reward: str) -> Outcome:
    return next(o for o in outcomes if (o.label, o.reward) == (label, reward))


def _way(d: Difference) -> str:
    return "higher" if d.final.value > 0 else "lower"


def _magnitude(interval: Interval) -> Interval:
    """Of a drop, how far it goes down."""
    if interval.value >= 0:
        return interval
    return Interval(-interval.value, -interval.high, -interval.low)


def _range(interval: Interval) -> str:
    if isnan(interval.low):
        return "its interval cannot be told"
    return f"95 % interval {interval.low:.3g} to {interval.high:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _median(outcome: Outcome) -> str:
    median = outcome.survival.median
    return "never" if isnan(median.value) else f"by step {median.value:.0f}"


def _p(p: float, count: int) -> str:
    return f"p = {p:.2g}" + (f" corrected for {count} comparisons" if count > 1 else "")


def _seeds(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
