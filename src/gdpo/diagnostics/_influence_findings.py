"""Findings about what the advantage follows: rewards that are ignored, or pushed the wrong way.

They are made from sums over groups, of one batch or of the last steps of a run, because the few
groups of one step show noise.
"""

from collections.abc import Iterator
from math import inf, sqrt
from typing import NamedTuple

from gdpo.diagnostics._finding import Finding, Kind, Severity
from gdpo.diagnostics._influence import Influence
from gdpo.diagnostics._text import interval, percent, times
from gdpo.diagnostics._thresholds import Thresholds

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
        if reward.weight_share == 0 or reward.live < thresholds.least_live:
            continue
        margin = thresholds.standard_errors * reward.error
        if reward.correlation < -margin and -reward.share >= thresholds.reversed:
            yield _reversed(reward, influence.groups)
        elif _is_ignored(reward, margin, thresholds):
            yield _ignored(reward, _dominating(reward, rewards), influence.groups)


def _is_ignored(reward: _Reward, margin: float, thresholds: Thresholds) -> bool:
    # Where a few groups have all of the advantages, a correlation over all groups is small.
    little = reward.share + reward.margin < reward.weight_share / 2
    hardly = reward.correlation + margin < thresholds.ignored * reward.asked
    return little and hardly and reward.asked > 0


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


def _dominating(reward: _Reward, rewards: list[_Reward]) -> _Reward | None:
    """Return the other reward that has the most influence for its weight, or None."""
    others = [other for other in rewards if other is not reward and other.weight_share > 0]
    return max(others, key=lambda other: other.share / other.weight_share, default=None)


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
