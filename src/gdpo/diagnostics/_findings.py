"""Defines the rules that turn the numbers of a diagnosis into findings."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, sqrt
from typing import NamedTuple

from gdpo.diagnostics.diagnosis import (
    Diagnosis,
    Finding,
    Kind,
    RewardDiagnosis,
    Severity,
    interval,
    percent,
    times,
)
from gdpo.diagnostics.influence import Influence


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Stores the thresholds of all findings.

    The defaults avoid false alarms on healthy batches, even if some problems are missed.
    docs/reference/diagnostics.md lists the measured false-alarm rates.
    """

    zero_variance: float = 0.9
    """Minimum share of zero-variance groups at which a reward counts as constant."""
    few_groups: int = 7
    """Minimum number of groups for a finding about a share of groups to be a warning instead of a
    note. If a reward varies in half of all groups, it is constant by chance in all groups of 1.6 %
    of the batches with 6 groups, and of 0.8 % of the batches with 7 groups."""
    groups_over_steps: int = 20
    """Minimum number of groups for the same warning about a share over several small batches. If a
    reward varies in 30 % of all groups, it is constant by chance in 90 % of the groups of a run at
    some step in 2.9 % of the runs of 200 steps with one group."""
    below_resolution: float = 0.1
    """The lost signal is reported if at least this share of groups has values that differ only by
    rounding. A smaller share loses little signal, and a few such groups are normal for a computed
    reward."""
    top: float = 0.95
    """A constant reward counts as being at the top if its mean is at or above this fraction of the
    declared range. The fraction is below 1 because the few groups that still vary lower the mean of
    a learned reward."""
    bottom: float = 0.05
    """A constant reward counts as being at the bottom if its mean is at or below this fraction of
    the declared range."""
    missing: float = 0.9
    """Minimum share of missing values at which a reward counts as mostly missing."""
    window: int = 256
    """Number of groups over which a training run sums the influence. Shares over only a few groups
    are too noisy. With 256 groups of 8 samples, the standard error of a share is about 2 %."""
    least_groups: int = 64
    """Minimum number of groups for reporting a reward as ignored or reversed."""
    least_varying: int = 16
    """Minimum number of groups in which a reward must vary to be reported as ignored or
    reversed."""
    ignored: float = 0.25
    """A reward is ignored if its correlation with the advantage is below this fraction of the
    correlation that the weights imply. Under GRPO, a reward is close to this limit if its standard
    deviation is a fifth of that of the other rewards."""
    reversed: float = 0.05
    """Minimum magnitude of a negative influence share at which a reward counts as reversed."""
    opposed: float = 0.5
    """Minimum absolute value of a negative correlation at which two rewards count as opposed. At
    this value and with equal weights, each reward loses half of its influence to the other."""
    redundant: float = 0.95
    """Minimum correlation at which two rewards count as redundant. At this value, the two rewards
    share 90 % of their variance."""
    agreement: float = 0.5
    """A batch counts as conflicting if its share of rollouts without conflict is at most this
    fraction of the share for unrelated rewards. The share itself is not enough: two unrelated
    rewards of 0 or 1, each earned by half of the rollouts, conflict in half of all rollouts."""
    zero_advantage: float = 0.9
    """Minimum share of zero-advantage groups at which a batch counts as having no signal."""
    signal_rms: float = 3.0
    """Batch normalization amplifies too much if the root mean square of the advantages in the
    groups with signal is at least this large. If a share s of the groups has signal, the root mean
    square is 1 / √s, so s = 1/9 gives 3."""
    tiny_std: float = 0.01
    """If the typical standard deviation within a group is below this fraction of the declared
    range, the variation may be noise."""
    extreme: float = 10.0
    """An advantage is extreme if it is larger than this multiple of the root mean square in the
    groups with signal. A multiple also works for estimators that do not normalize. Without any
    outlier, one failure among 16 samples gives 3.8, and one failure among 64 samples gives 7.9."""
    same: float = 0.999
    """Minimum correlation at which advantages count as equal to GRPO's. At this value, 0.2 % of the
    variance differs."""
    merged: float = 0.5
    """GRPO counts as merging rollouts if its number of distinct advantages per group is at most
    this fraction of the estimator's."""
    standard_errors: float = 3.0
    """Minimum distance, in standard errors, between a correlation or a share of conflicts and the
    value at which there is nothing to report: 0, or the share expected by chance. A distance of 3
    is exceeded by chance in 0.3 % of the batches."""
    standard_errors_ignored: float = 2.0
    """Minimum distance, in standard errors, between the correlation of an ignored reward and the
    limit `ignored`. A smaller distance is enough here, because the correlation of a healthy reward
    is far above the limit."""
    constant_turns: float = 0.95
    """Minimum share of zero-variance groups of every reward at which a turn counts as constant. The
    share must hold even if two more groups varied, which takes at least 40 groups. A reward that
    varies in a tenth of 40 groups varies in none of them in 1.5 % of the cases."""
    paid_turns: float = 0.95
    """Minimum share of the turns with a positive value at which a reward counts as paid per turn.
    A reward counts as paid at the end if the share of the earlier turns with a value other than 0
    is at most 1 minus this share."""
    paid_ratio: float = 1.0
    """A reward that is paid per turn is reported if its mean total is at least this multiple of the
    difference between the best and the worst end of a rollout."""
    turn_count: float = 0.5
    """Minimum absolute correlation of a reward's total with the number of turns to be reported.
    Rewards that are unrelated to the number of turns stay far below, and an outcome that is reached
    somewhat more often by longer rollouts does too."""
    turn_count_influence: float = 0.1
    """Minimum influence share of a reward at the first turn for the same two findings. The
    advantages hardly depend on a reward with a smaller share."""


