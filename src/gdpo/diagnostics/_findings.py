"""What a finding is: something in a batch that a person should know, with the numbers behind it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    """All thresholds of the findings.

    They are meant to be silent on a healthy batch, not to find every flaw: docs/reference/
    diagnostics.md says how often they cry wolf.
    """

    zero_variance: float = 0.9
    """Share of zero-variance groups from which a reward counts as constant: it then varies in at
    most one of ten groups."""
    few_groups: int = 7
    """With fewer groups, what is said about a share of them is a note and no warning. A reward that
    varies in half of all groups is dead in 6 of 6 by chance in 1.6 %, in 7 of 7 in 0.8 %."""
    below_resolution: float = 0.1
    """Share of groups that differ by no more than rounding from which a loss of signal is named:
    less costs little, and a reward that is computed may well do so in a few."""
    top: float = 0.95
    """A constant reward whose mean is above this part of its declared range is at the top of it. It
    is not 1, because the few groups that still vary lower the mean of a learned reward."""
    bottom: float = 0.05
    """A constant reward whose mean is below this part of its declared range is at the bottom."""
    missing: float = 0.9
    """Share of missing values from which a reward is said to be mostly missing: one of ten rollouts
    at most decides it."""
    window: int = 256
    """Groups over which influence is added up in a training: shares of a few groups are noise. The
    standard error of a share is about 2 % with 256 groups of 8."""
    least_groups: int = 64
    """Groups from which it is said that a reward is ignored or reversed."""
    least_varying: int = 16
    """Of these, the groups in which the reward has to vary."""
    ignored: float = 0.25
    """Part of the correlation with the advantage that the weights ask for, below which a reward is
    ignored. Under GRPO a reward whose standard deviation is a fifth of the others' has it."""
    reversed: float = 0.05
    """Influence share from which a wrong sign counts: less moves hardly anything."""
    opposed: float = 0.5
    """Negative correlation from which two rewards are opposed. At equal weights each then loses
    half of its influence to the other."""
    redundant: float = 0.95
    """Correlation from which two rewards say the same: 90 % of the variance of one is the other's.
    """
    agreement: float = 0.5
    """Rollouts without conflict, as a part of what unrelated rewards would give, below which a
    batch is in conflict. Half of all rollouts are in conflict if two rewards of 0 and 1 at a rate
    of one half are unrelated: their share alone says nothing."""
    zero_advantage: float = 0.9
    """Share of zero-advantage groups from which a batch has no signal: nine of ten rollouts then
    train nothing."""
    signal_rms: float = 3.0
    """Size of the advantages in the groups that have signal, from which the gain is too high. It is
    1 where all groups have signal, and 1 / √share where few do: 3 is reached at a ninth."""
    tiny_std: float = 0.01
    """Typical spread in a group, as a part of the declared range, below which it may be noise."""
    extreme: float = 10.0
    """Size of an advantage that is extreme, in root mean squares of the groups that have signal, so
    that estimators which do not normalize are measured alike. One failure among 16 samples gives
    3.8 and one among 64 gives 7.9, which are in the nature of the formula."""
    same: float = 0.999
    """Correlation with GRPO's advantages from which they are the same: 0.2 % of the variance
    differs."""
    merged: float = 0.5
    """Different advantages of GRPO in a group, as a part of those of the estimator, up to which
    GRPO is said to merge: half of the distinctions is lost."""
    standard_errors: float = 3.0
    """How many standard errors a correlation or an influence must be away from what would be
    harmless. At 3, a batch with nothing in it shows a given one by chance in 0.3 %."""


