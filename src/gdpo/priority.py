r"""Computes the weight above which a primary reward always wins within a group.

A reward $p$ has priority if, in every group of $G$ samples, a sample with a larger value of $p$ has
a larger advantage, whatever the other rewards are. Many estimators order a group by
$\sum_k w_k s_k$, a weighted sum of the rewards (`SUMS`), or of the rewards standardized within the
group (`SCORES`). Then $p$ has priority if and only if

$$ w_p \, d > \sum_{k \ne p} w_k \, g_k. $$

$d$ is the smallest difference that a larger value of $p$ can make, and $g_k$ the largest that
reward $k$ can make against it. Rewards can occur in any combination, so the worst group combines
the worst groups of all rewards. If rewards are gated on $p$, the inequality must hold for each
number of open gates. Nothing is known about other estimators, options and gates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import copysign, inf, isfinite, nan
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gdpo._left import absent
from gdpo._naming import refuse_unknown
from gdpo._shapes import Float
from gdpo.advantages import AdvantageRule
from gdpo.errors import ConfigError
from gdpo.rewards.gates import Gate, check_gates

__all__ = [
    "SCORES",
    "SUMS",
    "Combination",
    "Continuous",
    "Counterexample",
    "Priority",
    "beats",
    "priority",
]

SUMS = ("corr_grpo", "dvao", "grpo", "grpo_batch_norm", "grpo_batch_std", "grpo_no_std", "rloo")
"""Estimators that order a group by the weighted sum of the rewards."""

SCORES = ("gdpo", "mo_grpo")
"""Estimators that order a group by the weighted sum of the standardized rewards."""

_ORDER_KEPT = ("scale_half_life", "token_counts", "schedules")
"""Options that do not change the order within a group, given the weights."""

MOST_VALUES, LARGEST = 64, 1e60
"""Maximum number of values of a reward, and of their absolute value, so that squares are finite."""

_SHOWN = 8
"""Maximum number of values of a reward that a table lists."""

_TIE = 1e-9
"""Difference of two advantages, or relative difference of two weights, that counts as none."""


class Continuous(NamedTuple):
    """The range of a reward that can have every value from `low` to `high`."""

    low: float
    high: float


Values: TypeAlias = Sequence[float] | Continuous
"""All values that a reward can have, or its range."""

Pairs: TypeAlias = Float[np.ndarray, "pair 2"]
"""Pairs of values of a reward: of the sample that should win, and of the one that should lose."""

Lead: TypeAlias = tuple[float, Float[np.ndarray, " sample"]]
"""The largest lead of the sample that should lose, and the reward's values in the group with this
lead. The sample that should win comes first, then the one that should lose."""


@dataclass(frozen=True, slots=True)
class Combination:
    """Stores how the rewards of a run are combined.

    Args:
        weights: Weights, with the factors of schedules.
        samples: Samples in a group, at least 2.
        estimator: Name of the estimator.
        options: The estimator's options, as in `AdvantageRule`.
        gates: Gates by the name of the gated reward.
    """

    weights: Mapping[str, float]
    samples: int
    estimator: str = "gdpo"
    options: Mapping[str, Any] = field(default_factory=dict)
    gates: Mapping[str, Gate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigError(f"samples is {self.samples}: a group has at least 2 samples")
        check_gates(list(self.weights), self.gates)
        for name, weight in self.weights.items():
            if not isfinite(weight):
                raise ConfigError(f"{name!r} has the weight {weight}: give a finite number")

    @property
    def at_least(self) -> float:
        """Return the threshold of the first gate. Minus infinity: no reward is gated."""
        return next((gate.at_least for gate in self.gates.values()), -inf)

    def is_known(self, primary: str) -> bool:
        """Return whether there is an answer for this estimator, its options and the gates."""
        opening = {(gate.on, gate.at_least, gate.of) for gate in self.gates.values()}
        return (
            self.estimator in (*SUMS, *SCORES)
            and set(self.options) <= set(_ORDER_KEPT)
            and opening <= {(primary, self.at_least, "rollout")}
        )


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Stores a group whose first sample should win, but is not ahead of the second."""

    rewards: Float[np.ndarray, "sample reward"]
    """Rewards after their gates are applied. NaN: missing."""
    advantages: Float[np.ndarray, " sample"]


@dataclass(frozen=True, slots=True)
class Priority:
    """Stores whether a primary reward always wins, and the weights with which it would.

    All weights but the one in question are those in force.
    """

    primary: str
    holds: bool | None = None
    """Whether the primary reward always wins. None: not known."""
    smallest: float | None = None
    """The weight of the primary reward must be above this number. Infinity: no weight is enough.
    None: the number is not known."""
    largest: Mapping[str, float] = field(default_factory=dict)
    """For each other reward, the number that its absolute weight must be below. 0: the other
    rewards break the priority even without it. Infinity: it cannot break the priority."""
    counterexample: Counterexample | None = None


