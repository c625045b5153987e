"""Says what means and standard deviations alone tell about each reward of a run.

Findings have the names and limits of `gdpo.diagnostics`. Without rollouts, they only may be true.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite, isnan, nan, sqrt

import numpy as np

from gdpo._student import student_quantile
from gdpo.analysis.logs.rewards import LoggedRun, Series
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

_TENTH, _LASTING = 10, 5
"""The start and the end of a run are a tenth of its steps each. A reward counts as constant if it
is constant in the last tenth, and in at least 5 steps."""
_NEAR_ZERO = 0.1
"""A standard deviation is near 0 if it is below this fraction of the largest one of the run. If
the reward is 0 or 1 and was once earned by half of the rollouts, it is then earned by more than
99.7 % or fewer than 0.3 %."""
_ROUNDING = 1e-6
"""Relative rounding error of a mean in float32, with which trainers compute deviations."""
_LIMITS = Thresholds()
_LEAST = 15
"""Smallest number of steps for a trend."""


@dataclass(frozen=True, slots=True)
class RewardTrend:
    """Stores what the log of a run tells about one reward. NaN: unknown."""

    name: str
    weight: float
    first: float
    """Mean over the first tenth of the logged steps."""
    last: float
    """Mean over the last tenth of the logged steps."""
    change: float
    """Mean over the last third of the logged steps, minus that over the first third."""
    margin: float
    """Half-width of the 95 % confidence interval of `change`. Infinite or NaN with too few
    steps."""
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
    """Stores what the log of a run tells."""

    run: LoggedRun
    rewards: tuple[RewardTrend, ...]
    within_groups: bool
    """Whether the standard deviations are over the samples of a prompt, not over the batch."""
    findings: tuple[Finding, ...]


def trends_of(
    run: LoggedRun,
    *,
    weights: Mapping[str, float],
    low: Mapping[str, float],
    high: Mapping[str, float],
) -> RunTrends:
    """Return what the log of a run tells about its rewards.

    A reward without a weight has weight 1, and `low` and `high` are its range, where known.
    """
    ranges = {name: Range(low.get(name, nan), high.get(name, nan)) for name in run.rewards}
    within = all("group_std" in of for of in run.rewards.values())
    stds = {n: of.get("group_std" if within else "std") for n, of in run.rewards.items()}
    sizes = {n: abs(weights.get(n, 1.0)) * _mean(std) for n, std in stds.items()}
    all_weights = sum(abs(weights.get(name, 1.0)) for name in stds)
    rewards = tuple(
        RewardTrend(
            name,
            weights.get(name, 1.0),
            _mean(_ends(of["mean"])[0]),
            _mean(_ends(of["mean"])[1]),
            *trend(of["mean"]),
            _mean(stds[name]),
            _mean(None if (std := stds[name]) is None else _ends(std)[1]),
            _ratio(sizes[name], sum(sizes.values())),
            _ratio(abs(weights.get(name, 1.0)), all_weights),
            _mean(of.get("zero_variance_groups")),
            _mean(of.get("influence_share")),
        )
        for name, of in run.rewards.items()
    )
    found = [f for reward in rewards for f in _constant(reward, stds[reward.name], ranges)]
    found += [f for n, of in run.rewards.items() if stds[n] is None for f in _still(n, of["mean"])]
    at_rest = {name for finding in found for name in finding.rewards}
    at_rest |= {r.name for r in rewards if (_place(r, ranges) or 0) >= _LIMITS.top}
    found += _effects([reward for reward in rewards if reward.name not in at_rest])
    found += _no_signal(run)
    return RunTrends(run, rewards, within, tuple(sorted(found, key=lambda f: f.rank)))


def trend(values: Series) -> tuple[float, float]:
    r"""Return the change from the first to the last third, and the half-width of its 95 % interval.

    The noise is measured around a straight line through each third, because a reward often rises
    early and then stays. Neighbouring steps are alike, so n steps count as
    $n_e = n (1 - \rho) / (1 + \rho)$ independent values (Santer et al. 2000, "Statistical
    significance of trends"), with the lag-1 autocorrelation ρ of the residuals. Residuals around a
    line in m values make ρ too small by about $(2 + 4 \rho) / m$, which is corrected. The
    half-width is infinite if too few independent values remain, and both are NaN with fewer than 15
    values.
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


def _ends(values: Series) -> tuple[Series, Series]:
    known = values[~np.isnan(values)]
    count = max(1, len(known) // _TENTH)
    return known[:count], known[-count:]


def _mean(values: Series | None) -> float:
    known = np.zeros(0) if values is None else values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else nan


def _constant(
    reward: RewardTrend, std: Series | None, ranges: Mapping[str, Range]
) -> Iterator[Finding]:
    known = np.zeros(0) if std is None else std[~np.isnan(std)]
    count = max(_LASTING, len(known) // _TENTH)
    if reward.weight == 0 or len(known) < _LASTING:
        return
    end, largest = float(np.max(known[-count:])), float(np.max(known))
    low, high, _ = ranges[reward.name]
    rounding = _ROUNDING * max(abs(reward.last), 1e-30)
    near = _NEAR_ZERO * largest if isnan(high - low) else _LIMITS.tiny_std * (high - low)
    if end > max(rounding, near):
        return
    whole = largest <= rounding
    is_zero = "0" if end <= rounding else f"at most {end:.2g}"
    when = "in all logged steps" if whole else f"in the last {min(count, len(known))} logged steps"
    what = (
        f"`{reward.name}` is constant: its standard deviation is {is_zero} {when}, at a mean of "
        f"{reward.last:.3g}"
    )
    kind, severity = Kind.CONSTANT, Severity.WARNING if whole else Severity.NOTE
    place, remedy = _place(reward, ranges), _CHANGE
    end_of, other = ("top", "bottom") if reward.weight > 0 else ("bottom", "top")
    if place is None:
        remedy = (
            f"if {reward.last:.3g} is its maximum, it is learned: keep it. If it is its minimum, "
            "the policy never earns it: use easier prompts or partial credit. Pass --low and "
            "--high to tell them apart"
        )
    elif place >= _LIMITS.top:
        kind, severity, remedy = Kind.SATURATED, Severity.NOTE, _KEEP
        what += f", the {end_of} of its range. It is learned, and gives no further signal"
    elif place <= _LIMITS.bottom:
        kind, severity, remedy = Kind.OUT_OF_REACH, Severity.WARNING, _EASIER
        what += f", the {other} of its range. The policy almost never earns it"
    evidence = {"mean": reward.last, "std": reward.last_std}
    yield Finding(kind, severity, (reward.name,), what, remedy, evidence)


_CHANGE = "it gives no signal: change it so that completions get different values"
_KEEP = "no action needed: keep the reward, so that the policy keeps what it learned"
_EASIER = "use easier prompts, larger groups or partial credit, or warm-start the policy"


def _place(reward: RewardTrend, ranges: Mapping[str, Range]) -> float | None:
    return ranges[reward.name].place(reward.last, reward.weight)


def _still(name: str, means: Series) -> Iterator[Finding]:
    """Yield a finding if the mean of a reward, whose deviations are unknown, never changes."""
    known = means[~np.isnan(means)]
    if len(known) < _LASTING or float(np.ptp(known)) > _ROUNDING * float(np.max(np.abs(known))):
        return
    yield Finding(
        Kind.CONSTANT,
        Severity.NOTE,
        (name,),
        f"`{name}` may be constant: its mean is {known[-1]:.3g} in all logged steps",
        "record rollouts to see whether it varies within a group",
        {"mean": float(known[-1])},
    )


def _effects(rewards: list[RewardTrend]) -> Iterator[Finding]:
    """Yield a finding for each reward that may have less effect than its weight.

    The rule is that of `diagnose`, without an interval. If gdpo logged no influence shares, the
    share of weight × std stands for them: with independent rewards whose sum is normalized, as in
    GRPO, the two are equal.
    """
    rewards = [reward for reward in rewards if reward.weight and isfinite(reward.std)]
    if len(rewards) < 2 or not any(reward.std for reward in rewards):
        return
    largest = max(rewards, key=lambda reward: reward.std_share)
    for reward in rewards:
        logged = isfinite(reward.influence_share)
        share = reward.influence_share if logged else reward.std_share
        limits = _LIMITS.effect(reward.weight_share)
        kind = next((kind for kind, limit in limits.items() if share < limit), None)
        if kind is None:
            continue
        what = f"{percent(share)} of the sum of weight × std. The weight × std of `{largest.name}` "
        what += f"is {times(_ratio(largest.std_share, reward.std_share))} as large"
        if logged:
            what = f"on average {interval(share, nan)} of the logged influence"
        yield Finding(
            kind,
            Severity.WARNING,
            (reward.name,),
            f"`{reward.name}` may {_MAY[kind]}: it has {percent(reward.weight_share)} of the "
            f"weight, but {what}",
            f"record rollouts to see its influence and what helps. {_DEPENDS}",
            {
                "influence_share" if logged else "std_share": share,
                "weight_share": reward.weight_share,
            },
            () if logged else (Cause.RANGE,),
        )


_MAY = {
    Kind.REVERSED: "be pushed against its weight",
    Kind.IGNORED: "be ignored",
    Kind.UNDER_WEIGHTED: "have less effect than its weight",
}

_DEPENDS = (
    "An estimator that normalizes each reward (gdpo) does not depend on the std; others, such as "
    "GRPO, add the rewards as they are"
)


def _no_signal(run: LoggedRun) -> Iterator[Finding]:
    logged = run.batch.get("zero_advantage_groups")
    share = nan if logged is None else _mean(_ends(logged)[1])
    if share >= _LIMITS.zero_advantage:
        yield Finding(
            Kind.NO_SIGNAL,
            Severity.WARNING,
            (),
            f"{percent(share)} of the groups have zero advantage at the end of the run, so they "
            "train nothing",
            "change the prompts, or draw more samples per prompt",
            {"zero_advantage_groups": share},
        )