def reward_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield the findings about individual rewards."""
    for reward in diagnosis.rewards:
        if reward.weight == 0:
            continue
        yield from _missing(reward, thresholds)
        if (reward.below_resolution or 0) >= thresholds.below_resolution:
            yield _below_resolution(reward, diagnosis.precision, thresholds)
        elif (
            reward.zero_variance_groups is not None
            and reward.zero_variance_groups >= thresholds.zero_variance
        ):
            yield _dead(reward, thresholds)
        else:
            yield from _tiny_std(reward, thresholds)


OF_GROUPS = (Kind.NO_SIGNAL, Kind.OUT_OF_REACH, Kind.BELOW_RESOLUTION, Kind.CONSTANT)
"""Kinds of findings about a share of groups. In a batch with few groups, they are notes."""


def confirmed(finding: Finding, window: Influence, thresholds: Thresholds) -> Finding:
    """Return a note about a share of few groups as a warning, if the last groups confirm it.

    Args:
        finding: A finding of one batch.
        window: Sums over the last groups.
        thresholds: Thresholds of the findings.
    """
    of_few = finding.evidence.get("groups", inf) < thresholds.few_groups
    # Unlike other constant rewards, a reward at the top of its range needs no action.
    learned = thresholds.top <= finding.evidence.get("saturation", -inf) <= 1
    if finding.kind not in OF_GROUPS or not of_few or learned:
        return finding
    groups, share, least = window.groups, window.zero_advantage_groups, thresholds.zero_advantage
    if finding.rewards:
        groups, share = window.zero_variance_groups(finding.rewards[0])
        least = thresholds.zero_variance
    if groups < thresholds.groups_over_steps or not share >= least:
        return finding
    return replace(
        finding,
        severity=Severity.WARNING,
        message=f"{finding.message}. Over the last {groups:,} groups, the share is "
        f"{percent(share)}",
        evidence={**finding.evidence, "window_groups": float(groups), "window_share": share},
    )


def severity_of_share(groups: int, thresholds: Thresholds) -> Severity:
    """Return the severity of a finding about a share, given the number of groups."""
    return Severity.NOTE if groups < thresholds.few_groups else Severity.WARNING


def _missing(reward: RewardDiagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if reward.missing == 1:
        yield Finding(
            Kind.NEVER_APPLIES,
            Severity.WARNING,
            (reward.name,),
            f"`{reward.name}` is missing from every rollout",
            "check whether the reward function fails, whether its gate ever opens, and whether the "
            "dataset has the column that it reads",
            {"missing": 1.0},
        )
    elif reward.missing >= thresholds.missing:
        yield Finding(
            Kind.MOSTLY_MISSING,
            Severity.NOTE,
            (reward.name,),
            f"`{reward.name}` is missing from {percent(reward.missing)} of the rollouts, so only a "
            "few rollouts train it",
            "no action needed if the reward is meant to be rare; otherwise check whether its "
            "function fails, or choose prompts to which it applies",
            {"missing": reward.missing},
        )


def _below_resolution(reward: RewardDiagnosis, precision: str, thresholds: Thresholds) -> Finding:
    share = reward.below_resolution or 0.0
    wider = "" if precision == "float64" else ", or pass the rewards in float64"
    return Finding(
        Kind.BELOW_RESOLUTION,
        severity_of_share(reward.groups, thresholds),
        (reward.name,),
        f"`{reward.name}` differs in {percent(share)} of its groups by no more than the rounding "
        f"error of {precision} (its mean is {reward.mean or 0.0:.3g}), so these groups count as "
        "constant",
        f"if the differences are real, subtract the constant part of the reward{wider}; if they "
        "are rounding errors, round the reward",
        {"below_resolution": share, "mean": reward.mean or 0.0, "groups": float(reward.groups)},
    )


def _dead(reward: RewardDiagnosis, thresholds: Thresholds) -> Finding:
    assert reward.zero_variance_groups is not None, "a reward without variance applies to a group"
    where, at = reward.saturation, "" if reward.mean is None else f", at {reward.mean:.3g}"
    constant = (
        f"`{reward.name}` is constant in {percent(reward.zero_variance_groups)} of its groups"
    )
    severity = severity_of_share(reward.groups, thresholds)
    evidence = {"zero_variance_groups": reward.zero_variance_groups, "groups": float(reward.groups)}
    if where is not None:
        evidence["saturation"] = where
    if where is not None and not 0 <= where <= 1:
        kind = Kind.CONSTANT
        message = (
            f"{constant}{at}, outside its declared range [{reward.low:.3g}, {reward.high:.3g}]"
        )
        remedy = "declare the actual range (low, high), or fix the reward function"
    elif where is not None and where >= thresholds.top:
        kind, severity = Kind.SATURATED, Severity.NOTE
        message = (
            f"{constant}{at}, the top of its range. The policy has learned it, so it gives no "
            "further signal"
        )
        remedy = "no action needed: keep the reward, so that the policy keeps what it learned"
    elif where is not None and where <= thresholds.bottom:
        kind = Kind.OUT_OF_REACH
        message = f"{constant}{at}, the bottom of its range. The policy almost never earns it"
        remedy = (
            "warm-start the policy on examples that earn the reward, use easier prompts or larger "
            "groups, or give partial credit"
        )
    else:
        kind = Kind.CONSTANT
        message = f"{constant}{at}, so it gives no signal"
        remedy = (
            "change the reward so that samples of one prompt get different values, or remove it"
        )
        if where is None:
            remedy = (
                f"declare the range of the reward (low, high) to get a more exact finding. If "
                f"{reward.mean:.3g} is its maximum, it is learned: keep it. If it is its minimum, "
                f"the policy never earns it. Otherwise {remedy}"
            )
    return Finding(kind, severity, (reward.name,), message, remedy, evidence)


def _tiny_std(reward: RewardDiagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if reward.low is None or reward.high is None or not reward.varying_std:
        return
    part = reward.varying_std / (reward.high - reward.low)
    # With a noise floor, or summed with larger rewards, a small variation has no influence.
    counts = (reward.influence_share or 0) >= (reward.weight_share or 0) / 2
    if part < thresholds.tiny_std and counts:
        yield Finding(
            Kind.TINY_STD,
            Severity.WARNING,
            (reward.name,),
            f"`{reward.name}` varies by only {percent(part)} of its range within a group, but has "
            f"{percent(reward.influence_share or 0)} of the influence. If this variation is noise, "
            "it is amplified",
            f"set noise_floor to the smallest difference in `{reward.name}` that matters, in the "
            "unit of the reward; or declare the range that the reward actually covers",
            {
                "part_of_range": part,
                "varying_std": reward.varying_std,
                "influence_share": reward.influence_share or 0,
            },
        )


_RATIO = 2.0
"""Minimum ratio of standard deviations at which a message gives the ratio as the cause."""


class _Reward(NamedTuple):
    """Stores the influence of one reward.

    Correlations and shares are multiplied by the sign of the weight.
    """

    name: str
    weight_share: float
    share: float
    margin: float
    correlation: float
    asked: float
    error: float
    """Standard error of the correlation, under the assumption that advantage and reward are
    unrelated."""
    live: float
    std: float
    """Mean standard deviation over the groups in which the reward varies."""
    push: float
    """The influence. A positive value means that the update raises the reward."""


def influence_findings(influence: Influence, thresholds: Thresholds) -> Iterator[Finding]:
    r"""Yield a finding for each reward that is ignored or pushed against its weight.

    $\rho_k$ is the correlation of the advantage with the z-scores of reward k over the groups in
    which the reward varies, $\rho^*_k$ is the correlation that the weights imply, and $d$ is the
    number of degrees of freedom. The reward is ignored if $\rho^*_k > 0$, $\rho_k + 2/\sqrt d <
    \rho^*_k / 4$, and the interval of its influence share ends below half of its weight share. The
    reward is reversed if $\rho_k < -3/\sqrt d$ and its influence share is -5 % or less.

    Args:
        influence: Sums over one batch or over several steps.
        thresholds: Thresholds of the findings. If there are fewer groups than `least_groups`, there
            are no findings.
    """
    if influence.groups < thresholds.least_groups:
        return
    rewards = list(_rewards(influence))
    for reward in rewards:
        if reward.weight_share == 0 or reward.live < thresholds.least_varying:
            continue
        margin = thresholds.standard_errors * reward.error
        others = [other for other in rewards if other is not reward and other.weight_share > 0]
        most = max(others, key=lambda other: other.share / other.weight_share, default=None)
        if reward.correlation < -margin and -reward.share >= thresholds.reversed:
            yield _reversed(reward, most, influence.groups)
            continue
        # If only a few groups have nonzero advantages, the correlation over all groups is small.
        little = reward.share + reward.margin < reward.weight_share / 2
        error = thresholds.standard_errors_ignored * reward.error
        hardly = reward.correlation + error < thresholds.ignored * reward.asked
        if little and hardly and reward.asked > 0:
            yield _ignored(reward, most, influence.groups)


def _rewards(influence: Influence) -> Iterator[_Reward]:
    sums = influence.sums
    columns = zip(
        influence.weight_shares,
        influence.shares,
        influence.margins,
        influence.correlations,
        influence.asked_correlations,
        sums.degrees,
        sums.live,
        sums.std,
        sums.influence,
        strict=True,
    )
    for name, row in zip(influence.names, columns, strict=True):
        weight_share, share, margin, correlation, asked, degrees, live, std, push = map(float, row)
        yield _Reward(
            name=name,
            weight_share=weight_share,
            share=share,
            margin=margin,
            correlation=correlation,
            asked=asked,
            error=1 / sqrt(degrees) if degrees else inf,
            live=live,
            std=std / live if live else 0.0,
            push=push,
        )


_SEPARATELY = "normalize each reward separately (estimator gdpo)"


def _std_ratio(reward: _Reward, dominating: _Reward | None) -> float | None:
    """Return the ratio of the other reward's std to this reward's, or None if below `_RATIO`."""
    if dominating is None or dominating.share <= 0 or reward.std <= 0:
        return None
    ratio = dominating.std / reward.std
    return ratio if ratio >= _RATIO else None


def _reversed(reward: _Reward, dominating: _Reward | None, groups: int) -> Finding:
    """Return the finding that a reward is pushed against its weight.

    `dominating` is the other reward with the most influence per unit of weight.
    """
    direction, sign = ("up", "negative") if reward.push > 0 else ("down", "positive")
    cause, evidence = "", _evidence(reward, groups)
    remedy = (
        "check that the training used these weights; if it did, increase the absolute weight of "
        f"`{reward.name}`"
    )
    if dominating is not None and (ratio := _std_ratio(reward, dominating)):
        cause = f". The standard deviation of `{dominating.name}` is {times(ratio)} as large"
        remedy = _SEPARATELY
        evidence["std_ratio"] = ratio
    return Finding(
        Kind.REVERSED,
        Severity.WARNING,
        (reward.name,),
        f"`{reward.name}` is pushed {direction}, although its weight is {sign}: over {groups:,} "
        f"groups its influence share is {interval(reward.share, reward.margin)}. The rewards that "
        f"are opposed to it have more influence{cause}",
        f"{remedy}, accept that this reward gets worse, or gate the other rewards on it",
        evidence,
    )


def _ignored(reward: _Reward, dominating: _Reward | None, groups: int) -> Finding:
    """Return the finding that a reward is ignored.

    `dominating` is the other reward with the most influence per unit of weight.
    """
    cause, evidence = "", _evidence(reward, groups)
    remedy = (
        "check that the training used these weights; if it did, increase the absolute weight of "
        f"`{reward.name}`"
    )
    if dominating is not None and dominating.share > 0:
        share = interval(dominating.share, dominating.margin)
        cause = f". `{dominating.name}` has {share} of the influence"
        if ratio := _std_ratio(reward, dominating):
            cause += f", and its standard deviation is {times(ratio)} as large"
            remedy = f"{_SEPARATELY}, or divide each reward by its standard deviation"
            evidence["std_ratio"] = ratio
    return Finding(
        Kind.IGNORED,
        Severity.WARNING,
        (reward.name,),
        f"`{reward.name}` is ignored: over {groups:,} groups it has "
        f"{percent(reward.weight_share)} of the weight, but "
        f"{interval(reward.share, reward.margin)} of the influence{cause}",
        remedy,
        evidence,
    )


def _evidence(reward: _Reward, groups: int) -> dict[str, float]:
    return {
        "groups": float(groups),
        "weight_share": reward.weight_share,
        "influence_share": reward.share,
        "correlation": reward.correlation,
        "asked_correlation": reward.asked,
    }


_UNIT = 1e-3
"""If advantages were divided by their own standard deviation, their standard deviation differs from
1 by at most this much, even in float32."""


_NORMALIZED = (0.8, 1.2)
"""Range of the root mean square of all advantages of a batch after batch normalization. It differs
from 1 in small batches, and if some rollouts have no reward."""


def batch_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield the findings about the whole batch."""
    for find in (_no_signal, _conflict, _gain, _extreme, _one_group, _same_as_grpo, _merged):
        yield from find(diagnosis, thresholds)