def priority(combined: Combination, values: Mapping[str, Values], primary: str) -> Priority:
    r"""Return whether a primary reward always wins, and above which weight.

    For $K$ other binary rewards with weight 1, this weight is $K$ for `grpo`, and
    $K \sqrt{\lfloor G^2 / 4 \rfloor / (G - 1)}$ for `gdpo`.

    Args:
        combined: How the rewards are combined.
        values: Values or range of each reward, before gates. If the primary reward has a
            range and another one can oppose it, no weight is enough: two of its values can differ
            by arbitrarily little.
        primary: Name of the primary reward. Its weight must be positive.

    Raises:
        ConfigError: If a reward is unknown, has no values, or the weight is not positive.

    Examples:
        >>> binary = {"correct": [0, 1], "format": [0, 1]}
        >>> combined = Combination({"correct": 1, "format": 1}, samples=8)
        >>> round(priority(combined, binary, "correct").smallest, 3)
        1.512
    """
    values = _checked(combined, values, primary)
    w = combined.weights[primary]
    if w <= 0:
        raise ConfigError(
            f"the primary reward {primary!r} has the weight {w:g}: give it a positive weight"
        )
    if len(values[primary]) == 1:
        return Priority(primary, True, 0.0, dict.fromkeys(combined.weights, inf))
    if not combined.is_known(primary):
        return Priority(primary)
    pairs = {name: _pairs(each) for name, each in values.items()}
    pairs[primary] = _closest(values[primary])
    cases = _cases(combined, values, primary, pairs)
    leads = {name: np.array([case[name][0] for case in cases]) for name in values}
    others = {name: abs(combined.weights[name]) * leads[name] for name in values if name != primary}
    gain, loss = -leads[primary], sum(others.values(), np.zeros(len(cases)))
    smallest = max(0.0, float(np.max(loss / gain)))
    smallest = inf if smallest and isinstance(values[primary], Continuous) else smallest
    largest: dict[str, float] = {}
    for name, own in others.items():
        if combined.weights[name]:
            most = _largest(w * gain - loss + own, leads[name])
            largest[name] = 0.0 if smallest == inf and most < inf else most
    holds = w > smallest * (1 + _TIE)
    worst = None if holds else _example(combined, values, cases[int(np.argmax(loss - w * gain))])
    return Priority(primary, holds, smallest, largest, worst)


def beats(
    combined: Combination,
    values: Mapping[str, Values],
    primary: str,
    right: Mapping[str, float],
    wrong: Mapping[str, float],
) -> Counterexample | None:
    """Return a group in which one given sample does not lose to another. None: none exists.

    Args:
        combined: How the rewards are combined.
        values: Values or range of each reward in the rest of the group, before gates.
        primary: Name of the primary reward.
        right: Values of the sample that should win, before gates, with more of the primary reward.
        wrong: Values of the sample that should lose.

    Raises:
        ConfigError: If a reward is unknown or has no values, or the combination has no known
            answer.
    """
    values = _checked(combined, values, primary, *right, *wrong)
    if missing := set(values) - (set(right) & set(wrong)):
        raise ConfigError(f"give both samples a value of {', '.join(sorted(missing))}")
    if right[primary] <= wrong[primary] or not combined.is_known(primary):
        raise ConfigError(f"it is not known which sample has the larger {primary} or advantage")
    pairs = {name: np.array([[right[name], wrong[name]]], dtype=np.float64) for name in values}
    cases = _cases(combined, values, primary, pairs)
    ahead = [sum(abs(combined.weights[k]) * lead for k, (lead, _) in c.items()) for c in cases]
    worst = int(np.argmax(ahead))
    return None if ahead[worst] < -_TIE else _example(combined, values, cases[worst])


def _checked(combined: Combination, values: Mapping[str, Values], *named: str) -> dict[str, Values]:
    """Return the values in the order of the weights: sorted and distinct, or a range."""
    refuse_unknown([*values, *named], list(combined.weights), "unknown reward")
    found: dict[str, Values] = {}
    for name in combined.weights:
        given = values.get(name, ())
        empty = isinstance(given, Continuous) and given.low >= given.high
        fits = not empty and 0 < len(given) <= MOST_VALUES
        if not (fits and all(abs(value) <= LARGEST for value in given)):
            raise ConfigError(
                f"{name!r} has {len(given)} values: give 1 to {MOST_VALUES} values up to "
                f"{LARGEST:g}, or Continuous(low, high) with low below high"
            )
        found[name] = given if isinstance(given, Continuous) else sorted(set(map(float, given)))
    return found


