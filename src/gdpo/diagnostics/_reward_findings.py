"""Findings about one reward by itself: it does not vary, does not apply, or varies by noise."""

from collections.abc import Iterator

from gdpo.diagnostics._diagnosis import Diagnosis, RewardDiagnosis
from gdpo.diagnostics._finding import Finding, Kind, Severity
from gdpo.diagnostics._text import percent
from gdpo.diagnostics._thresholds import Thresholds


def reward_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Those about each reward by itself."""
    for reward in diagnosis.rewards:
        if reward.weight == 0:
            continue
        yield from _missing(reward, thresholds)
        if (reward.below_resolution or 0) >= thresholds.below_resolution:
            yield _below_resolution(reward, diagnosis.precision, thresholds)
        elif is_dead(reward, thresholds):
            yield _dead(reward, thresholds)
        else:
            yield from _tiny_spread(reward, thresholds)


def is_dead(reward: RewardDiagnosis, thresholds: Thresholds) -> bool:
    """Whether it varies in so few groups that it hardly acts."""
    return reward.dead_groups is not None and reward.dead_groups >= thresholds.dead


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
    assert reward.dead_groups is not None, "a dead reward applies to a group"
    where, at = reward.saturation, "" if reward.mean is None else f" at {reward.mean:.3g}"
    constant = f"`{reward.name}` is constant in {percent(reward.dead_groups)} of its groups"
    severity = severity_of_share(reward.groups, thresholds)
    evidence = {"dead_groups": reward.dead_groups, "groups": float(reward.groups)}
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


def _tiny_spread(reward: RewardDiagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    if reward.low is None or reward.high is None or not reward.live_std:
        return
    part = reward.live_std / (reward.high - reward.low)
    # With a noise floor, or beside larger rewards that are summed first, it has no say.
    counts = (reward.influence_share or 0) >= (reward.weight_share or 0) / 2
    if part < thresholds.tiny_spread and counts:
        yield Finding(
            Kind.TINY_SPREAD,
            Severity.WARNING,
            (reward.name,),
            f"`{reward.name}` varies by {percent(part)} of its range in a group and still holds "
            f"{percent(reward.influence_share or 0)} of the influence: if that is noise, it is "
            "amplified",
            f"noise_floor: the difference in `{reward.name}` that means something, in its unit; or "
            "declare the range that it really uses",
            {
                "part_of_range": part,
                "live_std": reward.live_std,
                "influence_share": reward.influence_share or 0,
            },
        )
