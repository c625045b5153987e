"""Defines the rules that turn the numbers of a diagnosis into findings."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from math import sqrt

from gdpo.diagnostics._effect import CONSTANT, findings_at_once
from gdpo.diagnostics._thresholds import Thresholds
from gdpo.diagnostics.diagnosis import (
    Diagnosis,
    Finding,
    Kind,
    Remedy,
    RewardDiagnosis,
    Severity,
    percent,
    times,
)
from gdpo.diagnostics.replay import remedies


def reward_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield the findings about individual rewards."""
    for reward in diagnosis.rewards:
        if reward.weight == 0:
            continue
        yield from _missing(reward, thresholds)
        if (reward.below_resolution or 0) >= thresholds.below_resolution:
            yield _below_resolution(reward, diagnosis.precision, thresholds)
        elif (reward.zero_variance_groups or 0) < thresholds.zero_variance:
            yield from _tiny_std(reward, thresholds)


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
        Severity.NOTE if reward.groups < thresholds.few_groups else Severity.WARNING,
        (reward.name,),
        f"`{reward.name}` differs in {percent(share)} of its groups by no more than the rounding "
        f"error of {precision} (its mean is {reward.mean or 0.0:.3g}), so these groups count as "
        "constant",
        f"if the differences are real, subtract the constant part of the reward{wider}; if they "
        "are rounding errors, round the reward",
        {"below_resolution": share, "mean": reward.mean or 0.0, "groups": float(reward.groups)},
    )


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


_UNIT = 1e-3
"""If advantages were divided by their own standard deviation, their standard deviation differs from
1 by at most this much, even in float32."""


_NORMALIZED = (0.8, 1.2)
"""Range of the root mean square of all advantages of a batch after batch normalization. It differs
from 1 in small batches, and if some rollouts have no reward."""


def batch_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield the findings about the whole batch."""
    for find in (_conflict, _gain, _extreme, _one_group, _merged):
        yield from find(diagnosis, thresholds)


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
    reported. A reward whose signal is lost to rounding is not reported as constant too. There are
    no findings about rewards with weight 0.

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
    lost = {f.rewards for f in found if f.kind is Kind.BELOW_RESOLUTION}
    scored = diagnosis.scored

    def replay(name: str, wanted: float) -> tuple[Remedy, ...]:
        return remedies([scored], name, wanted) if scored is not None else ()

    at_once = findings_at_once(diagnosis.influence, diagnosis.ranges, thresholds, replay)
    return in_order(
        [*found, *(f for f in at_once if not (f.kind in CONSTANT and f.rewards in lost))]
    )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings in order, worst first."""
    return tuple(sorted(findings, key=lambda finding: finding.rank))