def _pairs(values: Values) -> Pairs:
    found = np.array(values, dtype=np.float64)
    if isinstance(values, Continuous):  # values around 0 matter if a closed gate gives 0
        near = min(abs(values.low), abs(values.high)) if values.low < 0 < values.high else 0.0
        found = np.concatenate([found, [near, -near] if near else []])
    return np.stack(np.meshgrid(found, found, indexing="ij"), axis=-1).reshape(-1, 2)


def _closest(values: Values) -> Pairs:
    """Return the pairs of values of the primary reward that can have the smallest difference.

    These are neighbors. The closer two values are, the further away the rest of the group can lie,
    and the smaller their difference in standard deviations.
    """
    if isinstance(values, Continuous):
        middle = (values.low + values.high) / 2
        return np.array([[middle + 1e-6 * (values.high - values.low), middle]])
    return np.array([(more, less) for less, more in pairwise(values)])


def _cases(
    combined: Combination, values: Mapping[str, Values], primary: str, pairs: Mapping[str, Pairs]
) -> list[dict[str, Lead]]:
    """Return the largest lead in each reward, for each number of open gates in the group.

    A case says which of the two samples have an open gate, and how many of the others. Within a
    case, rewards do not depend on each other. Without a gate, all count as open.
    """
    scores, others = combined.estimator in SCORES, combined.samples - 2
    signs = {name: copysign(1.0, weight) for name, weight in combined.weights.items()}
    free = {
        name: _lead(pairs[name], _Rest(values[name], others), signs[name], scores=scores)
        for name in values
        if name != primary and name not in combined.gates
    }
    opening = [value for value in values[primary] if value >= combined.at_least]
    closing = [value for value in values[primary] if value < combined.at_least]
    cases: list[dict[str, Lead]] = []
    for both in ((True, True), (True, False), (False, False)):
        is_open = pairs[primary] >= combined.at_least
        mine = pairs[primary][(is_open == both).all(axis=1)]
        for opened in range(others + 1):
            closed = others - opened
            if not len(mine) or (opened and not opening) or (closed and not closing):
                continue
            rest = _Rest(opening, opened, closing, closed)
            found = {primary: _lead(mine, rest, 1.0, scores=scores)}
            for name, gate in combined.gates.items():
                shut = 0.0 if gate.otherwise == "zero" else nan
                behind = np.where(both, pairs[name], shut)
                rest = _Rest(values[name], opened, [shut], closed)
                alone = gate.otherwise == "missing" and not all(both)
                lead = _lead_alone if alone else _lead
                found[name] = lead(behind, rest, signs[name], scores=scores)
            cases.append(free | found)
    return cases


class _Rest(NamedTuple):
    """Possible values of a reward in the rest of a group, behind open and closed gates."""

    opening: Values
    opened: int
    """Number of samples with values of `opening`."""
    closing: Sequence[float] = ()
    closed: int = 0


def _lead(pairs: Pairs, rest: _Rest, sign: float, *, scores: bool) -> Lead:
    """Return the largest lead of the sample that should lose in one reward.

    If this sample can be ahead, its standardized lead is largest when all others have one value.
    Otherwise, it is least behind when the others lie at the ends. Only `scores` are standardized.
    """
    opening, opened, closing, closed = rest
    lead = sign * (pairs[:, 1] - pairs[:, 0])
    if np.any(lead >= 0):
        pairs, lead = pairs[lead >= 0], lead[lead >= 0]
        zeros = closed if closing == [0.0] else 0
        near = _nearest(opening, pairs.sum(axis=1) / (2 + zeros))
        others = np.array([[*closing] * closed + [value] * opened for value in near])[:, None]
    else:  # the first others lie at their low end. Both ends of `closing` are below `opening`
        pools = [closing] * closed + [opening] * opened
        is_low = np.tri(len(pools) + 1, len(pools), -1, dtype=bool)
        others = np.where(is_low, [min(pool) for pool in pools], [max(pool) for pool in pools])
    shape = np.broadcast_shapes(others.shape[:-1], (len(pairs), 1))
    two = np.broadcast_to(pairs[:, None], (*shape, 2))
    groups = np.concatenate([two, np.broadcast_to(others, (*shape, others.shape[-1]))], axis=-1)
    gaps = np.broadcast_to(lead[:, None], shape)
    if scores:
        std = np.nanstd(groups, axis=-1, ddof=1)
        gaps = gaps / np.where(std > 0, std, 1.0)
    best = np.unravel_index(np.argmax(gaps), shape)
    return float(gaps[best]), groups[best]