def reward_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Those about each reward by itself."""
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


def severity_of_share(groups: int, thresholds: Thresholds) -> Severity:
    """A share of a handful of groups is no more than a note."""
    return Severity.NOTE if groups < thresholds.few_groups else Severity.WARNING


def _missing(reward: RewardDiagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if reward.missing == 1:
        yield Finding(
            Kind.NEVER_APPLIES,
            Severity.WARNING,
            (reward.name,),
            f"`{reward.name}` is missing on every rollout",
            "see whether the reward function fails, or whether what it waits for ever happens: a "
            "gate, a column of the data",
            {"missing": 1.0},
        )
    elif reward.missing >= thresholds.missing:
        yield Finding(
            Kind.MOSTLY_MISSING,
            Severity.NOTE,
            (reward.name,),
            f"`{reward.name}` is missing on {percent(reward.missing)} of the rollouts: few decide "
            "what it teaches",
            "none if it is meant to be rare; otherwise see whether its function fails, or choose "
            "prompts to which it applies",
            {"missing": reward.missing},
        )


def _below_resolution(reward: RewardDiagnosis, precision: str, thresholds: Thresholds) -> Finding:
    share = reward.below_resolution or 0.0
    wider = "" if precision == "float64" else ", or hand the rewards over in float64"
    return Finding(
        Kind.BELOW_RESOLUTION,
        severity_of_share(reward.groups, thresholds),
        (reward.name,),
        f"`{reward.name}` varies in {percent(share)} of its groups by less than {precision} can "
        f"tell from rounding at its size (mean {reward.mean or 0.0:.3g}): there it counts as "
        "constant",
        f"if the difference means something, subtract the constant part of the reward{wider}; if "
        "it is rounding, round the reward",
        {"below_resolution": share, "mean": reward.mean or 0.0},
    )


def _dead(reward: RewardDiagnosis, thresholds: Thresholds) -> Finding:
    assert reward.zero_variance_groups is not None, "a reward without variance applies to a group"
    where, at = reward.saturation, "" if reward.mean is None else f" at {reward.mean:.3g}"
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
            f"{constant},{at}: outside of its declared range [{reward.low:.3g}, {reward.high:.3g}]"
        )
        remedy = "declare the range that it really has (low, high), or mend the reward function"
    elif where is not None and where >= thresholds.top:
        kind, severity = Kind.SATURATED, Severity.NOTE
        message = f"{constant},{at}, the top of its range: learned, and it teaches nothing more"
        remedy = "none needed: keep it, for it holds what was learned"
    elif where is not None and where <= thresholds.bottom:
        kind = Kind.OUT_OF_REACH
        message = f"{constant},{at}, the bottom of its range: the policy never sees it earned"
        remedy = (
            "warm-start on examples that earn it, use easier prompts or larger groups, or give part"
            " of the reward for part of the way"
        )
    else:
        kind = Kind.CONSTANT
        message = f"{constant},{at}: it teaches nothing now"
        remedy = "make it tell the samples of one prompt apart, or drop it"
        if where is None:
            remedy = (
                f"look at its value first: if {reward.mean:.3g} is its maximum, it is learned and "
                f"stays; if its minimum, it is never earned; else {remedy}. Give its range (low, "
                "high), and the finding will say which"
            )
    return Finding(kind, severity, (reward.name,), message, remedy, evidence)


def _tiny_std(reward: RewardDiagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if reward.low is None or reward.high is None or not reward.varying_std:
        return
    part = reward.varying_std / (reward.high - reward.low)
    # With a noise floor, or beside larger rewards that are summed first, it has no say.
    counts = (reward.influence_share or 0) >= (reward.weight_share or 0) / 2
    if part < thresholds.tiny_std and counts:
        yield Finding(
            Kind.TINY_STD,
            Severity.WARNING,
            (reward.name,),
            f"`{reward.name}` varies by {percent(part)} of its range in a group and still holds "
            f"{percent(reward.influence_share or 0)} of the influence: if that is noise, it is "
            "amplified",
            f"noise_floor: the difference in `{reward.name}` that means something, in its unit; or "
            "declare the range that it really uses",
            {
                "part_of_range": part,
                "varying_std": reward.varying_std,
                "influence_share": reward.influence_share or 0,
            },
        )


_RATIO = 2.0
"""Ratio of standard deviations that is named as the cause."""


class _Reward(NamedTuple):
    """What the sums say about one reward. Correlations and shares have the sign of its weight."""

    name: str
    weight_share: float
    share: float
    margin: float
    correlation: float
    asked: float
    error: float
    """Standard error of the correlation, if the advantage had nothing to do with the reward."""
    live: float
    std: float
    """Mean standard deviation over the groups in which it varies."""
    push: float
    """Influence: its sign is the direction in which the reward is pushed."""


def influence_findings(influence: Influence, thresholds: Thresholds) -> Iterator[Finding]:
    r"""Yield the rewards that are ignored and those that are pushed against their weight.

    With $\rho_k$ the correlation of the advantage with the z-scores of reward k over the groups in
    which it varies, $\rho^*_k$ the one that the weights ask for, and $d$ the degrees of freedom,
    a reward is ignored if $\rho^*_k > 0$, $\rho_k + 3/\sqrt d < \rho^*_k / 4$, and the interval of
    its influence share ends below half of its weight share. It is reversed if $\rho_k < -3/\sqrt
    d$ and its influence share is -5 % or less.

    Args:
        influence: Sums over one batch, or over the last steps of a run.
        thresholds: With fewer groups than they ask for, nothing is found.
    """
    if influence.groups < thresholds.least_groups:
        return
    rewards = list(_rewards(influence))
    for reward in rewards:
        if reward.weight_share == 0 or reward.live < thresholds.least_varying:
            continue
        margin = thresholds.standard_errors * reward.error
        if reward.correlation < -margin and -reward.share >= thresholds.reversed:
            yield _reversed(reward, influence.groups)
            continue
        # Where a few groups have all of the advantages, a correlation over all groups is small.
        little = reward.share + reward.margin < reward.weight_share / 2
        hardly = reward.correlation + margin < thresholds.ignored * reward.asked
        if little and hardly and reward.asked > 0:
            others = [other for other in rewards if other is not reward and other.weight_share > 0]
            most = max(others, key=lambda other: other.share / other.weight_share, default=None)
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


def _reversed(reward: _Reward, groups: int) -> Finding:
    direction = "up" if reward.push > 0 else "down"
    return Finding(
        Kind.REVERSED,
        Severity.WARNING,
        (reward.name,),
        f"`{reward.name}` is pushed {direction}, against its weight: over {groups:,} groups its "
        f"influence share is {interval(reward.share, reward.margin)}; the rewards opposed "
        "to it outweigh it",
        f"raise the weight of `{reward.name}`, accept that it gets worse, or gate the others on it",
        _evidence(reward, groups),
    )


def _ignored(reward: _Reward, dominating: _Reward | None, groups: int) -> Finding:
    """`dominating` is the other reward that has the most influence for its weight."""
    cause, remedy, evidence = "", f"raise the weight of `{reward.name}`", _evidence(reward, groups)
    if dominating is not None and dominating.share > 0:
        cause = f"; `{dominating.name}` has {interval(dominating.share, dominating.margin)}"
        ratio = dominating.std / reward.std if reward.std > 0 else 0.0
        if ratio >= _RATIO:
            cause += f", and its standard deviation is {times(ratio)} as large"
            remedy = "normalize each reward by itself, as gdpo does, or divide each by its standard"
            remedy += " deviation"
            evidence["std_ratio"] = ratio
    return Finding(
        Kind.IGNORED,
        Severity.WARNING,
        (reward.name,),
        f"`{reward.name}` is ignored: over {groups:,} groups its influence share is "
        f"{interval(reward.share, reward.margin)} for {percent(reward.weight_share)} of the "
        f"weight{cause}",
        f"{remedy}; if the advantages were made with other weights, pass those weights",
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
"""How near to 1 the standard deviation of advantages is that were divided by it, in float32 too."""


def batch_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Those about the batch as a whole."""
    for find in (_no_signal, _conflict, _gain, _extreme, _one_group, _same_as_grpo, _merged):
        yield from find(diagnosis, thresholds)


