r"""Defines the findings that rest on sums over groups: the influence of a reward, and its variance.

With the influence share $s_k$ and the weight share $v_k$ of a reward, a batch, a finished run or a
block of a running one shows that the reward

- is reversed, if $s_k < -0.05$,
- is ignored, if $s_k < v_k / 4$ (a warning only if $s_k < 0.05$),
- is constant, if it does not vary in more than 90 % of its groups,

where the interval of the share must lie below the limit, or for a note below twice the limit. A run
is cut into blocks of 64, 128, 256, ... groups, each of which is tested once, when it is full. All
tests of a run share one probability of a false alarm: the i-th block (from 1) of the m-th size
(from 0) gets

$$ \alpha_{m,i} = \alpha \cdot \frac{6}{\pi^2 (m + 1)^2} \cdot \frac{1}{i (i + 1)}, $$

and these add up to $\alpha$ over an endless run. Short blocks soon find large faults, and long
blocks small ones. A test of a share spends a tenth of its error (`OF_SHARES`).

Four factors measure the cause. Their product is $s_k / v_k$, or 0 if $s_k$ is negative. Each is the
ratio of two shares that differ in one respect. The cause with the smallest factor is named, and any
other below 0.75:

| share | what each reward counts |
|---|---|
| $v$ | $\lvert w_k \rvert$ |
| missing | $\lvert w_k \rvert$ times its share of the rollouts |
| sparse | $\lvert w_k \rvert \sum z_k^2$: also the groups in which it varies |
| opposed | $w_k \sum z_k \sum_l w_l z_l$: also how it is related to the others |
| range, $s$ | the influence: also what the estimator makes of the standard deviations |
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan, log, log1p, nan, pi
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np

from gdpo._text import Setting
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
from gdpo.diagnostics.findings import Thresholds, finding
from gdpo.diagnostics.influence import Influence, Vector
from gdpo.diagnostics.readings import readings_of

LEAST_GROUPS = 64
"""Number of groups in a block of the smallest size, and in a measurement."""

ERROR = 0.025
"""Probability of a false alarm about a reward at the limit: in one check of a batch or of a
finished run, and in all checks of a running one."""

OF_SHARES = 0.1
"""Part of its error that a test of a share spends in a running run, so that a share slightly above
the limit causes no alarm, and errors of the approximation in the tail do no harm."""


@dataclass(frozen=True, slots=True)
class Look:
    """Describes one test."""

    error: float = ERROR
    """Probability of a false alarm."""
    standard_errors: float | None = None
    """By how many standard errors a share must be below its limit, for one of many tests, which
    must hold in the tail, where few varying groups mislead. None: by half of its 95 % interval."""

    @staticmethod
    def at(m: int, i: int) -> "Look":
        """Return the test of the i-th block (from 1) of the m-th size (from 0) of a running run."""
        error = ERROR * 6 / (pi * (m + 1)) ** 2 / (i * (i + 1))
        return Look(error, NormalDist().inv_cdf(1 - error * OF_SHARES))


OF_INFLUENCE = (Kind.REVERSED, Kind.IGNORED)
"""Kinds of findings about a reward's influence share, worst first."""

CONSTANT = (Kind.OUT_OF_REACH, Kind.CONSTANT, Kind.SATURATED)
"""Kinds of findings about a reward that does not vary in most groups."""

OF_SUMS = (Kind.NO_SIGNAL, *OF_INFLUENCE, *CONSTANT)
"""Kinds of findings that rest on sums over groups."""


Ranges: TypeAlias = Mapping[str, Range]


@dataclass(frozen=True, slots=True)
class RewardSums:
    """Stores the sums of one reward. Shares are multiplied by the sign of the weight."""

    name: str
    weight: float
    """Signed share of the weight."""
    share: float
    margin: float
    groups: int
    """Number of groups that the reward applies to."""
    live: int
    """Number of groups in which it varies."""
    std: float
    """Mean standard deviation in the groups in which it varies."""
    mean: float
    """Mean of the group means."""
    present: float
    """Share of the rollouts that have the reward, over the groups in which it has a weight."""
    push: float
    """The influence. Positive: the update raises the reward."""
    wanted: float
    """Share of the weight."""
    zero_variance: float
    """Share of the groups in which it does not vary."""