def _no_signal(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.zero_advantage_groups < thresholds.zero_advantage:
        return
    remedy = (
        "add prompts of a different difficulty, take more samples per prompt, or warm-start the "
        "policy"
    )
    if all(reward.weight == 0 for reward in d.rewards):
        remedy = "give at least one reward a weight other than 0"
    yield Finding(
        Kind.NO_SIGNAL,
        severity_of_share(d.prompts, thresholds),
        (),
        f"all advantages are exactly 0 in {percent(d.zero_advantage_groups)} of the {d.prompts} "
        "groups, so these groups do not train the policy",
        remedy,
        {"zero_advantage_groups": d.zero_advantage_groups, "groups": float(d.prompts)},
    )


def _conflict(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.conflict is None or d.chance_conflict is None:
        return
    excess = d.conflict - d.chance_conflict
    error = sqrt(d.chance_conflict * (1 - d.chance_conflict) / d.rollouts)
    agree = 1 - d.conflict <= thresholds.agreement * (1 - d.chance_conflict)
    if agree and excess > thresholds.standard_errors * error:
        yield Finding(
            Kind.CONFLICT,
            Severity.WARNING,
            (),
            f"different rewards pull {percent(d.conflict)} of the rollouts in opposite directions "
            f"({percent(d.chance_conflict)} expected by chance), so no policy can earn all of them",
            "set the weights by priority, or gate the less important rewards on the main one",
            {"conflict": d.conflict, "chance_conflict": d.chance_conflict},
        )


def _gain(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.signal_rms is None or d.signal_rms < thresholds.signal_rms:
        return
    # Without batch normalization, advantages are large because of the unit of the rewards.
    if not _NORMALIZED[0] < d.signal_rms * sqrt(1 - d.zero_advantage_groups) < _NORMALIZED[1]:
        return
    yield Finding(
        Kind.GAIN,
        Severity.WARNING,
        (),
        f"only {percent(1 - d.zero_advantage_groups)} of the groups have signal, and their "
        f"advantages are {times(d.signal_rms)} the usual size. Batch normalization scales them "
        "up, which acts like a larger learning rate",
        "use prompts on which more groups vary, lower the learning rate, or use an estimator "
        "without batch normalization (mo_grpo)",
        {"signal_rms": d.signal_rms, "zero_advantage_groups": d.zero_advantage_groups},
    )


def _extreme(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    ratio = d.largest / d.signal_rms if d.signal_rms else 0.0
    if ratio <= thresholds.extreme:
        return
    yield Finding(
        Kind.EXTREME,
        Severity.WARNING,
        (),
        f"the largest advantage is {d.largest:.3g}, {times(ratio)} the root mean square in the "
        "groups that have signal, so one rollout can dominate a step",
        f"set max_advantage to {thresholds.extreme * (d.signal_rms or 1.0):.3g} if the estimator "
        "has this option; otherwise check the rewards for outliers",
        {"largest": d.largest, "signal_rms": d.signal_rms or 0.0},
    )


def _one_group(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.prompts > 1 or d.signal_rms is None or d.rollouts < 2:
        return
    std = d.signal_rms * sqrt(d.rollouts / (d.rollouts - 1))
    divided = abs(std - 1) < _UNIT
    # GRPO divides each group by its own std, so advantages that equal GRPO's lose nothing.
    if divided and (d.same_as_grpo or 0.0) < thresholds.same:
        yield Finding(
            Kind.ONE_GROUP,
            Severity.WARNING,
            (),
            "the batch has only one group, and its advantages are divided by their own standard "
            "deviation. This removes the differences in size that the estimator makes between "
            "groups",
            "put more prompts into a batch, or use an estimator without batch normalization "
            "(mo_grpo)",
            {"prompts": 1.0},
        )


def _same_as_grpo(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.estimator == "grpo" or d.same_as_grpo is None or d.same_as_grpo < thresholds.same:
        return
    yield Finding(
        Kind.SAME_AS_GRPO,
        Severity.NOTE,
        (),
        "the advantages equal those of GRPO up to a scale factor: the correlation is "
        f"{d.same_as_grpo:.4f}",
        "no action needed: the two differ only where at least two rewards vary by different "
        "amounts",
        {"same_as_grpo": d.same_as_grpo},
    )


_USE = "no action needed: the estimator is meant to separate such combinations"


_USE_IF_ALL = (
    "no action needed if the advantages were computed from these rewards and weights; otherwise "
    "pass the rewards and weights that were used"
)


def _merged(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.distinct is None or d.distinct_grpo is None:
        return
    if d.distinct_grpo <= thresholds.merged * d.distinct:
        yield Finding(
            Kind.MERGED,
            Severity.NOTE,
            (),
            f"a group of {d.samples} has {d.distinct:.1f} different advantages on average. GRPO "
            f"would give {d.distinct_grpo:.1f}: it merges combinations of rewards that have the "
            "same sum",
            _USE if d.estimator is not None else _USE_IF_ALL,
            {"distinct": d.distinct, "distinct_grpo": d.distinct_grpo},
        )


def pair_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield the findings about pairs of rewards."""
    for k, m in combinations(range(len(diagnosis.rewards)), 2):
        names = diagnosis.rewards[k].name, diagnosis.rewards[m].name
        asked, degrees = asked_correlation(diagnosis, k, m), diagnosis.degrees[k][m]
        if abs(asked) * sqrt(degrees) < thresholds.standard_errors:
            continue
        evidence = {"correlation": diagnosis.correlation[k][m], "degrees": degrees}
        if asked <= -thresholds.opposed:
            yield _opposed(names, asked, evidence)
        elif asked >= thresholds.redundant:
            yield _redundant(names, asked, evidence)


def asked_correlation(diagnosis: Diagnosis, k: int, m: int) -> float:
    """Return the correlation of two rewards in the direction of their weights.

    If the weights have opposite signs, the sign of the correlation is flipped, because rewards that
    rise together are then opposed. The result is 0 if the correlation is unknown or a weight is 0.
    """
    weights = diagnosis.rewards[k].weight, diagnosis.rewards[m].weight
    if diagnosis.degrees[k][m] == 0 or 0 in weights:
        return 0.0
    correlation = diagnosis.correlation[k][m]
    return correlation if (weights[0] > 0) == (weights[1] > 0) else -correlation


def _opposed(names: tuple[str, str], asked: float, evidence: Mapping[str, float]) -> Finding:
    a, b = names
    return Finding(
        Kind.OPPOSED,
        Severity.WARNING,
        names,
        f"`{a}` and `{b}` pull in opposite directions: {_correlated(asked, evidence)}",
        "set the weights by priority, or gate one reward on the other, so that it counts only "
        "where the other is reached",
        evidence,
    )


def _redundant(names: tuple[str, str], asked: float, evidence: Mapping[str, float]) -> Finding:
    a, b = names
    return Finding(
        Kind.REDUNDANT,
        Severity.WARNING,
        names,
        f"`{a}` and `{b}` measure nearly the same thing, which counts twice: "
        f"{_correlated(asked, evidence)}",
        "remove one of them, halve both weights, or use the gdpo_decorrelated estimator",
        evidence,
    )


def _correlated(asked: float, evidence: Mapping[str, float]) -> str:
    """Return the correlation of two rewards as a clause."""
    correlation = evidence["correlation"]
    weights = "" if asked * correlation > 0 else ", and their weights have opposite signs"
    return f"their correlation within groups is {correlation:.2f}{weights}"


def findings_of(diagnosis: Diagnosis, thresholds: Thresholds) -> tuple[Finding, ...]:
    """Return the findings of a diagnosis, ordered by severity and then by kind.

    If two rewards are opposed, that pair explains any conflict, so no separate conflict is
    reported. There are no findings about rewards with weight 0.

    Args:
        diagnosis: The diagnosis of one batch.
        thresholds: The thresholds of the findings.
    """
    found = [
        *reward_findings(diagnosis, thresholds),
        *pair_findings(diagnosis, thresholds),
        *batch_findings(diagnosis, thresholds),
    ]
    if any(finding.kind is Kind.OPPOSED for finding in found):
        found = [finding for finding in found if finding.kind is not Kind.CONFLICT]
    return in_order([*found, *influence_findings(diagnosis.influence, thresholds)])


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings in order, worst first."""
    return tuple(sorted(findings, key=lambda finding: finding.rank))
