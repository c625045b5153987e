"""Defines limits and wording of all findings, and the rules for those about one batch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from operator import attrgetter
from typing import Any, NamedTuple

from gdpo.diagnostics.diagnosis import (
    Cause,
    Diagnosis,
    Finding,
    Kind,
    Remedy,
    Severity,
    percent,
    times,
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Stores the thresholds of all findings.

    The defaults avoid false alarms, even if some problems are missed. research/measurements.md
    lists the measured rates.
    """

    zero_variance: float = 0.9
    """Minimum share of zero-variance groups at which a reward counts as constant."""
    below_resolution: float = 0.1
    """The lost signal is reported if at least this share of groups has values that differ only by
    rounding. A few such groups are normal for a computed reward."""
    top: float = 0.95
    """A constant reward is at the top if its mean is at or above this fraction of its range. It is
    below 1, because the few groups that still vary lower the mean of a learned reward."""
    bottom: float = 0.05
    """A constant reward is at the bottom if its mean is at or below this fraction of its range."""
    missing: float = 0.9
    """Minimum share of missing values at which a reward counts as mostly missing."""
    window: int = 256
    """Number of groups over which a training run sums the influence. With 256 groups of 8 samples,
    the standard error of a share is about 2 %."""
    few_groups: int = 7
    """Minimum number of groups for the finding `below_resolution` to be a warning."""
    least_varying: int = 4
    """Minimum number of groups in which a reward must vary for a finding about its influence."""
    under_weighted: float = 0.5
    """A reward is under-weighted if its influence share is below this part of its weight share."""
    ignored: float = 0.25
    """A reward is ignored if its influence share is below this part of its weight share."""
    reversed: float = 0.05
    """A reward is reversed if its influence share is negative, with a larger absolute value."""
    opposed: float = 0.5
    """Minimum absolute value of a negative correlation at which two rewards count as opposed. At
    this value and with equal weights, each reward loses half of its influence to the other."""
    redundant: float = 0.95
    """Minimum correlation at which two rewards count as redundant: they share 90 % of their
    variance."""
    agreement: float = 0.5
    """A batch counts as conflicting if its share of rollouts without conflict is at most this
    fraction of the share for unrelated rewards. Two unrelated rewards of 0 or 1, each earned by
    half of the rollouts, conflict in half of them."""
    zero_advantage: float = 0.9
    """Minimum share of zero-advantage groups at which a batch counts as having no signal."""
    signal_rms: float = 3.0
    """Batch normalization amplifies too much if the root mean square of the advantages in the
    groups with signal is at least this large. If a share s of the groups has signal, it is 1 / √s,
    so s = 1/9 gives 3."""
    tiny_std: float = 0.01
    """Fraction of its range below which the variation of a reward in a group may be noise."""
    extreme: float = 10.0
    """An advantage is extreme if it is larger than this multiple of the root mean square in the
    groups with signal. Without any outlier, one failure among 16 samples gives 3.8, and one among
    64 gives 7.9."""
    same: float = 0.999
    """Minimum correlation at which advantages count as equal to GRPO's: 0.2 % of the variance
    differs."""
    merged: float = 0.5
    """GRPO counts as merging rollouts if its number of distinct advantages per group is at most
    this fraction of the estimator's."""
    standard_errors: float = 3.0
    """Minimum distance, in standard errors, of a correlation from 0, and of a share of conflicts
    from the share by chance. A distance of 3 is exceeded by chance in 0.3 % of the batches."""
    constant_turns: float = 0.95
    """Minimum share of zero-variance groups of every reward at which a turn counts as constant,
    even if two more groups varied. This takes at least 40 groups. A reward that varies in a group
    with probability 0.1 varies in none of 40 in 1.5 % of cases."""
    paid_turns: float = 0.95
    """Minimum share of the turns with a positive value at which a reward counts as paid per turn.
    It counts as paid at the end if the share of the earlier turns with a value other than 0 is at
    most 1 minus this share."""
    paid_ratio: float = 1.0
    """A reward that is paid per turn is reported if its mean total is at least this multiple of the
    difference between the best and the worst end of a rollout."""
    turn_count: float = 0.5
    """Minimum absolute correlation of a reward's total with the number of turns for a finding. An
    outcome that longer rollouts reach somewhat more often stays far below it."""
    turn_count_groups: int = 16
    """Minimum number of groups in which the reward and the number of turns vary."""
    turn_count_influence: float = 0.1
    """Minimum influence share of a reward at the first turn for the same two findings."""

    def effect(self, weight_share: Any) -> dict[Kind, Any]:
        """Return the influence share below which a reward has each kind of finding, worst first."""
        return {
            Kind.REVERSED: -self.reversed,
            Kind.IGNORED: self.ignored * weight_share,
            Kind.UNDER_WEIGHTED: self.under_weighted * weight_share,
        }

    def at_rest(self, place: float) -> Kind:
        """Return the kind of finding for a constant reward, from its place in its range."""
        if place >= self.top:
            return Kind.SATURATED
        return Kind.OUT_OF_REACH if place <= self.bottom else Kind.CONSTANT