def reward_of(influence: Influence, name: str, *, margins: bool = False) -> RewardSums:
    """Return the sums of one reward. The margin is computed only with `margins`."""
    sums, k = influence.sums, influence.names.index(name)
    applies, live = float(sums.applies[k]), float(sums.live[k])
    weight = float(sums.weight[k]) / influence.groups
    return RewardSums(
        name=name,
        weight=weight,
        share=float(influence.shares[k]),
        margin=float(influence.margins[k]) if margins else nan,
        groups=int(applies),
        live=int(live),
        std=float(sums.std[k]) / live if live else 0.0,
        mean=float(sums.mean[k]) / applies if applies else nan,
        present=float(sums.present[k]) / (abs(float(sums.weight[k])) or 1.0),
        push=float(sums.influence[k]),
        wanted=abs(weight),
        zero_variance=1 - live / applies if applies else nan,
    )


class Noticed(NamedTuple):
    """Stores what the sums show: a kind, and the reward, or none for the whole batch."""

    kind: Kind
    rewards: tuple[str, ...]
    sure: bool = True
    """Whether there are enough groups to be sure."""


def noticed(
    influence: Influence, look: Look, ranges: Ranges, thresholds: Thresholds
) -> Iterator[Noticed]:
    """Yield what the sums show at this look, at most one kind for each reward.

    `described` decides whether a `CONSTANT` reward is out of reach or learned.
    """
    groups, dead, sums = influence.groups, influence.zero_advantage_groups, influence.sums
    sure = few(round(groups * (1 - dead)), groups, 1 - thresholds.zero_advantage) <= look.error
    if sure or dead >= thresholds.zero_advantage:
        yield Noticed(Kind.NO_SIGNAL, (), sure)
    varying = (1 - thresholds.zero_variance) * sums.applies + 1e-9
    constant = (sums.weight != 0) & (sums.applies > 0) & (sums.live <= varying)
    kinds = _kinds(influence, look, thresholds)
    learned = learned_rewards(influence, ranges, thresholds) if kinds else ()
    for k, name in enumerate(influence.names):
        if sums.weight[k] != 0 and sums.applies[k] == 0:
            sure = few(0, groups, 1 - thresholds.missing) <= ERROR
            yield Noticed(Kind.NEVER_APPLIES, (name,), sure)
        if name in kinds and name not in learned:
            yield Noticed(kinds[name], (name,))
        elif constant[k]:
            chance = few(int(sums.live[k]), int(sums.applies[k]), 1 - thresholds.zero_variance)
            yield Noticed(Kind.CONSTANT, (name,), chance <= look.error)


_LEAST_VARYING = 4
"""Number of groups in which a reward must vary for a finding about its influence."""


_NOTED = 2
"""For a note about a share between 5 % and the limit, the interval must lie below this multiple of
the limit. Such a note affects a verdict only if a setting helps. Which limit is right is open
(research/forks.md, H2)."""


def _kinds(influence: Influence, look: Look, thresholds: Thresholds) -> dict[str, Kind]:
    if influence.groups < LEAST_GROUPS:
        return {}
    wanted = influence.weight_shares
    found: dict[str, Kind] = {}
    shares, trained = influence.shares, influence.sums.weight != 0
    among = trained & (influence.sums.live >= _LEAST_VARYING)
    for kind, below in reversed(thresholds.limits(wanted).items()):
        limit = np.broadcast_to(below, wanted.shape)
        if not np.any(among & (shares < limit)):
            continue
        margin = influence.margins
        if look.standard_errors is not None:
            own = _variance_at(influence, limit, look.standard_errors)
            margin = look.standard_errors * influence.errors(limit, own)
        shown = among & (shares + margin < limit)
        if kind is Kind.IGNORED and look.standard_errors is None:
            noted = (shares >= thresholds.least_share) & (shares < limit)
            shown |= among & noted & (shares + margin < _NOTED * limit)
        found |= {influence.names[k]: kind for k in np.flatnonzero(shown).tolist()}
    return found


