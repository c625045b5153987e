"""Defines limits and wording of all findings, and the rules for those about one batch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Any, NamedTuple

from gdpo._text import Setting
from gdpo.diagnostics.diagnosis import (
    Cause,
    Diagnosis,
    Finding,
    Kind,
    Severity,
    percent,
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
    ignored: float = 0.25
    """A reward is ignored if its influence share is below this part of its weight share. A verdict
    says this limit and the next one in words (`_ENOUGH` in analysis/verdict.py)."""
    least_share: float = 0.05
    """An ignored reward is a warning if its influence share is below this value, and else a note.
    In research/forks.md, rewards below it hardly moved."""
    reversed: float = 0.05
    """A reward is reversed if its influence share is negative, with a larger absolute value."""
    nudge: float = 0.1
    """A reward with less than this part of the largest weight has no warning about its influence.
    It may be pushed against its weight as long as the others pay for it."""
    falls: float = 0.05
    """A reward falls if its mean drops by more than this part of its range."""
    opposed: float = 0.5
    """Minimum absolute value of a negative correlation at which two rewards count as opposed. At
    this value and with equal weights, each reward loses half of its influence to the other."""
    redundant: float = 0.95
    """Minimum correlation at which two rewards count as redundant: they share 90 % of their
    variance."""
    zero_advantage: float = 0.9
    """Minimum share of zero-advantage groups at which a batch counts as having no signal."""

    def limits(self, weight_share: Any) -> dict[Kind, Any]:
        """Return the influence share below which a reward has each kind of finding, worst first."""
        return {
            Kind.REVERSED: -self.reversed,
            Kind.IGNORED: self.ignored * weight_share,
        }


DOMINANT = 1.5
"""A reward is dominant if its influence share is above this multiple of its weight share, while
another one has less than half of its own. Used by analysis/run.py for a whole run."""


class Wording(NamedTuple):
    """Stores the words of one kind of finding.

    Numbers are inserted at `{number}`, and the names of the rewards at `{0}` and `{1}`.
    """

    severity: Severity
    message: str
    remedy: str
    verdict: str = ""
    """What a verdict asks the user to do, with the rewards at `{names}`. Empty: a note, or the
    verdict names the cause and the setting."""


_CONSTANT = "`{0}` is constant in {share} of its {groups} groups{start}, at {mean}"
_EFFECT = (
    "`{0}` {what}: over {groups} groups{start} it has {share} of the influence. Cause ({named}): "
    "{reasons}"
)

TABLE: Mapping[Kind, Wording] = {
    Kind.NO_SIGNAL: Wording(
        Severity.WARNING,
        "all advantages are exactly 0 in {share} of the {groups} groups{start}, so these groups do "
        "not train the policy",
        "{remedy}",
        "most groups have no signal: all of their samples earn the same",
    ),
    Kind.NEVER_APPLIES: Wording(
        Severity.WARNING,
        "`{0}` is missing from every rollout of {groups} groups{start}",
        "check whether the reward function fails, whether its gate ever opens, and whether the "
        "dataset has the column that it reads",
        verdict="check the reward function: {names} is missing from every rollout",
    ),
    Kind.FALLS: Wording(
        Severity.WARNING,
        "`{0}` falls: its mean went from {first} to {last}{beside}",
        "read rollouts of the first and of the last steps before you train on",
        verdict="read rollouts of the first and of the last steps before you train on: {names} "
        "falls",
    ),
    Kind.REVERSED: Wording(Severity.WARNING, _EFFECT, "{remedy}"),
    Kind.OUT_OF_REACH: Wording(
        Severity.WARNING,
        f"{_CONSTANT}, the {{end}} of its range. The policy almost never earns it",
        "{remedy}",
    ),
    Kind.IGNORED: Wording(Severity.WARNING, _EFFECT, "{remedy}"),
    Kind.DOMINANT: Wording(
        Severity.NOTE,
        "`{0}` has {share} of the influence for {weight} of the weight. Less than half of its "
        "weight share is left for {others}",
        "what follows depends on what the weights mean",
        verdict="decide how much {names} matters: it has far more influence than its weight",
    ),
    Kind.OPPOSED: Wording(
        Severity.WARNING,
        "`{0}` and `{1}` pull in opposite directions: {related}",
        "decide which of them matters more: what raises one lowers the other",
        verdict="decide which of {names} matters more: they pull in opposite directions",
    ),
    Kind.BELOW_RESOLUTION: Wording(
        Severity.WARNING,
        "`{0}` differs in {share} of its groups by no more than the rounding error of {precision} "
        "(its mean is {mean:.3g}), so these groups count as constant",
        "if the differences are real, subtract the constant part of the reward{wider}; if they are "
        "rounding errors, round the reward",
        verdict="subtract the constant part of {names}, or round it: it differs only by rounding "
        "errors",
    ),
    Kind.CONSTANT: Wording(
        Severity.WARNING,
        f"{_CONSTANT}, {{where}}",
        "{remedy}",
        "{names} does not vary within groups, so it does not train the policy",
    ),
    Kind.REDUNDANT: Wording(
        Severity.WARNING,
        "`{0}` and `{1}` measure nearly the same thing, which counts twice: {related}",
        "together, they count as one reward with both weights",
        verdict="decide whether {names} should count twice: they measure nearly the same thing",
    ),
    Kind.ONE_GROUP: Wording(
        Severity.WARNING,
        "the batch has only one group, and its advantages are divided by their own standard "
        "deviation. This removes the differences in size that the estimator creates between groups",
        "put more prompts into a batch, or use an estimator without batch normalization (mo_grpo)",
        verdict="put more prompts into a batch",
    ),
    Kind.MOSTLY_MISSING: Wording(
        Severity.NOTE,
        "`{0}` is missing from {missing} of the rollouts, so the policy learns it from few of them",
        "no action needed if the reward is meant to be rare; otherwise check whether its function "
        "fails, or choose prompts to which it applies",
    ),
    Kind.SATURATED: Wording(
        Severity.NOTE,
        f"{_CONSTANT}, {{end}}. The policy has learned it, so it gives no further signal",
        "no action needed: keep the reward, so that the policy keeps what it learned",
    ),
}
"""The words of each kind of finding, the worst kind first, as in `Kind`."""


def finding(
    kind: Kind,
    rewards: tuple[str, ...],
    evidence: Mapping[str, float],
    *,
    severity: Severity | None = None,
    causes: tuple[Cause, ...] = (),
    setting: Setting | None = None,
    **words: Any,
) -> Finding:
    """Return a finding in the words of its row, with the numbers in `words`.

    The number and the first step of the groups come from the evidence.
    """
    since = evidence.get("from_step")
    start = "" if since is None else f" from step {since:,.0f}"
    words = {"groups": f"{evidence.get('groups', 0):,.0f}", "start": start, **words}
    row = TABLE[kind]
    message, remedy = (text.format(*rewards, **words) for text in (row.message, row.remedy))
    severity = severity or row.severity
    return Finding(kind, severity, rewards, message, remedy, evidence, causes, setting)


def of_batch(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield the findings about a single batch. Sums over groups show the others (`looks`).

    Rewards with weight 0 have no findings.
    """
    for reward in diagnosis.rewards:
        if reward.weight == 0:
            continue
        lost, mean = reward.below_resolution or 0.0, reward.mean or 0.0
        if thresholds.missing <= reward.missing < 1:
            evidence = {"missing": reward.missing}
            missing = percent(reward.missing)
            yield finding(Kind.MOSTLY_MISSING, (reward.name,), evidence, missing=missing)
        if lost >= thresholds.below_resolution:
            wide = diagnosis.precision == "float64"
            yield finding(
                Kind.BELOW_RESOLUTION,
                (reward.name,),
                {"below_resolution": lost, "mean": mean, "groups": float(reward.groups)},
                severity=Severity.NOTE if reward.groups < _FEW_GROUPS else None,
                share=percent(lost),
                precision=diagnosis.precision,
                mean=mean,
                wider="" if wide else ", or pass the rewards in float64",
            )
    yield from _of_pairs(diagnosis, thresholds)
    # GRPO divides each group by its own std, so advantages that equal GRPO's lose nothing.
    alone = diagnosis.prompts == 1 and diagnosis.rollouts > 1
    if alone and (diagnosis.same_as_grpo or 0.0) < _SAME:
        own = sqrt(diagnosis.rollouts / (diagnosis.rollouts - 1))
        if abs((diagnosis.signal_rms or 0.0) * own - 1) < _UNIT:
            yield finding(Kind.ONE_GROUP, (), {"prompts": 1.0})


_UNIT = 1e-3
"""If advantages were divided by their own standard deviation, it differs from 1 by at most this,
even in float32."""

_SAME = 0.999
"""Minimum correlation at which advantages count as equal to GRPO's: 0.2 % of the variance differs.
"""

_FEW_GROUPS = 7
"""Number of groups below which `below_resolution` is a note."""


_STANDARD_ERRORS = 3.0
"""Minimum distance of a correlation from 0, in standard errors. It is exceeded by chance in 0.3 %
of the batches."""


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
        if abs(asked) * sqrt(degrees) >= _STANDARD_ERRORS:
            related = f"their correlation within groups is {correlation:.2f}"
            related += "" if same_signs else ", and their weights have opposite signs"
            evidence = {"correlation": correlation, "degrees": degrees}
            kind = Kind.OPPOSED if asked <= -thresholds.opposed else Kind.REDUNDANT
            yield finding(kind, (one.name, other.name), evidence, related=related)
