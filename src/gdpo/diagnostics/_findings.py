"""Defines the rules that turn the numbers of a diagnosis into findings."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import combinations
from math import sqrt
from operator import attrgetter

from gdpo.diagnostics._effect import CONSTANT, findings_at_once
from gdpo.diagnostics._thresholds import Thresholds
from gdpo.diagnostics.diagnosis import (
    Diagnosis,
    Finding,
    Kind,
    RewardDiagnosis,
    Severity,
    percent,
    times,
)
from gdpo.diagnostics.replay import remedies


def findings_of(diagnosis: Diagnosis, thresholds: Thresholds) -> tuple[Finding, ...]:
    """Return the findings of a diagnosis, ordered by severity and then by kind.

    If two rewards are opposed, that pair explains any conflict, so no separate conflict is
    reported. A reward whose signal is lost to rounding is not reported as constant too. There are
    no findings about rewards with weight 0.
    """
    pairs = list(_of_pairs(diagnosis, thresholds))
    found = [*_of_rewards(diagnosis, thresholds), *pairs, *_of_batch(diagnosis, thresholds)]
    dropped = {(Kind.CONFLICT, ()) for pair in pairs if pair.kind is Kind.OPPOSED}
    for finding in found:
        if finding.kind is Kind.BELOW_RESOLUTION:
            dropped |= {(kind, finding.rewards) for kind in CONSTANT}
    replay = partial(remedies, [] if diagnosis.scored is None else [diagnosis.scored])
    found += findings_at_once(diagnosis.influence, diagnosis.ranges, thresholds, replay)
    return in_order(f for f in found if (f.kind, f.rewards) not in dropped)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=attrgetter("rank")))


def _of_rewards(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    for reward in diagnosis.rewards:
        if reward.weight == 0:
            continue
        if reward.missing >= min(thresholds.missing, 1):
            yield _missing(reward)
        if (reward.below_resolution or 0) >= thresholds.below_resolution:
            yield _below_resolution(reward, diagnosis.precision, thresholds)
        elif (reward.zero_variance_groups or 0) < thresholds.zero_variance and reward.varying_std:
            if reward.low is None or reward.high is None:
                continue
            part = reward.varying_std / (reward.high - reward.low)
            # With a noise floor, or summed with larger rewards, a small variation does no harm.
            counts = (reward.influence_share or 0) >= (reward.weight_share or 0) / 2
            if part < thresholds.tiny_std and counts:
                yield _tiny_std(reward, part)


def _of_pairs(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    for k, m in combinations(range(len(diagnosis.rewards)), 2):
        one, other = diagnosis.rewards[k], diagnosis.rewards[m]
        correlation, degrees = diagnosis.correlation[k][m], diagnosis.degrees[k][m]
        if degrees == 0 or one.weight == 0 or other.weight == 0:
            continue
        # Rewards that rise together are opposed if their weights have opposite signs.
        same_signs = (one.weight > 0) == (other.weight > 0)
        asked = correlation if same_signs else -correlation
        if abs(asked) * sqrt(degrees) < thresholds.standard_errors:
            continue
        related = f"their correlation within groups is {correlation:.2f}"
        related += "" if same_signs else ", and their weights have opposite signs"
        evidence = {"correlation": correlation, "degrees": degrees}
        if asked <= -thresholds.opposed:
            yield Finding(
                Kind.OPPOSED,
                Severity.WARNING,
                (one.name, other.name),
                f"`{one.name}` and `{other.name}` pull in opposite directions: {related}",
                "set the weights by priority, or gate one reward on the other, so that it counts "
                "only where the other is reached",
                evidence,
            )
        elif asked >= thresholds.redundant:
            yield Finding(
                Kind.REDUNDANT,
                Severity.WARNING,
                (one.name, other.name),
                f"`{one.name}` and `{other.name}` measure nearly the same thing, which counts "
                f"twice: {related}",
                "remove one of them, halve both weights, or use the gdpo_decorrelated estimator",
                evidence,
            )


_UNIT = 1e-3
"""If advantages were divided by their own standard deviation, their standard deviation differs from
1 by at most this much, even in float32."""

_NORMALIZED = (0.8, 1.2)
"""Range of the root mean square of all advantages of a batch after batch normalization. It differs
from 1 in small batches, and if some rollouts have no reward."""


def _of_batch(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    rms, chance = d.signal_rms or 0.0, d.chance_conflict
    if d.conflict is not None and chance is not None:
        error = sqrt(chance * (1 - chance) / d.rollouts)
        agree = 1 - d.conflict <= thresholds.agreement * (1 - chance)
        if agree and d.conflict - chance > thresholds.standard_errors * error:
            yield _conflict(d.conflict, chance)
    # Without batch normalization, advantages are large because of the unit of the rewards.
    low, high = _NORMALIZED
    normalized = low < rms * sqrt(1 - d.zero_advantage_groups) < high
    if normalized and rms >= thresholds.signal_rms:
        yield _gain(d, rms)
    if rms and d.largest / rms > thresholds.extreme:
        yield _extreme(d, rms, thresholds)
    if rms and d.prompts == 1 and d.rollouts > 1:
        divided = abs(rms * sqrt(d.rollouts / (d.rollouts - 1)) - 1) < _UNIT
        # GRPO divides each group by its own std, so advantages that equal GRPO's lose nothing.
        if divided and (d.same_as_grpo or 0.0) < thresholds.same:
            yield _one_group()
    distinct, of_grpo = d.distinct, d.distinct_grpo
    if distinct is not None and of_grpo is not None and of_grpo <= thresholds.merged * distinct:
        yield _merged(d, distinct, of_grpo)


def _missing(reward: RewardDiagnosis) -> Finding:
    if reward.missing == 1:
        return Finding(
            Kind.NEVER_APPLIES,
            Severity.WARNING,
            (reward.name,),
            f"`{reward.name}` is missing from every rollout",
            "check whether the reward function fails, whether its gate ever opens, and whether the "
            "dataset has the column that it reads",
            {"missing": 1.0},
        )
    return Finding(
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


def _tiny_std(reward: RewardDiagnosis, part: float) -> Finding:
    share = reward.influence_share or 0
    return Finding(
        Kind.TINY_STD,
        Severity.WARNING,
        (reward.name,),
        f"`{reward.name}` varies by only {percent(part)} of its range within a group, but has "
        f"{percent(share)} of the influence. If this variation is noise, it is amplified",
        f"set noise_floor to the smallest difference in `{reward.name}` that matters, in the "
        "unit of the reward; or declare the range that the reward actually covers",
        {
            "part_of_range": part,
            "varying_std": reward.varying_std or 0,
            "influence_share": share,
        },
    )


def _conflict(conflict: float, chance: float) -> Finding:
    return Finding(
        Kind.CONFLICT,
        Severity.WARNING,
        (),
        f"different rewards pull {percent(conflict)} of the rollouts in opposite directions "
        f"({percent(chance)} expected by chance), so no policy can earn all of them",
        "set the weights by priority, or gate the less important rewards on the main one",
        {"conflict": conflict, "chance_conflict": chance},
    )


def _gain(d: Diagnosis, rms: float) -> Finding:
    return Finding(
        Kind.GAIN,
        Severity.WARNING,
        (),
        f"only {percent(1 - d.zero_advantage_groups)} of the groups have signal, and their "
        f"advantages are {times(rms)} the usual size. Batch normalization scales them up, which "
        "acts like a larger learning rate",
        "use prompts on which more groups vary, lower the learning rate, or use an estimator "
        "without batch normalization (mo_grpo)",
        {"signal_rms": rms, "zero_advantage_groups": d.zero_advantage_groups},
    )


def _extreme(d: Diagnosis, rms: float, thresholds: Thresholds) -> Finding:
    return Finding(
        Kind.EXTREME,
        Severity.WARNING,
        (),
        f"the largest advantage is {d.largest:.3g}, {times(d.largest / rms)} the root mean square "
        "in the groups that have signal, so one rollout can dominate a step",
        f"set max_advantage to {thresholds.extreme * rms:.3g} if the estimator has this option; "
        "otherwise check the rewards for outliers",
        {"largest": d.largest, "signal_rms": rms},
    )


def _one_group() -> Finding:
    return Finding(
        Kind.ONE_GROUP,
        Severity.WARNING,
        (),
        "the batch has only one group, and its advantages are divided by their own standard "
        "deviation. This removes the differences in size that the estimator makes between groups",
        "put more prompts into a batch, or use an estimator without batch normalization (mo_grpo)",
        {"prompts": 1.0},
    )


def _merged(d: Diagnosis, distinct: float, distinct_grpo: float) -> Finding:
    use = "no action needed: the estimator is meant to separate such combinations"
    if d.estimator is None:
        use = (
            "no action needed if the advantages were computed from these rewards and weights; "
            "otherwise pass the rewards and weights that were used"
        )
    return Finding(
        Kind.MERGED,
        Severity.NOTE,
        (),
        f"a group of {d.samples} has {distinct:.1f} different advantages on average. GRPO would "
        f"give {distinct_grpo:.1f}: it merges combinations of rewards that have the same sum",
        use,
        {"distinct": distinct, "distinct_grpo": distinct_grpo},
    )
