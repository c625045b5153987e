"""Findings about who holds the influence: against the weights, and why."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from gdpo.diagnostics._diagnosis import Diagnosis, RewardDiagnosis
from gdpo.diagnostics._finding import Finding, Kind, Severity
from gdpo.diagnostics._measures import shares
from gdpo.diagnostics._pair_findings import asked_correlation
from gdpo.diagnostics._reward_findings import is_dead
from gdpo.diagnostics._text import percent, times
from gdpo.diagnostics._thresholds import Thresholds

_OPPOSITION = 0.3
"""Negative correlation that is named as the cause of a loss of influence."""
_RATIO = 2.0
"""Ratio of spreads, or of shares of groups that vary, that is named."""


@dataclass(frozen=True, slots=True)
class _Share:
    """One of the rewards that vary, and its shares among them."""

    index: int
    reward: RewardDiagnosis
    influence: float
    requested: float
    realized: float
    correlated: float
    """The share that it would have if only weights and correlations counted: |C w|."""
    error: float
    """Standard error of the influence."""

    @property
    def rate(self) -> float:
        """Influence for its weight: 1 is what was asked for."""
        return self.realized / self.requested


def influence_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """A reward that dominates, those that are drowned, and those that are pushed the wrong way.

    Only rewards that vary are compared: that a dead one has no influence is a finding of its own.
    """
    parts = _parts(diagnosis, thresholds)
    reversed_ = [part for part in parts if _is_reversed(part, thresholds)]
    for part in reversed_:
        yield _reversed(part)
    straight = [part for part in parts if part not in reversed_]
    drowned = [part for part in straight if _is_drowned(part, straight, thresholds)]
    largest = max(straight, key=lambda part: part.realized, default=None)
    if largest is not None and _dominates(largest, drowned, thresholds):
        yield _dominating(largest, drowned, diagnosis)
    else:
        for part in drowned:
            yield _drowned(part, _strongest(part, straight), diagnosis)


def _parts(diagnosis: Diagnosis, thresholds: Thresholds) -> list[_Share]:
    varying = [
        (index, reward)
        for index, reward in enumerate(diagnosis.rewards)
        if reward.weight != 0 and not is_dead(reward, thresholds) and reward.live_std
    ]
    requested = shares(reward.weight for _, reward in varying)
    realized = shares(reward.influence or 0.0 for _, reward in varying)
    places = [index for index, _ in varying]
    correlated = shares(
        sum(asked_correlation(diagnosis, k, m) * abs(diagnosis.rewards[m].weight) for m in places)
        for k in places
    )
    return [
        _Share(
            index=index,
            reward=reward,
            influence=reward.influence or 0.0,
            requested=wanted,
            realized=got or 0.0,
            correlated=expected or 0.0,
            error=_error(diagnosis, index),
        )
        for (index, reward), wanted, got, expected in zip(
            varying, requested, realized, correlated, strict=True
        )
        if wanted  # beside a weight that is larger by 300 digits it is 0
    ]


def _error(diagnosis: Diagnosis, index: int) -> float:
    """Of the mean of A z over n values, if A is shuffled in the groups in which z varies."""
    values = diagnosis.prompts * diagnosis.samples * (1 - diagnosis.rewards[index].missing)
    return (diagnosis.live_rms or 0.0) * sqrt(diagnosis.degrees[index][index]) / values


def _is_reversed(part: _Share, thresholds: Thresholds) -> bool:
    against = -part.influence if part.reward.weight > 0 else part.influence
    certain = against > thresholds.standard_errors * part.error
    return certain and part.realized >= thresholds.reversed


def _is_drowned(part: _Share, parts: list[_Share], thresholds: Thresholds) -> bool:
    wanted = part.requested * sum(abs(other.influence) for other in parts)
    shortfall = wanted - abs(part.influence)
    certain = shortfall > thresholds.standard_errors * part.error
    return certain and part.realized < thresholds.drowned * part.requested


def _dominates(part: _Share, drowned: list[_Share], thresholds: Thresholds) -> bool:
    excess = part.realized - part.requested
    too_much = excess >= thresholds.dominant_margin
    return bool(drowned) and too_much and part.realized >= thresholds.dominant


def _strongest(part: _Share, parts: list[_Share]) -> _Share:
    """The other reward with the most influence for its weight."""
    return max((p for p in parts if p is not part), key=lambda p: p.rate)


def _reversed(part: _Share) -> Finding:
    name, weight = part.reward.name, part.reward.weight
    return Finding(
        Kind.REVERSED,
        Severity.WARNING,
        (name,),
        f"`{name}` is pushed {'down' if weight > 0 else 'up'}: its weight is {weight:g}, and its "
        f"influence is {part.influence:.2g}; the rewards that it is opposed to outweigh it",
        f"raise the weight of `{name}`, accept that it gets worse, or gate the others on it",
        {"influence": part.influence, "weight": weight, "realized": part.realized},
    )


def _dominating(part: _Share, drowned: list[_Share], diagnosis: Diagnosis) -> Finding:
    weakest = min(drowned, key=lambda other: other.rate)
    names = part.reward.name, *(other.reward.name for other in drowned)
    return _unlike_its_weight(Kind.DOMINATES, part, weakest, names, diagnosis)


def _drowned(part: _Share, strongest: _Share, diagnosis: Diagnosis) -> Finding:
    names = part.reward.name, strongest.reward.name
    return _unlike_its_weight(Kind.DROWNED, part, strongest, names, diagnosis)


def _unlike_its_weight(
    kind: Kind, part: _Share, other: _Share, names: tuple[str, ...], diagnosis: Diagnosis
) -> Finding:
    weak = part if kind is Kind.DROWNED else other
    cause = (
        _opposition(part, other, diagnosis)
        or _rarity(part, other)
        or _agreement(part, other)
        or _spread(part, other)
        or _Cause("", f"raise the weight of `{weak.reward.name}`", {})
    )
    return Finding(
        kind,
        Severity.WARNING,
        names,
        f"`{part.reward.name}` holds {percent(part.realized)} of the influence for "
        f"{percent(part.requested)} of the weight{cause.clause}",
        cause.remedy,
        {"realized": part.realized, "requested": part.requested, **cause.evidence},
    )


class _Cause(NamedTuple):
    """Why the influence of two rewards differs from their weights."""

    clause: str
    """The end of a sentence about the first of them."""
    remedy: str
    evidence: dict[str, float]


def _opposition(part: _Share, other: _Share, diagnosis: Diagnosis) -> _Cause | None:
    if asked_correlation(diagnosis, part.index, other.index) > -_OPPOSITION:
        return None
    correlation = diagnosis.correlation[part.index][other.index]
    return _Cause(
        f": it and `{other.reward.name}` ask for opposite things (correlation {correlation:.2f})",
        "decide by the weights which matters more, or gate one on the other",
        {"correlation": correlation},
    )


def _rarity(part: _Share, other: _Share) -> _Cause | None:
    here, there = (1 - (share.reward.dead_groups or 0.0) for share in (part, other))
    if max(here, there) < _RATIO * min(here, there):
        return None
    rarer = part if here < there else other
    return _Cause(
        f": it varies in {percent(here)} of its groups, `{other.reward.name}` in {percent(there)}",
        f"choose prompts on which `{rarer.reward.name}` varies, or an estimator that raises "
        "rewards that rarely do: dara_symmetric, per_reward_batch_std",
        {"varies": here, "other_varies": there},
    )


def _agreement(part: _Share, other: _Share) -> _Cause | None:
    """If correlations explain most of it: rewards that agree support each other."""
    strong, weak = (part, other) if part.rate > other.rate else (other, part)
    expected = strong.correlated * weak.requested, weak.correlated * strong.requested
    if expected[0] * sqrt(weak.rate) < expected[1] * sqrt(strong.rate):
        return None
    return _Cause(
        ": other rewards agree with it and add to that"
        if strong is part
        else f": other rewards agree with `{other.reward.name}` and not with it",
        "use gdpo_decorrelated, which counts once what rewards share, or raise the weight of "
        f"`{weak.reward.name}`",
        {"correlated": part.correlated, "other_correlated": other.correlated},
    )


def _spread(part: _Share, other: _Share) -> _Cause | None:
    here, there = (share.reward.live_std or 1.0 for share in (part, other))
    ratio = max(here, there) / min(here, there)
    if ratio < _RATIO or (here > there) != (part.rate > other.rate):
        return None
    name = other.reward.name
    return _Cause(
        f": its spread is {times(ratio)} that of `{name}`"
        if here > there
        else f": the spread of `{name}` is {times(ratio)} its own",
        "normalize each reward by itself, as gdpo does, or divide each by its spread",
        {"spread_ratio": ratio},
    )
