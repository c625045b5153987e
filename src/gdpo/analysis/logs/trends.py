"""Reports what logged means and standard deviations show about each reward.

Findings have the names and limits of `gdpo.diagnostics`. Without rollouts, they are not certain.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, nan, sqrt

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo._shapes import Float
from gdpo._student import student_quantile
from gdpo.analysis.logs.rows import Log, fields_of
from gdpo.analysis.logs.sources import SOURCES
from gdpo.analysis.steps import end_means, known_mean
from gdpo.diagnostics import Thresholds
from gdpo.diagnostics.diagnosis import (
    Cause,
    Finding,
    Kind,
    Range,
    Severity,
    interval,
    percent,
    times,
)
from gdpo.diagnostics.findings import finding, in_order

_OF_BATCH = {
    "frac_reward_zero_std": "zero_advantage_groups",
    "diagnostics/zero_advantage_groups": "zero_advantage_groups",
    "gdpo/zero_advantage_groups": "zero_advantage_groups",
    "diagnostics/warnings": "warnings",
    "gdpo/warnings": "warnings",
}
_EQUAL = 1e-4
"""Relative difference below which two logged values count as the same. TensorBoard rounds to
float32."""

Series = Float[np.ndarray, " step"]
_TENTH, _LASTING = 10, 5
"""The start and the end of a run are a tenth of its steps each. A reward counts as constant if it
is constant in the last tenth, and in at least 5 steps."""
_NEAR_ZERO = 0.1
"""A standard deviation is near 0 if it is below this fraction of the largest one of the run. A
reward of 0 or 1 that half of the rollouts once earned is then earned by over 99.7 % or under 0.3 %.
"""
_ROUNDING = 1e-6
"""Relative rounding error of a mean in float32, with which trainers compute deviations."""
_TINY = 0.01
"""Part of its range below which a standard deviation counts as 0."""
_UNLOGGED = np.zeros(0)
_LIMITS = Thresholds()
_LEAST = 15
"""Smallest number of steps for a trend."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRun:
    """Stores the numbers that a run logged for each reward. NaN: not logged in this step."""

    log: Log
    steps: Float[np.ndarray, " step"]
    rewards: Mapping[str, Mapping[str, Series]]
    """Arrays by reward and by name, such as `std`. There is always a `mean`."""
    batch: Mapping[str, Series]
    """`zero_advantage_groups` and `warnings`, if they were logged."""
    copies: tuple[Log, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class RewardTrend:
    """Stores what the log of a run shows about one reward. NaN: unknown."""

    name: str
    weight: float
    first: float
    """Mean over the first tenth of the logged steps."""
    last: float
    """Mean over the last tenth of the logged steps."""
    change: float
    """Mean over the last third of the logged steps, minus that over the first third."""
    margin: float
    """Half-width of the 95 % confidence interval of `change`. Infinite or NaN: too few steps."""
    std: float
    last_std: float
    """Standard deviation, averaged over the last tenth of the logged steps."""
    std_share: float
    """Share of |weight| · std in its sum over the rewards."""
    weight_share: float
    zero_variance_groups: float
    """The value that gdpo logged, averaged over the logged steps."""
    influence_share: float
    """The value that gdpo logged, averaged over the logged steps."""


@dataclass(frozen=True, slots=True)
class RunTrends:
    """Stores what the log of a run shows."""

    run: LoggedRun
    rewards: tuple[RewardTrend, ...]
    within_groups: bool
    """Whether the standard deviations are over the samples of a prompt, not over the batch."""
    findings: tuple[Finding, ...]


def logged_runs(logs: Sequence[Log], names: Sequence[str] | None = None) -> list[LoggedRun]:
    """Return the runs that logged rewards, without copies, those with the most steps first.

    With `names`, only these rewards are returned. A name that no run has raises a ConfigError.
    """
    runs: list[LoggedRun] = []
    found = [run for run in map(_run, logs) if run.rewards]
    for run in sorted(found, key=lambda run: (-len(run.steps), SOURCES.index(run.log.source))):
        twin = next((i for i, other in enumerate(runs) if _is_copy(run, other)), None)
        if twin is None:
            runs.append(run)
        else:
            runs[twin] = replace(runs[twin], copies=(*runs[twin].copies, run.log))
    if names is None:
        return runs
    known = [name for run in runs for name in run.rewards]
    refuse_unknown(names if runs else (), known, "--rewards: unknown reward")
    selected = (
        replace(run, rewards={n: run.rewards[n] for n in names if n in run.rewards}) for run in runs
    )
    return [run for run in selected if run.rewards]


def _run(log: Log) -> LoggedRun:
    """Return the numbers of a log, without the steps in which it has none."""
    keys = {key for row in log.rows.values() for key in row}
    of_reward = fields_of(keys)
    found: dict[str, dict[str, Series]] = {}
    batch: dict[str, Series] = {}
    nothing = np.full(len(log.rows), nan)
    for place, (_, row) in enumerate(sorted(log.rows.items())):
        for key, value in row.items():
            if (known := of_reward.get(key)) is not None:
                of, name = found.setdefault(known[0], {}), known[1]
            elif name := _OF_BATCH.get(key.removeprefix("train/"), ""):
                of = batch
            else:
                continue
            number = float(value) if abs(value) < 1e300 else nan
            of.setdefault(name, nothing.copy())[place] = number
    rewards = {name: {"mean": nothing, **of} for name, of in found.items()}
    logged = [values for of in rewards.values() for values in of.values()]
    kept = ~np.all(np.isnan(logged), axis=0) if logged else np.ones(len(nothing), bool)
    return LoggedRun(
        log,
        np.array(sorted(log.rows), float)[kept],
        {name: {what: v[kept] for what, v in of.items()} for name, of in rewards.items()},
        {name: values[kept] for name, values in batch.items()},
    )


def _is_copy(run: LoggedRun, longer: LoggedRun) -> bool:
    if not set(run.rewards) <= set(longer.rewards) or not np.isin(run.steps, longer.steps).all():
        return False
    places = np.searchsorted(longer.steps, run.steps)
    return all(
        field in longer.rewards[name]
        and np.allclose(values, longer.rewards[name][field][places], _EQUAL, 1e-9, equal_nan=True)
        for name, of in run.rewards.items()
        for field, values in of.items()
    )


def trends_of(
    run: LoggedRun,
    *,
    weights: Mapping[str, float],
    low: Mapping[str, float],
    high: Mapping[str, float],
) -> RunTrends:
    """Return what the log of a run shows about its rewards.

    A reward without a weight has weight 1. `low` and `high` are the known ranges.
    """
    ranges = {name: Range(low.get(name, nan), high.get(name, nan)) for name in run.rewards}
    within = all("group_std" in of for of in run.rewards.values())
    key = "group_std" if within else "std"
    stds = {name: of.get(key, _UNLOGGED) for name, of in run.rewards.items()}
    sizes = {n: abs(weights.get(n, 1.0)) * known_mean(std) for n, std in stds.items()}
    all_weights = sum(abs(weights.get(name, 1.0)) for name in stds)
    rewards = tuple(
        RewardTrend(
            name,
            weights.get(name, 1.0),
            *end_means(of["mean"]),
            *trend(of["mean"]),
            known_mean(stds[name]),
            end_means(stds[name])[1],
            _ratio(sizes[name], sum(sizes.values())),
            _ratio(abs(weights.get(name, 1.0)), all_weights),
            known_mean(of.get("zero_variance_groups", _UNLOGGED)),
            known_mean(of.get("influence_share", _UNLOGGED)),
        )
        for name, of in run.rewards.items()
    )
    found: list[Finding] = []
    for reward in rewards:
        std = stds[reward.name]
        still = _still(reward.name, run.rewards[reward.name]["mean"])
        found += _constant(reward, std, ranges[reward.name]) if len(std) else still
    at_rest = {name for each in found for name in each.rewards}
    for reward in rewards:
        place = ranges[reward.name].place(reward.last, reward.weight)
        at_rest |= {reward.name} if (place or 0) >= _LIMITS.top else set[str]()
    found += _effects([reward for reward in rewards if reward.name not in at_rest])
    dead = end_means(run.batch.get("zero_advantage_groups", _UNLOGGED))[1]
    if dead >= _LIMITS.zero_advantage:
        numbers = {"zero_advantage_groups": dead}
        found.append(finding(Kind.NO_SIGNAL, (), numbers, logged=True, share=percent(dead)))
    return RunTrends(run, rewards, within, in_order(found))


def trend(values: Series) -> tuple[float, float]:
    r"""Return the change from the first to the last third, and the half-width of its 95 % interval.

    The noise is measured around a line through each third, because rewards often rise early and
    then plateau. Neighbouring steps are alike, so n steps count as $n_e = n (1 - \rho) / (1 +
    \rho)$ independent values (Santer et al. 2000, "Statistical significance of trends"), with the
    lag-1 autocorrelation ρ of the residuals, which a line in m values makes too small by about $(2
    + 4 \rho) / m$. The half-width is infinite if too few independent values remain, and both are
    NaN with fewer than 15 values.
    """
    known = values[~np.isnan(values)]
    count, third = len(known), len(known) // 3
    if count < _LEAST:
        return nan, nan
    parts = known[:third], known[third : count - third], known[count - third :]
    change = float(np.mean(parts[2]) - np.mean(parts[0]))
    residuals = [_around_line(part) for part in parts]
    square = sum(float(r @ r) for r in residuals)
    if square <= count * (_ROUNDING * float(np.max(np.abs(known)))) ** 2:
        return change, 0.0
    likeness = sum(float(r[1:] @ r[:-1]) for r in residuals) / square
    likeness = min(max((third * likeness + 2) / (third - 4), 0.0), 0.999)
    worth = (1 - likeness) / (1 + likeness)
    freedom = count * worth - 2 * len(parts)
    if freedom < 1:
        return change, inf
    variance = square * worth / freedom
    return change, student_quantile(0.975, int(freedom)) * sqrt(2 * variance / (third * worth))


def _around_line(values: Series) -> Series:
    place = np.arange(len(values)) - (len(values) - 1) / 2
    centered = values - np.mean(values)
    return centered - place * (place @ centered) / (place @ place)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else nan


def _constant(reward: RewardTrend, std: Series, known: Range) -> Iterator[Finding]:
    stds = std[~np.isnan(std)]
    if reward.weight == 0 or len(stds) < _LASTING:
        return
    count = min(max(_LASTING, len(stds) // _TENTH), len(stds))
    end, largest, width = float(np.max(stds[-count:])), float(np.max(stds)), known.high - known.low
    rounding = _ROUNDING * max(abs(reward.last), 1e-30)
    if end > max(rounding, _NEAR_ZERO * largest if isnan(width) else _TINY * width):
        return
    whole, last = largest <= rounding, f"{reward.last:.3g}"
    when = "in all logged steps" if whole else f"in the last {count} logged steps"
    place = known.place(reward.last, reward.weight)
    kind = Kind.CONSTANT if place is None else _LIMITS.at_rest(place)
    remedy = "it gives no signal: change it so that completions get different values"
    if place is None:
        remedy = (
            f"if {last} is its maximum, it is learned: keep it. If it is its minimum, the policy "
            "never earns it: use easier prompts or partial credit. Pass --low and --high to tell "
            "them apart"
        )
    yield finding(
        kind,
        (reward.name,),
        {"mean": reward.last, "std": reward.last_std},
        severity=Severity.NOTE if kind is Kind.CONSTANT and not whole else None,
        logged=True,
        is_="is",
        number="standard deviation is " + ("0" if end <= rounding else f"at most {end:.2g}"),
        when=f"{when}, at a mean of {last}",
        end="top" if (kind is Kind.SATURATED) == (reward.weight > 0) else "bottom",
        remedy=remedy,
    )


def _still(name: str, means: Series) -> Iterator[Finding]:
    """Yield a finding if the mean of a reward with unknown deviations never changes."""
    known = means[~np.isnan(means)]
    if len(known) < _LASTING or float(np.ptp(known)) > _ROUNDING * float(np.max(np.abs(known))):
        return
    yield finding(
        Kind.CONSTANT,
        (name,),
        {"mean": float(known[-1])},
        severity=Severity.NOTE,
        logged=True,
        is_="may be",
        number=f"mean is {known[-1]:.3g}",
        when="in all logged steps",
        remedy="record rollouts to see whether it varies within a group",
    )


def _effects(rewards: Sequence[RewardTrend]) -> Iterator[Finding]:
    """Yield a finding for each reward that may have less influence than its weight.

    The rule is that of `diagnose`, without an interval. Without logged influence shares, the share
    of weight × std is used: for independent rewards under GRPO, the two are equal.
    """
    rewards = [reward for reward in rewards if reward.weight and isfinite(reward.std)]
    if len(rewards) < 2 or not any(reward.std for reward in rewards):
        return
    largest = max(rewards, key=lambda reward: reward.std_share)
    for reward in rewards:
        logged, wanted = isfinite(reward.influence_share), reward.weight_share
        share = reward.influence_share if logged else reward.std_share
        kinds = [kind for kind, limit in _LIMITS.effect(wanted).items() if share < limit]
        if logged:
            what = f"on average {interval(share, nan)} of the logged influence"
        else:
            ratio = times(_ratio(largest.std_share, reward.std_share))
            what = f"{percent(share)} of the sum of weight × std. The weight × std of "
            what += f"`{largest.name}` is {ratio} as large"
        for kind in kinds[:1]:
            yield finding(
                kind,
                (reward.name,),
                {"influence_share" if logged else "std_share": share, "weight_share": wanted},
                severity=_LIMITS.severity(kind, share),
                logged=True,
                remedies=(() if logged else (Cause.RANGE,), ()),
                weight=percent(wanted),
                what=what,
            )