def as_measured(of: Noticed, influence: Influence, thresholds: Thresholds) -> Noticed | None:
    """Return the kind that the measured groups show: the noticed one, a milder one, or None."""
    kinds = OF_INFLUENCE[OF_INFLUENCE.index(of.kind) :] if of.kind in OF_INFLUENCE else (of.kind,)
    measured = (of._replace(kind=kind) for kind in kinds)
    return next((each for each in measured if holds(each, influence, thresholds)), None)


def _variance_at(influence: Influence, limit: Vector, c: float) -> Vector:
    r"""Return the factor of a reward's own variance if its share were at the limit.

    If a rare reward happened to vary in few groups, its share and variance are too small. If its
    share $s$ were at the limit $\ell$ because it varied in more groups, the variance of $U_k$ would
    be $\ell (1 - s) / (s (1 - \ell))$ times as large. Wilson's interval, of $c$ standard errors,
    bounds the number of varying groups: $n + c^2 / 2 + c \sqrt{n + c^2 / 4}$.
    """
    live = np.maximum(influence.sums.live, 1)
    most = np.minimum(live + c**2 / 2 + c * np.sqrt(live + c**2 / 4), influence.sums.applies)
    share = np.maximum(influence.shares, 1e-9)
    at_limit = limit * (1 - share) / (share * (1 - limit))
    return np.maximum(np.minimum(at_limit, most / live), 1.0)


_TINY = 0.01
"""A declared range does not count if a reward varies by less than this part of it."""


def learned_rewards(
    influence: Influence, ranges: Ranges, thresholds: Thresholds
) -> tuple[str, ...]:
    """Return the rewards at the good end of their range. They no longer need influence.

    If a reward varies in most of its groups, neither an observed range, which an outlier stretches,
    nor a declared range far wider than the variation counts.
    """
    found: list[str] = []
    for k in np.flatnonzero(influence.sums.weight):
        reward = reward_of(influence, influence.names[k])
        known = ranges.get(reward.name, Range())
        place = known.place(reward.mean, reward.weight)
        fits = known.declared and reward.std >= _TINY * (known.high - known.low)
        if place is None or not (fits or reward.zero_variance >= 0.5):
            continue
        if thresholds.top <= place <= 1:
            found.append(reward.name)
    return tuple(found)


def holds(of: Noticed | Finding, influence: Influence, thresholds: Thresholds) -> bool:
    """Return whether the numbers of these groups meet the condition of the kind."""
    if not of.rewards:
        return influence.zero_advantage_groups >= thresholds.zero_advantage
    if of.rewards[0] not in influence.names:
        return False
    reward = reward_of(influence, of.rewards[0])
    if reward.weight == 0:
        return False
    if of.kind is Kind.NEVER_APPLIES:
        return reward.groups == 0
    if of.kind in CONSTANT:
        return reward.zero_variance >= thresholds.zero_variance
    return reward.share < thresholds.limits(reward.wanted)[of.kind]


def ended(of: Noticed | Finding, last: Influence, thresholds: Thresholds) -> bool:
    """Return whether the last groups rule out a finding, or any in `OF_INFLUENCE` of its reward."""
    if of.kind not in OF_INFLUENCE or of.rewards[0] not in last.names:
        return not holds(of, last, thresholds)
    reward = reward_of(last, of.rewards[0], margins=True)
    return reward.share - reward.margin >= thresholds.ignored * reward.wanted


def findings_at_once(
    influence: Influence,
    ranges: Ranges,
    thresholds: Thresholds,
    *,
    hidden: Collection[tuple[Kind, tuple[str, ...]]],
    since: int | None = None,
    sizes: Ranges | None = None,
) -> Iterator[Finding]:
    """Yield the findings of a batch or of the steps of a finished run.

    With too few groups, a finding is a note. A reward whose signal is lost to rounding
    (`BELOW_RESOLUTION` is in `hidden`) is not also constant. `hidden` also contains the other kinds
    that are left out, with their rewards. `sizes` are the ranges that only tell the sizes of the
    rewards. Default: `ranges`.
    """
    found = noticed(influence, Look(), ranges, thresholds)
    for each in sorted(found, key=lambda of: not of.sure):
        lost = each.kind in CONSTANT and (Kind.BELOW_RESOLUTION, each.rewards) in hidden
        if not lost and (each.kind, each.rewards) not in hidden:
            yield described(each, influence, ranges, thresholds, since=since, sizes=sizes)