class Row(NamedTuple):
    """Stores the words of one kind of finding.

    Numbers are inserted at `{number}`, and the names of the rewards at `{0}` and `{1}`.
    """

    severity: Severity
    message: str
    remedy: str
    logged: str = ""
    """The message for a run for which only means and standard deviations are known."""
    logged_remedy: str = ""
    verdict: str = ""
    """What a verdict asks the user to do, with the rewards at `{names}`. Empty: a note, or the
    verdict names the cause and the setting."""


_CONSTANT = "`{0}` is constant in {share} of its {groups} groups{start}, at {mean}"
_LOGGED = "`{0}` {is_} constant: its {number} {when}"
_EFFECT = (
    "`{0}` {what}: over {groups} groups{start} it has {share} of the influence. Cause ({causes}): "
    "{reasons}"
)
_MAY = "it has {weight} of the weight, but {what}"
_RECORD = (
    "record rollouts to see its influence and what helps. An estimator that normalizes each reward "
    "(gdpo) does not depend on the std; others, such as GRPO, add the rewards as they are"
)
_KEEP = "no action needed: keep the reward, so that the policy keeps what it learned"

TABLE: Mapping[Kind, Row] = {
    Kind.NO_SIGNAL: Row(
        Severity.WARNING,
        "all advantages are exactly 0 in {share} of the {groups} groups{start}, so these groups do "
        "not train the policy",
        "{remedy}",
        "{share} of the groups have zero advantage at the end of the run, so they give no signal",
        "change the prompts, or draw more samples per prompt",
        "use prompts of another difficulty, more samples per prompt or a warm start: most groups "
        "have no signal",
    ),
    Kind.NEVER_APPLIES: Row(
        Severity.WARNING,
        "`{0}` is missing from every rollout of {groups} groups{start}",
        "check whether the reward function fails, whether its gate ever opens, and whether the "
        "dataset has the column that it reads",
        verdict="check the reward function: {names} is missing from every rollout",
    ),
    Kind.REVERSED: Row(
        Severity.WARNING,
        _EFFECT,
        "{remedy}",
        f"`{{0}}` may be pushed against its weight: {_MAY}",
        _RECORD,
    ),
    Kind.OUT_OF_REACH: Row(
        Severity.WARNING,
        f"{_CONSTANT}, the {{end}} of its range. The policy almost never earns it",
        "{remedy}",
        f"{_LOGGED}, the {{end}} of its range. The policy almost never earns it",
        "use easier prompts, larger groups or partial credit, or warm-start the policy",
    ),
    Kind.IGNORED: Row(
        Severity.WARNING, _EFFECT, "{remedy}", f"`{{0}}` may be ignored: {_MAY}", _RECORD
    ),
    Kind.UNDER_WEIGHTED: Row(
        Severity.WARNING,
        _EFFECT,
        "{remedy}",
        f"`{{0}}` may have less influence than its weight: {_MAY}",
        _RECORD,
    ),
    Kind.OPPOSED: Row(
        Severity.WARNING,
        "`{0}` and `{1}` pull in opposite directions: {related}",
        "set the weights by priority, or gate one reward on the other, so that it counts only "
        "where the other is reached",
        verdict="set the weights by priority, or gate one reward on the other: {names} pull in "
        "opposite directions",
    ),
    Kind.CONFLICT: Row(
        Severity.WARNING,
        "different rewards pull {conflict} of the rollouts in opposite directions ({chance} "
        "expected by chance), so no policy can earn all of them",
        "set the weights by priority, or gate the less important rewards on the main one",
        verdict="set the weights by priority, or gate the less important rewards: most rollouts "
        "are pulled in opposite directions",
    ),
    Kind.BELOW_RESOLUTION: Row(
        Severity.WARNING,
        "`{0}` differs in {share} of its groups by no more than the rounding error of {precision} "
        "(its mean is {mean:.3g}), so these groups count as constant",
        "if the differences are real, subtract the constant part of the reward{wider}; if they are "
        "rounding errors, round the reward",
        verdict="subtract the constant part of {names}, or round it: it differs only by rounding "
        "errors",
    ),
    Kind.CONSTANT: Row(
        Severity.WARNING,
        f"{_CONSTANT}, {{where}}",
        "{remedy}",
        _LOGGED,
        "{remedy}",
        "change {names}, or remove it: it does not vary within groups",
    ),
    Kind.PAID_PER_TURN: Row(
        Severity.WARNING,
        "`{0}` is paid on {paid} of the turns, so longer is better: it adds up to {total} per "
        "rollout, {ratio} the difference that the end makes ({ends}: {worth}), and it has a "
        "correlation of {correlation} with the number of turns",
        "give `{0}` once, at the last turn, or multiply its weight by {factor} or less",
        verdict="pay less of {names} per turn: its total exceeds what the end pays",
    ),
    Kind.CONSTANT_TURNS: Row(
        Severity.WARNING,
        "after turn {turn}, no reward varies: in at least {least} of the {groups} groups, all "
        "rollouts that take turn {next} earn the same from there on, so {share} of all turns give "
        "no signal",
        "limit the number of turns to {turn}, add a reward that varies at later turns, or check "
        "why all rollouts that continue earn the same",
        verdict="end rollouts earlier, or reward the later turns: they give no signal",
    ),
    Kind.TINY_STD: Row(
        Severity.WARNING,
        "`{0}` varies by only {part} of its range within a group, but has {share} of the "
        "influence. If this variation is noise, it is amplified",
        "set noise_floor to the smallest difference in `{0}` that matters, in the unit of the "
        "reward; or declare the range that the reward actually covers",
        verdict="set noise_floor for {names}: it varies by a tiny part of its range",
    ),
    Kind.REDUNDANT: Row(
        Severity.WARNING,
        "`{0}` and `{1}` measure nearly the same thing, which counts twice: {related}",
        "remove one of them, halve both weights, or use the gdpo_decorrelated estimator",
        verdict="remove one of {names}: they measure nearly the same thing",
    ),
    Kind.GAIN: Row(
        Severity.WARNING,
        "only {alive} of the groups have signal, and their advantages are {ratio} the usual size. "
        "Batch normalization scales them up, which acts like a larger learning rate",
        "use prompts on which more groups vary, lower the learning rate, or use an estimator "
        "without batch normalization (mo_grpo)",
        verdict="use prompts on which more groups vary, or lower the learning rate",
    ),
    Kind.EXTREME: Row(
        Severity.WARNING,
        "the largest advantage is {largest:.3g}, {ratio} the root mean square in the groups that "
        "have signal, so one rollout can dominate a step",
        "set max_advantage to {limit:.3g} if the estimator has this option; otherwise check the "
        "rewards for outliers",
        verdict="set max_advantage, or check the rewards for outliers",
    ),
    Kind.ONE_GROUP: Row(
        Severity.WARNING,
        "the batch has only one group, and its advantages are divided by their own standard "
        "deviation. This removes the differences in size that the estimator creates between groups",
        "put more prompts into a batch, or use an estimator without batch normalization (mo_grpo)",
        verdict="put more prompts into a batch",
    ),
    Kind.MOSTLY_MISSING: Row(
        Severity.NOTE,
        "`{0}` is missing from {missing} of the rollouts, so only a few rollouts train it",
        "no action needed if the reward is meant to be rare; otherwise check whether its function "
        "fails, or choose prompts to which it applies",
    ),
    Kind.TURN_COUNT: Row(
        Severity.NOTE,
        "`{0}` favors {which} turns: over {groups} groups, its total has a correlation of "
        "{correlation} with the number of turns, and the advantages have one of {advantages}",
        "no action needed if rollouts with {which} turns are meant to be better; otherwise "
        "{remedy}",
    ),
    Kind.SATURATED: Row(
        Severity.NOTE,
        f"{_CONSTANT}, {{end}}. The policy has learned it, so it gives no further signal",
        _KEEP,
        f"{_LOGGED}, the {{end}} of its range. It is learned, and gives no further signal",
        _KEEP,
    ),
    Kind.MERGED: Row(
        Severity.NOTE,
        "a group of {samples} has {distinct:.1f} different advantages on average. GRPO would give "
        "{distinct_grpo:.1f}: it merges combinations of rewards that have the same sum",
        "no action needed{remedy}",
    ),
}
"""The words of each kind of finding, the worst kind first, as in `Kind`."""


