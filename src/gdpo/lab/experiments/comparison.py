"""Stores the results of an experiment and writes its conclusion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, isnan, log10

import numpy as np

from gdpo._shapes import Float
from gdpo._text import counted
from gdpo.lab.experiments.reading import OPEN, Experiment
from gdpo.lab.experiments.statistics import ALPHA, FEWEST_SEEDS, Interval, Survival, fewest_seeds


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

    def outcome(self, label: str, reward: str) -> Outcome:
        """Return an estimator's outcome on a reward."""
        return next(o for o in self.outcomes if (o.label, o.reward) == (label, reward))


_LISTED = 4
"""Maximum number of differences to list individually in the details."""

_TINY = 1e-4
"""P-values below this limit are written as `p < 0.0001`."""


def question(experiment: Experiment) -> str:
    """Return the experiment's question."""
    rewards = [reward.name for reward in experiment.rewards]
    if len(experiment.labels) == 1:
        return (
            f"How high does {experiment.labels[0]} score on {experiment.name} in {listed(rewards)}?"
        )
    first, *others = experiment.labels
    does = "Does" if len(others) == 1 else "Do"
    singular = len(rewards) == 1
    return (
        f"{does} {listed(others)} do better than {first} on {experiment.name}: "
        f"{'does' if singular else 'do'} {listed(rewards)} end higher, or reach "
        f"{_percent(experiment.reach)} of {'its' if singular else 'their'} range sooner?"
    )


def headline(comparison: Comparison) -> str:
    """Return an experiment's conclusion as one sentence with one number.

    A difference is reported if its corrected p-value is below 0.05 and at least 5 seeds were
    compared: the one with the smallest p-value and, among equals, with the largest share of its
    reward's range. A further difference in the opposite direction is also mentioned. If these seeds
    could not have shown any, the sentence states how many are needed.
    """
    experiment, compared = comparison.experiment, _compared(comparison)
    first = experiment.labels[0]
    if len(experiment.labels) == 1:
        return _single(comparison)
    if not comparison.differences:
        return "No reward has the same definition as in the baseline, so nothing can be compared."
    if not compared:
        yet = " yet" if _open_runs(experiment) else ""
        return f"No seed has ended for both {first} and another estimator{yet}."
    if max(d.pairs for d in compared) == 1:
        return "One seed cannot show which estimator is better."
    if found := _found(comparison):
        opposite = (d for d in found if d.final.value * found[0].final.value < 0)
        return _higher(found[0], comparison, contrary=next(opposite, None)) + "."
    if sooner := _sooner(comparison):
        return _faster(sooner[0], comparison) + "."
    return _undecided(comparison, compared)


def details(comparison: Comparison) -> tuple[str, ...]:
    """Return the sentences to show below the headline, if any."""
    experiment, compared = comparison.experiment, _compared(comparison)
    found = _found(comparison)
    sentences: list[str] = []
    if compared and max(d.pairs for d in compared) == 1:
        sentences += _one_seed(comparison)
    elif compared:
        sooner = [] if found else _sooner(comparison)
        if found:
            sentences += _others(found, _higher, comparison)
        elif sooner:
            sentences += _others(sooner, _faster, comparison)
            sentences += ["No difference was found between the final rewards."]
        else:
            sentences += _limits(comparison)
        sentences += _correction(comparison, len((_timed if sooner else _varied)(compared)))
        clearest = found or sooner or sorted(compared, key=lambda d: d.p_adjusted)
        sentences += _never(comparison, clearest[0])
    sentences += _failures(comparison)
    if unfinished := _open_runs(experiment):
        sentences.append(f"{unfinished} of {len(experiment.runs)} runs have not ended yet.")
    return tuple(filter(None, sentences))


def _others(
    found: Sequence[Difference],
    write: Callable[[Difference, Comparison], str],
    comparison: Comparison,
) -> list[str]:
    """Return a sentence for each further difference, and the number left out."""
    shown = found[1:] if len(found) <= _LISTED + 2 else found[1 : 1 + _LISTED]
    rest = len(found) - 1 - len(shown)
    sentences = [f"{write(d, comparison)}." for d in shown]
    return [*sentences, f"{counted(rest, 'more difference')} were found."] if rest else sentences


def _compared(comparison: Comparison) -> list[Difference]:
    return [d for d in comparison.differences if d.pairs > 0]