def described(
    of: Noticed,
    influence: Influence,
    ranges: Ranges,
    thresholds: Thresholds,
    *,
    since: int | None = None,
    sizes: Ranges | None = None,
) -> Finding:
    """Return the finding with the numbers of these sums.

    `since` is the number of the first step with these groups, or None for the whole run.
    """
    severity = Severity.WARNING if of.sure else Severity.NOTE
    evidence = {"groups": float(influence.groups)}
    if since is not None:
        evidence["from_step"] = float(since)
    if of.kind is Kind.NEVER_APPLIES:
        return finding(of.kind, of.rewards, {"missing": 1.0, **evidence})
    if not of.rewards:
        share = influence.zero_advantage_groups
        remedy = "all samples of such a group earn the same"
        if not np.any(influence.sums.weight):
            remedy = "give at least one reward a weight other than 0"
        numbers = {"zero_advantage_groups": share, **evidence}
        shown = percent(share)
        return finding(of.kind, (), numbers, severity=severity, share=shown, remedy=remedy)
    reward = reward_of(influence, of.rewards[0], margins=True)
    if not isnan(reward.share):
        evidence["weight_share"] = reward.wanted
        evidence["influence_share"] = reward.share
        evidence["influence_margin"] = reward.margin
    evidence["zero_variance_groups"] = reward.zero_variance
    if of.kind in OF_INFLUENCE:
        return _less_effect(of.kind, reward, influence, sizes or ranges, thresholds, evidence)
    evidence["groups"] = float(reward.groups)
    known = ranges.get(reward.name, Range())
    return _constant(reward, known, thresholds, severity, evidence)


def severity_of(kind: Kind, influence: Influence, name: str, thresholds: Thresholds) -> Severity:
    """Return the severity of a finding about the influence of a reward."""
    k, weights = influence.names.index(name), influence.weight_shares
    small = weights[k] < thresholds.nudge * np.max(weights)
    noted = kind is Kind.IGNORED and influence.shares[k] >= thresholds.least_share
    return Severity.NOTE if noted or small else Severity.WARNING


def _less_effect(
    kind: Kind,
    reward: RewardSums,
    influence: Influence,
    ranges: Ranges,
    thresholds: Thresholds,
    evidence: Mapping[str, float],
) -> Finding:
    severity = severity_of(kind, influence, reward.name, thresholds)
    factors = _factors(influence, reward.name)
    causes = sorted(factors, key=factors.__getitem__)
    causes = tuple(cause for cause in causes if factors[cause] < _CAUSE) or tuple(causes[:1])
    trained = [influence.names[k] for k in np.flatnonzero(influence.sums.weight)]
    others = (reward_of(influence, name) for name in trained if name != reward.name)
    most = max(others, key=lambda other: other.share / other.wanted, default=None)
    what = "is ignored" if severity is Severity.WARNING else "has less influence than its weight"
    share = interval(reward.share, reward.margin)
    if kind is Kind.REVERSED:
        way, sign = ("up", "negative") if reward.push > 0 else ("down", "positive")
        what = f"is pushed {way}, although its weight is {sign}"
    else:
        share = f"{percent(reward.wanted)} of the weight, but {share}"
    # What follows from the first cause: settings that weigh the rewards, or a fact.
    readings = readings_of(influence, ranges) if causes[0] is Cause.RANGE else ()
    return finding(
        kind,
        (reward.name,),
        {
            **evidence,
            **{f"factor_{cause.value}": factor for cause, factor in factors.items()},
        },
        severity=severity,
        causes=causes,
        what=what,
        share=share,
        named=" and ".join(cause.value for cause in causes),
        reasons=", and ".join(_reason(cause, reward, most) for cause in causes),
        remedy="; ".join(map(str, readings)) or _FACTS[causes[0]],
    )


_CAUSE = 0.75
"""A cause is named if its factor is below this value."""