def _no_signal(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.zero_advantage_groups < thresholds.zero_advantage:
        return
    remedy = "mix in prompts of another difficulty, take more samples per prompt, or warm-start"
    if all(reward.weight == 0 for reward in d.rewards):
        remedy = "give a reward a weight other than 0"
    yield Finding(
        Kind.NO_SIGNAL,
        severity_of_share(d.prompts, thresholds),
        (),
        f"{percent(d.zero_advantage_groups)} of the {d.prompts} groups have advantages of exactly "
        "0: they train nothing",
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
            f"{percent(d.conflict)} of the rollouts are pulled both ways by different rewards; "
            f"{percent(d.chance_conflict)} would be by chance",
            "the rewards cannot be had together: decide by the weights, or gate the lesser ones on "
            "the main one",
            {"conflict": d.conflict, "chance_conflict": d.chance_conflict},
        )


def _gain(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    # Where most groups live, large advantages are the unit of the rewards.
    if (
        d.signal_rms is None
        or d.signal_rms < thresholds.signal_rms
        or d.zero_advantage_groups < 0.5
    ):
        return
    yield Finding(
        Kind.GAIN,
        Severity.WARNING,
        (),
        f"only {percent(1 - d.zero_advantage_groups)} of the groups have signal, and their "
        f"advantages are {times(d.signal_rms)} their usual size: batch normalization scales "
        "them up, which acts like a larger learning rate",
        "use prompts on which more groups vary, lower the learning rate, or use an estimator "
        "without a batch step: mo_grpo",
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
        f"the largest advantage is {d.largest:.3g}, {times(ratio)} their root mean square in the "
        "groups that have signal: one rollout can decide a step",
        f"max_advantage: {thresholds.extreme * (d.signal_rms or 1.0):.3g}, where the estimator has "
        "it; otherwise see whether the rewards have outliers",
        {"largest": d.largest, "signal_rms": d.signal_rms or 0.0},
    )


def _one_group(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.prompts > 1 or d.signal_rms is None or d.rollouts < 2:
        return
    std = d.signal_rms * sqrt(d.rollouts / (d.rollouts - 1))
    divided = abs(std - 1) < _UNIT
    # Equal to GRPO, it divides by what GRPO divides by, and no difference between groups is lost.
    if divided and (d.same_as_grpo or 0.0) < thresholds.same:
        yield Finding(
            Kind.ONE_GROUP,
            Severity.WARNING,
            (),
            "the batch holds one group, and its advantages are divided by their own standard "
            "deviation: what the estimator adds between groups is undone",
            "let more prompts share a batch, or use an estimator without a batch step: mo_grpo",
            {"prompts": 1.0},
        )


def _same_as_grpo(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.estimator == "grpo" or d.same_as_grpo is None or d.same_as_grpo < thresholds.same:
        return
    yield Finding(
        Kind.SAME_AS_GRPO,
        Severity.NOTE,
        (),
        f"the advantages are GRPO's but for their size: the correlation is {d.same_as_grpo:.4f}",
        "none needed; a difference takes two rewards that vary, and not always by the same amount",
        {"same_as_grpo": d.same_as_grpo},
    )


_USE = "none needed: it shows what the estimator is there for"


_USE_IF_ALL = (
    "none needed, if the advantages were made of these rewards and weights; if of others, name them"
)


def _merged(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if d.distinct is None or d.distinct_grpo is None:
        return
    if d.distinct_grpo <= thresholds.merged * d.distinct:
        yield Finding(
            Kind.MERGED,
            Severity.NOTE,
            (),
            f"GRPO would tell {d.distinct_grpo:.1f} advantages apart in a group of {d.samples}, "
            f"where there are {d.distinct:.1f} here",
            _USE if d.estimator is not None else _USE_IF_ALL,
            {"distinct": d.distinct, "distinct_grpo": d.distinct_grpo},
        )


def pair_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Those about each pair of rewards."""
    for k, m in combinations(range(len(diagnosis.rewards)), 2):
        names = diagnosis.rewards[k].name, diagnosis.rewards[m].name
        asked, degrees = asked_correlation(diagnosis, k, m), diagnosis.degrees[k][m]
        if abs(asked) * sqrt(degrees) < thresholds.standard_errors:
            continue
        evidence = {"correlation": diagnosis.correlation[k][m], "degrees": degrees}
        if asked <= -thresholds.opposed:
            yield _opposed(*names, evidence)
        elif asked >= thresholds.redundant:
            yield _redundant(*names, evidence)


def asked_correlation(diagnosis: Diagnosis, k: int, m: int) -> float:
    """Correlation of what two rewards ask for; 0 where it is not known, or one has no weight.

    With weights of opposite sign, rewards that rise together are opposed.
    """
    weights = diagnosis.rewards[k].weight, diagnosis.rewards[m].weight
    if diagnosis.degrees[k][m] == 0 or 0 in weights:
        return 0.0
    correlation = diagnosis.correlation[k][m]
    return correlation if (weights[0] > 0) == (weights[1] > 0) else -correlation


def _opposed(a: str, b: str, evidence: dict[str, float]) -> Finding:
    return Finding(
        Kind.OPPOSED,
        Severity.WARNING,
        (a, b),
        f"`{a}` and `{b}` ask for opposite things: their correlation in a group is "
        f"{evidence['correlation']:.2f}",
        "decide by the weights which matters more, or gate one on the other, so that it counts "
        "only where the other is reached",
        evidence,
    )


def _redundant(a: str, b: str, evidence: dict[str, float]) -> Finding:
    return Finding(
        Kind.REDUNDANT,
        Severity.WARNING,
        (a, b),
        f"`{a}` and `{b}` say the same: their correlation in a group is "
        f"{evidence['correlation']:.2f}, and it counts twice",
        "drop one, halve both weights, or use gdpo_decorrelated",
        evidence,
    )


def findings_of(diagnosis: Diagnosis, thresholds: Thresholds) -> tuple[Finding, ...]:
    """Return what the numbers of a diagnosis say, by severity and then by kind.

    Opposed pairs explain a conflict, which is not given beside them. Rewards of weight 0 are only
    watched and give no findings.

    Args:
        diagnosis: Of one batch.
        thresholds: From where on a number is worth a finding.
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
    """Return findings with the worst first."""
    return tuple(sorted(findings, key=lambda finding: finding.rank))