def _varied(compared: Sequence[Difference]) -> list[Difference]:
    """Return the comparisons in the correction for final rewards."""
    return [d for d in compared if not d.constant]


def _timed(compared: Sequence[Difference]) -> list[Difference]:
    """Return the comparisons in the correction for times to the threshold."""
    return [d for d in compared if not d.untimed]


def _found(comparison: Comparison) -> list[Difference]:
    """Return the significant differences between final rewards, by ascending p-value."""
    spans = {r.name: r.high - r.low for r in comparison.experiment.rewards}
    return sorted(
        (d for d in _compared(comparison) if d.p_adjusted < ALPHA and d.pairs >= FEWEST_SEEDS),
        key=lambda d: (d.p_adjusted, d.p_value, -abs(d.final.value) / spans[d.reward]),
    )


def _sooner(comparison: Comparison) -> list[Difference]:
    """Return the significant differences in steps to the threshold, by ascending p-value."""
    return sorted(
        (d for d in _compared(comparison) if d.p_time_adjusted < ALPHA and d.pairs >= FEWEST_SEEDS),
        key=lambda d: d.p_time_adjusted,
    )


def _single(comparison: Comparison) -> str:
    label = comparison.experiment.labels[0]
    known = [o for o in comparison.outcomes if not isnan(o.final.value)]
    if not known:
        return f"No run of {label} has a step yet."
    ends = [f"{o.reward} at {_value(o.final)} ({_range(o.final)})" for o in known]
    return f"{label} ends {listed(ends)} with {counted(known[0].runs, 'seed')}."


def _one_seed(comparison: Comparison) -> list[str]:
    labels = comparison.experiment.labels
    return [
        f"{reward.name} ends at "
        + listed([f"{_value(comparison.outcome(a, reward.name).final)} in {a}" for a in labels])
        + "."
        for reward in comparison.experiment.rewards
    ]


def _higher(d: Difference, comparison: Comparison, *, contrary: Difference | None = None) -> str:
    size = _size(d)
    zero = ", which includes 0" if size.low <= 0 <= size.high else ""
    p = _p(d.p_adjusted, len(_varied(_compared(comparison))))
    text = (
        f"{d.label} ends {_value(size)} {_way(d)} than {d.baseline} in {d.reward} "
        f"({_range(size)}{zero}, {counted(d.pairs, 'seed')}, {p})"
    )
    if contrary is None:
        return text
    whose = "" if contrary.label == d.label else f"{contrary.label} ends "
    return f"{text}, but {whose}{_way(contrary)} in {contrary.reward}"


def _faster(d: Difference, comparison: Comparison) -> str:
    outcomes = [comparison.outcome(label, d.reward) for label in (d.label, d.baseline)]
    steps = [outcome.survival.median.value for outcome in outcomes]
    medians = ["not reached" if isnan(step) else f"step {step:.0f}" for step in steps]
    p = _p(d.p_time_adjusted, len(_timed(_compared(comparison))))
    return (
        f"{d.label} reaches {_percent(comparison.experiment.reach)} of the range of {d.reward} "
        f"{'sooner' if d.excess > 0 else 'later'} than {d.baseline} (median {medians[0]} versus "
        f"{medians[1]}, {counted(d.pairs, 'seed')}, {p})"
    )


def _undecided(comparison: Comparison, compared: Sequence[Difference]) -> str:
    labels = comparison.experiment.labels
    between = f"between {labels[1]} and {labels[0]}" if len(labels) == 2 else f"from {labels[0]}"
    seeds = counted(max(d.pairs for d in compared), "seed")
    text = f"No difference {between} was found with {seeds}"
    families = [family for family in (_varied(compared), _timed(compared)) if family]
    if not families or any(map(_could_decide, families)):
        return f"{text}."
    needed = counted(fewest_seeds(min(map(len, families))), "seed")
    return f"{text}; at least {needed} are needed to show one."


def _could_decide(family: Sequence[Difference]) -> bool:
    return any(d.pairs >= FEWEST_SEEDS and d.p_floor * len(family) < ALPHA for d in family)