def finding(
    kind: Kind,
    rewards: tuple[str, ...],
    evidence: Mapping[str, float],
    *,
    severity: Severity | None = None,
    logged: bool = False,
    remedies: tuple[tuple[Cause, ...], tuple[Remedy, ...]] = ((), ()),
    **words: Any,
) -> Finding:
    """Return a finding in the words of its row, with the numbers in `words`.

    The number and the first step of the groups come from the evidence. `logged`: only means and
    standard deviations are known. `remedies`: the causes and the replayed settings.
    """
    since = evidence.get("from_step")
    start = "" if since is None else f" from step {since:,.0f}"
    words = {"groups": f"{evidence.get('groups', 0):,.0f}", "start": start, **words}
    row = TABLE[kind]
    texts = (row.logged, row.logged_remedy) if logged else (row.message, row.remedy)
    message, remedy = (text.format(*rewards, **words) for text in texts)
    return Finding(kind, severity or row.severity, rewards, message, remedy, evidence, *remedies)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings by severity and then by kind, the worst first."""
    return tuple(sorted(findings, key=attrgetter("rank")))


def of_batch(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield the findings about a single batch. Sums over groups show the others (`effect`).

    Opposed rewards explain any conflict. Rewards with weight 0 have no findings.
    """
    d = diagnosis
    yield from _of_rewards(d, thresholds)
    pairs = list(_of_pairs(d, thresholds))
    yield from pairs
    if d.conflict is not None and all(pair.kind is not Kind.OPPOSED for pair in pairs):
        chance = d.chance_conflict or 0.0
        error = sqrt(chance * (1 - chance) / d.rollouts)
        agree = 1 - d.conflict <= thresholds.agreement * (1 - chance)
        if agree and d.conflict - chance > thresholds.standard_errors * error:
            evidence = {"conflict": d.conflict, "chance_conflict": chance}
            shares = (percent(d.conflict), percent(chance))
            yield finding(Kind.CONFLICT, (), evidence, conflict=shares[0], chance=shares[1])
    yield from _of_advantages(d, thresholds)