def _nearest(values: Values, wanted: Float[np.ndarray, " pair"]) -> Float[np.ndarray, " pair"]:
    if isinstance(values, Continuous):
        return np.clip(wanted, *values)
    levels = np.array(values)
    return levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, wanted)]


def _lead_alone(pairs: Pairs, rest: _Rest, sign: float, *, scores: bool) -> Lead:
    """Return the largest lead if the sample that should lose has a missing value, which adds 0.

    If the sample that should win has a value, it is compared with the rest. It is furthest behind
    if all the rest have the same value.
    """
    best = float(min(pairs[:, 0], key=lambda value: sign * value))
    others = max(*rest.opening, key=lambda value: sign * value)
    group = np.array([best, nan, *[nan] * rest.closed, *[others] * rest.opened])
    lag, n = sign * (others - best), rest.opened + 1
    if best != best or not lag > 0 or n == 1:
        return 0.0, group
    return float((n - 1) / np.sqrt(n) if scores else (n - 1) / n * lag), group


def _example(
    combined: Combination, values: Mapping[str, Values], worst: Mapping[str, Lead]
) -> Counterexample:
    """Return the group of a case, with the advantages that the estimator gives."""
    low, high = ([end(values[name]) for name in combined.weights] for end in (min, max))
    options = {key: v for key, v in combined.options.items() if key not in _ORDER_KEPT}
    rule = AdvantageRule(combined.estimator, [*combined.weights], options, low=low, high=high)
    rewards = np.stack([worst[name][1] for name in combined.weights], axis=1)
    weights = np.array([*combined.weights.values()])
    return Counterexample(rewards, np.asarray(rule(rewards[None], weights))[0])


def _largest(spare: Any, leads: Any) -> float:
    """Return the weight of a reward below which the primary reward wins in every case."""
    most = float(np.min(spare[leads > 0] / leads[leads > 0], initial=inf))
    least = float(np.max(spare[leads < 0] / leads[leads < 0], initial=0.0))
    lost = np.any(spare[leads == 0] <= 0)
    return 0.0 if lost or most <= least else most


def in_words(combined: Combination, answer: Priority) -> str:
    """Return an answer as one or two sentences, without final period."""
    name, weight, smallest = answer.primary, combined.weights[answer.primary], answer.smallest
    if smallest is None:
        how = " with these options or gates" if combined.estimator in (*SUMS, *SCORES) else ""
        return f"whether {name} always wins is not known for {combined.estimator}{how}"
    if answer.holds:
        above = f"its weight {weight:g} is above {smallest:.4g}" if smallest else "with any weight"
        return f"{name} always wins within a group: {above}"
    text = f"{name} does not always win within a group"
    if smallest == inf:
        text += ", whatever its weight"
    else:
        text += f": its weight {weight:g} would have to be above {smallest:.4g}"
    shown = answer.counterexample
    return text if shown is None else f"{text}. {example_in_words(combined, shown)}"


def example_in_words(combined: Combination, example: Counterexample) -> str:
    """Return a counterexample's two samples as one sentence, without final period."""
    better, worse = (
        ", ".join(
            f"{name} {'missing' if value != value else f'{value:.4g}'}"
            for name, value in zip(combined.weights, rewards, strict=True)
        )
        + f" gets {advantage:+.2f}"
        for rewards, advantage in zip(example.rewards[:2], example.advantages[:2], strict=True)
    )
    of = len(example.advantages)
    return f"In one group of {of}, a sample with {worse}, and one with {better}"


def table_of(
    combined: Combination, values: Mapping[str, Values], answer: Priority
) -> tuple[tuple[str, ...], ...]:
    """Return rows of text, headings first: each reward with the weights that give priority."""
    rows = [("reward", "weight", "values", f"{answer.primary} wins if the weight is")]
    for name, weight in combined.weights.items():
        given = values[name]
        shown = ", ".join(f"{value:.4g}" for value in given)
        if isinstance(given, Continuous) or len(given) > _SHOWN:
            several = "" if isinstance(given, Continuous) else f", {len(given)} values"
            shown = f"{min(given):.4g} to {max(given):.4g}{several}"
        limit = "any" if weight == 0 else "not known"
        if name == answer.primary and answer.smallest is not None:
            limit = "none" if answer.smallest == inf else f"above {answer.smallest:.4g}"
        elif (most := answer.largest.get(name)) is not None:
            limit = "any" if most == inf else f"below {most:.4g}" if most else "none"
        rows.append((name, f"{weight:g}", shown, limit))
    return tuple(rows)


def __getattr__(name: str) -> None:
    raise absent(__name__, name)