def _limits(comparison: Comparison) -> list[str]:
    """Return sentences about what this number of seeds could show and what was observed."""
    varied = _varied(_compared(comparison))
    count = len(varied)
    if not varied:
        return []
    if _could_decide(varied):
        if count > _LISTED:
            return []
        known = any(not isnan(d.final.low) for d in varied)
        more = "Detecting smaller differences needs more seeds." if known else ""
        return [
            *(
                f"In {d.reward}, {d.label} minus {d.baseline} is {_value(d.final)} "
                f"({_range(d.final)})."
                for d in varied
            ),
            more,
        ]
    least = min(d.p_floor for d in varied)
    corrected = f", or {min(1.0, least * count):.2g} after correction" if count > 1 else ""
    seeds = counted(max(d.pairs for d in varied), "seed")
    apart = [d for d in varied if d.p_value <= d.p_floor and d.final.value != 0 and d.pairs > 1]
    return [
        f"With {seeds} the smallest possible p-value for final rewards is {least:.2g}{corrected}.",
        *(_apart(d, comparison) for d in apart[:_LISTED]),
    ]


def _apart(d: Difference, comparison: Comparison) -> str:
    size = _size(d)
    runs = max(comparison.outcome(label, d.reward).runs for label in (d.label, d.baseline))
    seeds = f" over the {d.pairs} seeds that ended in both" if d.pairs < runs else ""
    return (
        f"In {d.reward}, every run of {d.label} ended {_way(d)} than every run of {d.baseline}"
        f"{seeds}, by {_value(size)} on average ({_range(size)}), but so few seeds cannot rule out "
        "chance."
    )


def _correction(comparison: Comparison, count: int) -> list[str]:
    """Return sentences about the correction and about rewards equal in all runs."""
    constant = list(dict.fromkeys(d.reward for d in _compared(comparison) if d.constant))
    which = "All ended runs" if _open_runs(comparison.experiment) else "All runs"
    same = "the same final value" if len(constant) == 1 else "the same final values"
    return [
        f"P-values are corrected for {count} comparisons." if count > 1 else "",
        f"{which} have {same} of {listed(constant)}, so there is no difference to test."
        if constant
        else "",
    ]


def _never(comparison: Comparison, d: Difference) -> list[str]:
    experiment = comparison.experiment
    return [
        f"{o.runs - o.reached} of {o.runs} runs of {o.label} never reached "
        f"{_percent(experiment.reach)} of the range of {o.reward}."
        for o in (comparison.outcome(label, d.reward) for label in (d.label, d.baseline))
        if o.reached < o.runs and not any(run.state in OPEN for run in experiment.runs_of(o.label))
    ]


def _failures(comparison: Comparison) -> list[str]:
    experiment, sentences = comparison.experiment, list[str]()
    for label in experiment.labels:
        runs = experiment.runs_of(label)
        early = next((o.failed for o in comparison.outcomes if o.label == label), 0)
        lost = sum(run.state == "failed" and run.steps == 0 for run in runs)
        if early:
            ones = "its" if early == 1 else "their"
            sentences.append(
                f"{early} of {len(runs)} runs of {label} failed early; {ones} last reward is used."
            )
        if lost:
            left = "its first step and is" if lost == 1 else "their first step and are"
            sentences.append(
                f"{lost} of {len(runs)} runs of {label} failed before {left} left out."
            )
    return sentences


def _open_runs(experiment: Experiment) -> int:
    return sum(run.state in OPEN for run in experiment.runs)


def _size(d: Difference) -> Interval:
    final = d.final
    return Interval(-final.value, -final.high, -final.low) if final.value < 0 else final


def _way(d: Difference) -> str:
    return "higher" if d.final.value > 0 else "lower"


def _value(interval: Interval) -> str:
    return _number(interval.value, interval)


def _range(interval: Interval) -> str:
    if isnan(interval.low):
        return "no interval"
    low, high = (_number(end, interval) for end in (interval.low, interval.high))
    return f"95 % interval {low} to {high}"


def _number(value: float, interval: Interval) -> str:
    """Round to two digits of the interval's width, or to three digits if there is no interval."""
    width = interval.high - interval.low
    if isnan(width) or width <= 0:
        text = f"{value:.3g}"
    else:
        text = f"{value:.{min(6, max(0, 1 - floor(log10(width))))}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else text.lstrip("-")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _p(p: float, count: int) -> str:
    corrected = "corrected " if count > 1 else ""
    return f"{corrected}p < {_TINY:.4f}" if p < _TINY else f"{corrected}p = {p:.2g}"


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
