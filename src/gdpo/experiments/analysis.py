"""From the runs of an experiment to what is known of every estimator and of their differences."""

from dataclasses import dataclass, replace
from math import nan

import numpy as np
from jaxtyping import Bool, Float

from gdpo.experiments.comparison import (
    FEWEST_SEEDS,
    Comparison,
    Difference,
    Interval,
    Outcome,
    answer,
    question,
)
from gdpo.experiments.reading import OPEN, Experiment, Measured, Run
from gdpo.experiments.statistics import (
    bootstrap,
    expanded_level,
    holm,
    interquartile_mean,
    kaplan_meier,
    log_rank_scores,
    paired_difference,
    permutation_test,
)
from gdpo.experiments.threshold import WINDOW, best, final, first_reached


@dataclass(frozen=True, slots=True)
class _Traces:
    """What each run of an estimator came to in one reward, seed by seed."""

    seeds: tuple[int, ...]
    begun: Bool[np.ndarray, " seed"]
    ended: Bool[np.ndarray, " seed"]
    finals: Float[np.ndarray, " seed"]
    bests: Float[np.ndarray, " seed"]
    times: Float[np.ndarray, " seed"]
    """The step at which it came to the threshold, or its last step."""
    reached: Bool[np.ndarray, " seed"]


def analyse(experiment: Experiment, *, draws: int = 10_000) -> Comparison:
    """Every reward of every estimator, and every estimator against the first, seed by seed.

    - A run counts from its first step on, with what it reached: its final is the mean of the last
      tenth of the steps that it took, whether it finished, failed or is still running. For the time
      to the threshold it is censored at its last step. A run without a step is left out.
    - Finals and bests of an estimator are interquartile means over its seeds, with expanded percentile
      bootstrap intervals; under 5 seeds without one, since none of 3 values holds what it says.
    - A reward that an estimator gates or makes otherwise than the first estimator is not compared there.
    - An estimator is compared with the first over the seeds that have ended in both, so that no run is
      held against one that is further on: Student's interval for the mean difference, permutation
      tests for finals and for log-rank scores. P-values are corrected (Holm) for all estimators and
      rewards, finals and times each by themselves; intervals are not.

    The same runs give the same figures, in whatever order the seeds are.

    Args:
        experiment: What the runs left behind so far.
        draws: Bootstrap samples.
    """
    traces = {
        (label, reward.name): _traces(experiment, label, reward)
        for reward in experiment.rewards
        for label in experiment.labels
    }
    outcomes = tuple(
        _outcome(experiment, label, reward, traces[label, reward.name], draws)
        for reward in experiment.rewards
        for label in experiment.labels
    )
    differences = _corrected(
        tuple(
            _difference(
                label,
                experiment.labels[0],
                reward,
                traces[label, reward.name],
                baseline=traces[first],
            )
            for reward in experiment.rewards
            for label in experiment.labels[1:]
            if (label, reward.name) not in experiment.unlike
            if (first := (experiment.labels[0], reward.name))
        )
    )
    return Comparison(
        experiment=experiment,
        outcomes=outcomes,
        differences=differences,
        hypervolumes=_hypervolumes(experiment, outcomes, draws),
        question=question(experiment),
        answer=answer(experiment, outcomes, differences),
        exploratory=_few_seeds(outcomes, differences),
    )


def _traces(experiment: Experiment, label: str, reward: Measured) -> _Traces:
    runs = experiment.runs_of(label)
    curves = [_values(run, reward, experiment.total_steps) for run in runs]
    threshold = reward.low + experiment.reach * (reward.high - reward.low)
    window = max(1, min(WINDOW, experiment.total_steps))
    crossings = [first_reached(values, threshold, window=window) for values in curves]
    steps = [min(run.steps, experiment.total_steps) for run in runs]
    return _Traces(
        seeds=tuple(run.seed for run in runs),
        begun=np.array([run.steps > 0 for run in runs], dtype=bool),
        ended=np.array([run.state not in OPEN for run in runs], dtype=bool),
        finals=np.array([final(values) for values in curves], dtype=float),
        bests=np.array([best(values) for values in curves], dtype=float),
        times=np.array([c or s for c, s in zip(crossings, steps, strict=True)], dtype=float),
        reached=np.array([crossing is not None for crossing in crossings], dtype=bool),
    )


def _values(run: Run, reward: Measured, total_steps: int) -> Float[np.ndarray, " step"]:
    return run.means.get(reward.name, np.empty(0))[:total_steps]


def _outcome(
    experiment: Experiment, label: str, reward: Measured, traces: _Traces, draws: int
) -> Outcome:
    begun = traces.begun
    return Outcome(
        label=label,
        reward=reward.name,
        runs=int(begun.sum()),
        failed=sum(_ended_early(run, experiment.total_steps) for run in experiment.runs_of(label)),
        final=_average(traces.finals, draws),
        best=_average(traces.bests, draws),
        finals=traces.finals,
        reached=int(traces.reached.sum()),
        survival=kaplan_meier(traces.times[begun], traces.reached[begun]),
    )


def _ended_early(run: Run, total_steps: int) -> bool:
    return run.state == "failed" and 0 < run.steps < total_steps


def _average(values: Float[np.ndarray, " seed"], draws: int) -> Interval:
    count = int(np.count_nonzero(~np.isnan(values)))
    if count < FEWEST_SEEDS:
        return Interval(float(interquartile_mean(values)), nan, nan)
    return bootstrap(interquartile_mean, [values], draws=draws, level=expanded_level(count))


def _difference(
    label: str, baseline_label: str, reward: Measured, ours: _Traces, *, baseline: _Traces
) -> Difference:
    """That of one estimator; its p-values are not corrected yet."""
    theirs = {seed: i for i, seed in enumerate(baseline.seeds) if _comparable(baseline, i)}
    pairs = [
        (i, theirs[seed])
        for i, seed in enumerate(ours.seeds)
        if seed in theirs and _comparable(ours, i)
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


def _comparable(traces: _Traces, i: int) -> bool:
    return bool(traces.ended[i]) and not np.isnan(traces.finals[i])


def _corrected(differences: tuple[Difference, ...]) -> tuple[Difference, ...]:
    finals = holm([d.p_value for d in differences])
    times = holm([d.p_time for d in differences])
    return tuple(
        replace(d, p_adjusted=p, p_time_adjusted=p_time)
        for d, p, p_time in zip(differences, finals, times, strict=True)
    )


def _hypervolumes(
    experiment: Experiment, outcomes: tuple[Outcome, ...], draws: int
) -> tuple[tuple[str, Interval], ...]:
    if len(experiment.rewards) < 2 or experiment.unlike:
        return ()
    finals = {(o.label, o.reward): o.finals for o in outcomes}
    return tuple(
        (
            label,
            _average(
                np.prod([_scaled(finals[label, r.name], r) for r in experiment.rewards], axis=0),
                draws,
            ),
        )
        for label in experiment.labels
    )


def _scaled(values: Float[np.ndarray, " seed"], reward: Measured) -> Float[np.ndarray, " seed"]:
    # Clipped: a mean of rewards at an end of their range can be beside it by rounding.
    return np.clip((values - reward.low) / (reward.high - reward.low), 0.0, 1.0)


def _few_seeds(outcomes: tuple[Outcome, ...], differences: tuple[Difference, ...]) -> bool:
    counts = [o.runs for o in outcomes] + [d.pairs for d in differences]
    return min(counts, default=0) < FEWEST_SEEDS