def _of_rewards(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    for reward in diagnosis.rewards:
        if reward.weight == 0:
            continue
        of, share = (reward.name,), reward.influence_share or 0
        lost, mean = reward.below_resolution or 0.0, reward.mean or 0.0
        if thresholds.missing <= reward.missing < 1:
            missing = {"missing": reward.missing}
            yield finding(Kind.MOSTLY_MISSING, of, missing, missing=percent(reward.missing))
        if lost >= thresholds.below_resolution:
            wide = diagnosis.precision == "float64"
            yield finding(
                Kind.BELOW_RESOLUTION,
                of,
                {"below_resolution": lost, "mean": mean, "groups": float(reward.groups)},
                severity=Severity.NOTE if reward.groups < thresholds.few_groups else None,
                share=percent(lost),
                precision=diagnosis.precision,
                mean=mean,
                wider="" if wide else ", or pass the rewards in float64",
            )
            continue
        # With a noise floor, or summed with larger rewards, a small variation does no harm.
        varies = (reward.zero_variance_groups or 0) < thresholds.zero_variance
        counts = share >= (reward.weight_share or 0) / 2
        std, low, high = reward.varying_std, reward.low, reward.high
        if varies and counts and std and low is not None and high is not None:
            part = std / (high - low)
            if part < thresholds.tiny_std:
                evidence = {"part_of_range": part, "varying_std": std, "influence_share": share}
                shares = (percent(part), percent(share))
                yield finding(Kind.TINY_STD, of, evidence, part=shares[0], share=shares[1])


def _of_pairs(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    for k, m in combinations(range(len(diagnosis.rewards)), 2):
        one, other = diagnosis.rewards[k], diagnosis.rewards[m]
        correlation, degrees = diagnosis.correlation[k][m], diagnosis.degrees[k][m]
        if degrees == 0 or one.weight == 0 or other.weight == 0:
            continue
        # Rewards that rise together are opposed if their weights have opposite signs.
        same_signs = (one.weight > 0) == (other.weight > 0)
        asked = correlation if same_signs else -correlation
        if -thresholds.opposed < asked < thresholds.redundant:
            continue
        if abs(asked) * sqrt(degrees) >= thresholds.standard_errors:
            related = f"their correlation within groups is {correlation:.2f}"
            related += "" if same_signs else ", and their weights have opposite signs"
            evidence = {"correlation": correlation, "degrees": degrees}
            kind = Kind.OPPOSED if asked <= -thresholds.opposed else Kind.REDUNDANT
            yield finding(kind, (one.name, other.name), evidence, related=related)


_UNIT = 1e-3
"""If advantages were divided by their own standard deviation, it differs from 1 by at most this,
even in float32."""

_NORMALIZED = (0.8, 1.2)
"""Range of the root mean square of all advantages of a batch after batch normalization. It differs
from 1 in small batches, and if some rollouts have no reward."""


def _of_advantages(d: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    rms, dead = d.signal_rms or 0.0, d.zero_advantage_groups
    # Without batch normalization, advantages are large because of the unit of the rewards.
    low, high = _NORMALIZED
    if low < rms * sqrt(1 - dead) < high and rms >= thresholds.signal_rms:
        evidence = {"signal_rms": rms, "zero_advantage_groups": dead}
        yield finding(Kind.GAIN, (), evidence, alive=percent(1 - dead), ratio=times(rms))
    if rms and d.largest / rms > thresholds.extreme:
        evidence = {"largest": d.largest, "signal_rms": rms}
        ratio, limit = times(d.largest / rms), thresholds.extreme * rms
        yield finding(Kind.EXTREME, (), evidence, largest=d.largest, ratio=ratio, limit=limit)
    # GRPO divides each group by its own std, so advantages that equal GRPO's lose nothing.
    alone = d.prompts == 1 and d.rollouts > 1 and (d.same_as_grpo or 0.0) < thresholds.same
    if alone and abs(rms * sqrt(d.rollouts / (d.rollouts - 1)) - 1) < _UNIT:
        yield finding(Kind.ONE_GROUP, (), {"prompts": 1.0})
    here, in_grpo = d.distinct or 0.0, d.distinct_grpo or 0.0
    if here and in_grpo <= thresholds.merged * here:
        use = ": the estimator is meant to separate such combinations"
        if d.estimator is None:
            use = (
                " if the advantages were computed from these rewards and weights; otherwise pass "
                "the rewards and weights that were used"
            )
        numbers = {"distinct": here, "distinct_grpo": in_grpo}
        words: dict[str, Any] = {"samples": d.samples, "remedy": use, **numbers}
        yield finding(Kind.MERGED, (), numbers, **words)