def _factors(influence: Influence, name: str) -> dict[Cause, float]:
    sums, k = influence.sums, influence.names.index(name)
    weights = np.abs(sums.weight)
    rungs = {
        Cause.MISSING: sums.present,
        Cause.SPARSE: sums.live_weight,
        Cause.OPPOSED: np.sign(sums.weight) * sums.asked,
        Cause.RANGE: np.sign(sums.weight) * sums.influence,
    }
    shares: list[float] = []
    for values in (weights, *rungs.values()):
        total = float(np.sum(np.abs(values)))
        shares.append(float(values[k]) / total if total > 0 else 0.0)
    return {
        cause: max(after, 0.0) / before if before > 0 else 1.0
        for cause, before, after in zip(rungs, shares, shares[1:], strict=False)
    }


def _reason(cause: Cause, reward: RewardSums, most: RewardSums | None) -> str:
    if cause is Cause.MISSING:
        return f"it is missing from {percent(1 - reward.present)} of the rollouts"
    if cause is Cause.SPARSE:
        beside = "" if most is None else f" (`{most.name}`: {percent(1 - most.zero_variance)})"
        varies = percent(1 - reward.zero_variance)
        return f"`{reward.name}` varies in {varies} of its groups{beside}"
    if cause is Cause.OPPOSED or most is None:
        return "other rewards pull against it"
    ratio = most.std / reward.std if reward.std else inf
    if ratio > 1 / _CAUSE:
        return f"the standard deviation of `{most.name}` within a group is {times(ratio)} as large"
    return f"the advantages follow `{most.name}` more closely"


_FACTS = {
    Cause.MISSING: "check why it is missing",
    Cause.SPARSE: "groups in which all samples get the same value teach nothing about it",
    Cause.OPPOSED: "decide which of them matters more: what raises one lowers the other",
    Cause.RANGE: "check that the advantages belong to these rewards",
}

_UNEARNED = "samples that earn it are too rare for the policy to learn it"


CHECK = "check the function first: print what it gives to three rollouts"
"""What to do about a reward that has never varied, before anything else."""


def _constant(
    reward: RewardSums,
    known: Range,
    thresholds: Thresholds,
    severity: Severity,
    evidence: Mapping[str, float],
) -> Finding:
    place = known.place(reward.mean, reward.weight)
    end, other = ("top", "bottom") if reward.weight > 0 else ("bottom", "top")
    kind, where = Kind.CONSTANT, "so it gives no signal"
    remedy, setting = "it does not train the policy", None
    if place is None:
        setting = Setting.RANGE
        remedy = (
            f"what follows depends on its range. At its best value, {reward.mean:.3g} is "
            f"learned. At its worst, {_UNEARNED}. Declare the range of the reward"
        )
    elif not 0 <= place <= 1:
        where = f"outside its declared range [{known.low:.3g}, {known.high:.3g}]"
        setting, remedy = Setting.RANGE, "fix the reward function, or declare the actual range"
    elif place >= thresholds.top:
        kind = Kind.SATURATED
        severity, best = Severity.NOTE, "highest" if reward.weight > 0 else "lowest"
        end = f"the {end} of its range" if known.declared else f"the {best} value of this run"
    elif place <= thresholds.bottom:
        kind, end, remedy = Kind.OUT_OF_REACH, other, _UNEARNED
    if not reward.live and kind is not Kind.SATURATED:
        remedy = f"{CHECK}. If it is right, {remedy}"
    return finding(
        kind,
        (reward.name,),
        {**evidence, **({} if place is None else {"saturation": place})},
        severity=severity,
        share=percent(reward.zero_variance),
        mean=f"{reward.mean:.3g}",
        end=end,
        where=where,
        remedy=remedy,
        setting=setting,
    )


def few(count: int, of: int, share: float) -> float:
    r"""Return the probability of at most this count of events, if each has this probability.

    $$ P(X \le c) = \sum_{i=0}^{c} \binom{n}{i} p^i (1 - p)^{n - i} $$

    >>> few(0, 64, 0.1) < 0.0012, round(few(1, 2, 0.5), 2), few(3, 3, 0.1)
    (True, 0.75, 1.0)
    """
    i = np.arange(1, count + 1)
    steps = np.log((of - i + 1) / i) + log(share) - log1p(-share)
    terms = of * log1p(-share) + np.concatenate([[0.0], np.cumsum(steps)])
    return float(min(1.0, np.sum(np.exp(terms))))
