"""Computes the results of an experiment from its runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from gdpo._shapes import Bool, Float
from gdpo.lab.experiments.comparison import Comparison, Difference, Outcome
from gdpo.lab.experiments.reading import OPEN, Experiment, Measured
from gdpo.lab.experiments.statistics import (
    FEWEST_SEEDS,
    ROUNDING,
    Interval,
    bootstrap,
    expanded_level,
    holm,
    interquartile_mean,
    kaplan_meier,
    log_rank_scores,
    paired_difference,
    permutation_test,
)
from gdpo.lab.experiments.threshold import WINDOW, best, final, first_reached


@dataclass(frozen=True, slots=True)
class _Traces:
    """Stores the results of an estimator's runs on one reward, one entry per seed."""

    seeds: tuple[int, ...]
    begun: Bool[np.ndarray, " seed"]
    comparable: Bool[np.ndarray, " seed"]
    """Whether the run has ended with a final reward."""
    finals: Float[np.ndarray, " seed"]
    bests: Float[np.ndarray, " seed"]
    times: Float[np.ndarray, " seed"]
    """Step at which each run reached the threshold, or its last step."""
    reached: Bool[np.ndarray, " seed"]


def analyse(experiment: Experiment, *, draws: int = 10_000) -> Comparison:
    """Compute the results of all estimators on all rewards, and compare them with the baseline.

    docs/reference/statistics.md lists what is computed. In addition:

    - A run is included from its first step on. Its final reward is the mean over the last tenth of
      its steps so far, even if it failed or is still running.
    - A reward is not compared if its gate or options differ from the baseline's.
    - An estimator is compared with the baseline over the seeds whose two runs have ended.
    - The correction excludes a reward that ended with the same value in all runs, and the one for
      times excludes a reward whose threshold no run reached. Neither rule uses the runs' labels, so
      each permutation test stays valid if the two estimators' runs are exchangeable. Excluded
      comparisons always have a p-value of 1.

    The results do not depend on the order of the seeds. `draws` is the number of bootstrap samples.

    References:
        Tarone 1990, "A modified Bonferroni method for discrete data", which excludes all
        comparisons that cannot be significant, not only those whose p-value is always 1.
    """
    traces = {
        (label, reward.name): _traces(experiment, label, reward)
        for reward in experiment.rewards
        for label in experiment.labels
    }
    first = experiment.labels[0]
    outcomes = tuple(
        _outcome(experiment, label, reward, traces[label, reward.name], draws)
        for reward in experiment.rewards
        for label in experiment.labels
    )
    differences = _corrected(
        tuple(
            _difference(
                label,
                first,
                reward,
                traces[label, reward.name],
                baseline=traces[first, reward.name],
            )
            for reward in experiment.rewards
            for label in experiment.labels[1:]
            if (label, reward.name) not in experiment.unlike
        ),
        traces,
    )
    return Comparison(experiment, outcomes, differences)


def _traces(experiment: Experiment, label: str, reward: Measured) -> _Traces:
    runs = experiment.runs_of(label)
    nothing = np.empty(0)
    curves = [run.means.get(reward.name, nothing)[: experiment.total_steps] for run in runs]
    threshold = experiment.threshold(reward)
    window = max(1, min(WINDOW, experiment.total_steps))
    crossings = [first_reached(values, threshold, window=window) for values in curves]
    steps = [min(run.steps, experiment.total_steps) for run in runs]
    ended = np.array([run.state not in OPEN for run in runs], dtype=bool)
    finals = np.array([final(values) for values in curves], dtype=float)
    return _Traces(
        seeds=tuple(run.seed for run in runs),
        begun=np.array([run.steps > 0 for run in runs], dtype=bool),
        comparable=ended & ~np.isnan(finals),
        finals=finals,
        bests=np.array([best(values) for values in curves], dtype=float),
        times=np.array([c or s for c, s in zip(crossings, steps, strict=True)], dtype=float),
        reached=np.array([crossing is not None for crossing in crossings], dtype=bool),
    )


def _outcome(
    experiment: Experiment, label: str, reward: Measured, traces: _Traces, draws: int
) -> Outcome:
    begun = traces.begun
    return Outcome(
        label=label,
        reward=reward.name,
        runs=int(begun.sum()),
        failed=sum(
            run.state == "failed" and 0 < run.steps < experiment.total_steps
            for run in experiment.runs_of(label)
        ),
        final=_average(traces.finals, draws),
        best=_average(traces.bests, draws),
        finals=traces.finals,
        reached=int(traces.reached.sum()),
        survival=kaplan_meier(traces.times[begun], traces.reached[begun]),
    )


def _average(values: Float[np.ndarray, " seed"], draws: int) -> Interval:
    count = int(np.count_nonzero(~np.isnan(values)))
    if count < FEWEST_SEEDS:
        return Interval(float(interquartile_mean(values)), nan, nan)
    return bootstrap(interquartile_mean, [values], draws=draws, level=expanded_level(count))


def _difference(
    label: str, baseline_label: str, reward: Measured, ours: _Traces, *, baseline: _Traces
) -> Difference:
    """Return an estimator's difference from the baseline, with uncorrected p-values."""
    theirs = {seed: i for i, seed in enumerate(baseline.seeds) if baseline.comparable[i]}
    pairs = [
        (i, theirs[seed])
        for i, seed in enumerate(ours.seeds)
        if seed in theirs and ours.comparable[i]
    ]
    mine, other = np.array(pairs, dtype=int).reshape(-1, 2).T
    interval = paired_difference(ours.finals[mine], baseline.finals[other])
    test = permutation_test(ours.finals[mine], baseline.finals[other])
    scores = log_rank_scores(
        (ours.times[mine], baseline.times[other]), (ours.reached[mine], baseline.reached[other])
    )
    p_time = permutation_test(*scores).p
    span = reward.high - reward.low
    return Difference(
        label=label,
        baseline=baseline_label,
        reward=reward.name,
        pairs=len(pairs),
        final=replace(interval, low=max(interval.low, -span), high=min(interval.high, span)),
        p_value=test.p,
        p_adjusted=test.p,
        p_floor=test.floor,
        p_time=p_time,
        p_time_adjusted=p_time,
        excess=float(np.sum(scores[0])),
    )


def _corrected(
    differences: tuple[Difference, ...], traces: Mapping[tuple[str, str], _Traces]
) -> tuple[Difference, ...]:
    """Return the differences with p-values corrected as `analyse` describes."""
    constant, untimed = set[str](), set[str]()
    for reward in {d.reward for d in differences}:
        of_reward = [each for (_, name), each in traces.items() if name == reward]
        ends = np.concatenate([each.finals[each.comparable] for each in of_reward])
        if len(ends) and np.ptp(ends) <= ROUNDING * np.max(np.abs(ends)):
            constant.add(reward)
        if not any(each.reached[each.comparable].any() for each in of_reward):
            untimed.add(reward)
    finals = holm([nan if d.reward in constant else d.p_value for d in differences])
    times = holm([nan if d.reward in untimed else d.p_time for d in differences])
    return tuple(
        replace(
            d,
            # NaN stays: there is nothing to compare.
            p_value=max(d.p_value, 1.0) if d.reward in constant else d.p_value,
            p_adjusted=max(d.p_value, 1.0) if d.reward in constant else p,
            p_time_adjusted=d.p_time if d.reward in untimed else p_time,
            constant=d.reward in constant,
            untimed=d.reward in untimed,
        )
        for d, p, p_time in zip(differences, finals, times, strict=True)
    )
