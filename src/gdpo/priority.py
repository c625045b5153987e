r"""Computes the weight above which a primary reward always wins within a group.

A reward $p$ has priority if, in every group of $G$ samples, a sample with a larger value of $p$ has
a larger advantage, whatever the other rewards are. Most estimators order a group by
$\sum_k w_k s_k$, a weighted sum of the rewards (`SUMS`), or of the rewards standardized within the
group (`SCORES`). Then $p$ has priority if and only if

$$ w_p \, d > \sum_{k \ne p} w_k \, g_k. $$

$d$ is the smallest difference that a larger value of $p$ can make, and $g_k$ the largest that
reward $k$ can make against it. Rewards can occur in any combination, so the worst group combines
the worst groups of all rewards. Behind a gate, $d$ and $g_k$ are compared for each number of open
gates. For other estimators, all small groups are tried.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, product
from math import comb, copysign, inf, isfinite, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo._shapes import Float
from gdpo.advantages import AdvantageRule
from gdpo.errors import ConfigError
from gdpo.rewards.gates import Gate, apply_gates, check_gates

__all__ = [
    "SCORES",
    "SUMS",
    "Combination",
    "Continuous",
    "Counterexample",
    "Priority",
    "beats",
    "priority",
    "smallest_weight",
]

SUMS = ("corr_grpo", "dvao", "grpo", "grpo_batch_norm", "grpo_batch_std", "grpo_no_std", "rloo")
"""Estimators that order a group by the weighted sum of the rewards."""

SCORES = ("gdpo", "mo_grpo")
"""Estimators that order a group by the weighted sum of the standardized rewards."""

_ORDER_KEPT = ("scale_half_life", "token_counts", "schedules")
"""Options that do not change the order within a group, given the weights."""

_MOST_GROUPS = 1000
"""Maximum number of groups of one size that are tried one after another."""

_MOST_SAMPLES = 6
"""Largest size of the groups that are tried one after another."""

_MOST_VALUES, LARGEST = 256, 1e60
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

Difference: TypeAlias = tuple[Float[np.ndarray, " state"], Float[np.ndarray, "state sample"]]
"""The largest difference in each state, and the reward's values in the group that has it."""


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
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gates: Mapping[str, Gate] = field(default_factory=dict[str, Gate])

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigError(f"samples is {self.samples}: a group has at least 2 samples")
        check_gates(self.names, self.gates)
        for name, weight in self.weights.items():
            if not isfinite(weight):
                raise ConfigError(f"{name!r} has the weight {weight}: give a finite number")

    @property
    def names(self) -> list[str]:
        """Return the names of the rewards."""
        return list(self.weights)

    def rule(self, values: Mapping[str, Values]) -> Callable[[Any], Any]:
        """Return a function from rewards `[sample, reward]` of a one-group batch to advantages."""
        low, high = ([end(values[name]) for name in self.names] for end in (min, max))
        options = {key: v for key, v in self.options.items() if key not in _ORDER_KEPT}
        rule = AdvantageRule(self.estimator, self.names, options, low=low, high=high)
        weights = np.array(list(self.weights.values()))
        return lambda rewards: np.asarray(rule(rewards[None], weights))[0]


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Stores a group in which a sample with less of the primary reward is not behind."""

    rewards: Float[np.ndarray, "sample reward"]
    """Rewards behind their gates. NaN: missing."""
    advantages: Float[np.ndarray, " sample"]
    better: int = 0
    """Index of the sample with more of the primary reward."""
    worse: int = 1
    """Index of the sample with less of it, and an advantage at least as large."""


@dataclass(frozen=True, slots=True)
class Priority:
    """Stores whether a primary reward always wins, and the weights with which it would.

    All weights but the one in question are those in force.
    """

    primary: str
    holds: bool | None
    """Whether the primary reward always wins. None: not decided."""
    smallest: float | None = None
    """Its weight must be above this. Infinity: no weight is enough. None: not decided."""
    largest: Mapping[str, float] = field(default_factory=dict[str, float])
    """The absolute weight of another reward must be below this, by its name. 0: the others break
    the priority without it. Infinity: it cannot break it."""
    smallest_sign: float | None = None
    """From this weight on, no sample below the highest value of the primary reward has a positive
    advantage in a group with it. None: not decided."""
    counterexample: Counterexample | None = None
    tried_up_to: int | None = None
    """Size of the largest groups that were tried. None: the answer is exact."""


def smallest_weight(
    values: Mapping[str, Values],
    primary: str,
    *,
    weights: Mapping[str, float],
    samples: int,
    estimator: str = "gdpo",
) -> float | None:
    r"""Return the weight above which a primary reward always wins.

    For $K$ other binary rewards with weight 1, it is $K$ for `grpo`, and
    $K \sqrt{\lfloor G^2 / 4 \rfloor / (G - 1)}$ for `gdpo`.

    Args:
        values: Values or range of each reward.
        primary: Name of the primary reward.
        weights: Weight of each other reward. The primary one's is ignored.
        samples: Samples in a group.
        estimator: Name of the estimator.

    Returns:
        The weight. Infinity: no weight is large enough. None: not decided for this estimator.

    Raises:
        ConfigError: If a reward is unknown or has no values.

    Examples:
        >>> binary = {"correct": [0, 1], "format": [0, 1]}
        >>> round(smallest_weight(binary, "correct", weights={"format": 1}, samples=8), 3)
        1.512
    """
    combined = Combination(
        {**dict.fromkeys(values, 1.0), **weights, primary: 1.0}, samples, estimator
    )
    return priority(combined, values, primary).smallest


def priority(combined: Combination, values: Mapping[str, Values], primary: str) -> Priority:
    """Return whether a primary reward always wins, and above which weight.

    Args:
        combined: How the rewards are combined.
        values: Values or range of each reward, before gates. For an opposed primary reward with a
            range, no weight is enough: it can differ by arbitrarily little.
        primary: Name of the primary reward. Its weight must be positive.

    Raises:
        ConfigError: If a reward is unknown, has no values, or the weight is not positive.
    """
    values = _checked(combined, values, primary)
    if combined.weights[primary] <= 0:
        raise ConfigError(
            f"the primary reward {primary!r} has the weight {combined.weights[primary]:g}: give it "
            "a positive weight"
        )
    if len(values[primary]) == 1:
        return Priority(primary, True, 0.0, dict.fromkeys(combined.names, inf), 0.0)
    if not _is_exact(combined, values, primary):
        return _tried(combined, values, primary)
    gates = [gate.at_least for gate in combined.gates.values() if gate.on == primary]
    pairs = {name: _pairs(values[name]) for name in values if name != primary}
    pairs[primary] = _closest(values[primary], *gates)
    parts = _parts(combined, values, pairs, primary)
    w = combined.weights[primary]
    mine, others = parts[0], parts[1:]
    against = sum(float(np.max(part.against())) for part in others)
    gains, losses = -mine.differences[primary], mine.against(without=primary) + against
    smallest = max(0.0, float(np.max(losses / gains)))
    smallest = inf if smallest and isinstance(values[primary], Continuous) else smallest
    holds = w > smallest * (1 + _TIE)
    largest: dict[str, float] = {}
    room = w * gains - losses
    for part in parts:
        rest = part.against(without=primary)
        for name in part.differences:
            if name == primary or not combined.weights[name]:
                continue
            g, own = part.differences[name], abs(combined.weights[name])
            spare = room if part is mine else np.min(room) + np.max(rest) - rest
            most = _largest(spare + own * g, g)
            largest[name] = 0.0 if smallest == inf and most < inf else most
    return Priority(
        primary,
        holds,
        smallest,
        largest,
        _smallest_sign(combined, values, primary),
        None if holds else _worst_group(combined, values, parts),
    )


def in_words(combined: Combination, answer: Priority) -> str:
    """Return an answer as one or two sentences, without final period."""
    name, weight, smallest = answer.primary, combined.weights[answer.primary], answer.smallest
    if answer.holds is None:
        return f"whether {name} always wins is not decided for {combined.estimator}"
    if answer.holds and smallest is None:
        return f"{name} wins in every group of up to {answer.tried_up_to} samples; all were tried"
    if answer.holds:
        above = f"its weight {weight:g} is above {smallest:.4g}" if smallest else "with any weight"
        return f"{name} always wins within a group: {above}"
    text = f"{name} does not always win within a group"
    if smallest == inf:
        text += ", whatever its weight"
    elif smallest is not None:
        text += f": its weight {weight:g} would have to be above {smallest:.4g}"
    shown = answer.counterexample
    return text if shown is None else f"{text}. {example_in_words(combined, shown)}"


def example_in_words(combined: Combination, example: Counterexample) -> str:
    """Return a counterexample's two samples as one sentence, without final period."""
    worse, better = (
        ", ".join(
            f"{name} {'missing' if value != value else f'{value:.4g}'}"
            for name, value in zip(combined.names, example.rewards[place], strict=True)
        )
        + f" gets {example.advantages[place]:+.2f}"
        for place in (example.worse, example.better)
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
        limit = "any" if weight == 0 else "not decided"
        if name == answer.primary and answer.smallest is not None:
            limit = "none" if answer.smallest == inf else f"above {answer.smallest:.4g}"
        elif (most := answer.largest.get(name)) is not None:
            limit = "any" if most == inf else f"below {most:.4g}" if most else "none"
        rows.append((name, f"{weight:g}", shown, limit))
    return tuple(rows)


def _largest(spare: Any, differences: Any) -> float:
    opposes = differences > 0
    most = float(np.min(spare[opposes] / differences[opposes], initial=inf))
    helps = differences < 0
    least = float(np.max(spare[helps] / differences[helps], initial=0.0))
    lost = np.any(spare[differences == 0] <= 0)
    return 0.0 if lost or most <= least else most


def beats(
    combined: Combination,
    values: Mapping[str, Values],
    right: Mapping[str, float],
    wrong: Mapping[str, float],
) -> Counterexample | None:
    """Return a group in which one given sample does not lose to another. None: none exists.

    Args:
        combined: How the rewards are combined.
        values: Values or range of each reward in the rest of the group, before gates.
        right: Values of the sample that should win, before gates.
        wrong: Values of the sample that should lose.

    Raises:
        ConfigError: If a reward is unknown or has no values, or the combination has no known
            answer.
    """
    values = _checked(combined, values, *right, *wrong)
    if missing := set(values) - (set(right) & set(wrong)):
        raise ConfigError(f"give both samples a value of {', '.join(sorted(missing))}")
    if not _is_exact(combined, values, None):
        raise ConfigError(f"only {', '.join(SUMS + SCORES)} have an exact answer")
    pairs = {name: np.array([[right[name], wrong[name]]], dtype=np.float64) for name in values}
    parts = _parts(combined, values, pairs)
    if sum(float(np.max(part.against())) for part in parts) < -_TIE:
        return None
    return _worst_group(combined, values, parts)


def _checked(combined: Combination, values: Mapping[str, Values], *named: str) -> dict[str, Values]:
    """Return the values in the order of the weights: sorted and distinct, or a range."""
    refuse_unknown([*values, *named], combined.names, "unknown reward")
    found: dict[str, Values] = {}
    for name in combined.names:
        given = values.get(name, ())
        empty = isinstance(given, Continuous) and given.low >= given.high
        fits = not empty and 0 < len(given) <= _MOST_VALUES
        if not (fits and all(abs(value) <= LARGEST for value in given)):
            raise ConfigError(
                f"{name!r} has {len(given)} values: give 1 to {_MOST_VALUES} values up to "
                f"{LARGEST:g}, or Continuous(low, high) with low below high"
            )
        found[name] = given if isinstance(given, Continuous) else sorted(set(map(float, given)))
    return found


def _is_exact(combined: Combination, values: Mapping[str, Values], primary: str | None) -> bool:
    """Return whether the worst group follows from that of each reward."""
    gates, estimator = combined.gates, combined.estimator
    conditions = {(gate.on, gate.at_least) for gate in gates.values()}
    opening = {on for on, _ in conditions}
    return (
        estimator in (*SUMS, *SCORES)
        and set(combined.options) <= set(_ORDER_KEPT)
        and len(conditions) == len(opening)  # one threshold for each reward
        and not opening & set(gates)
        and primary not in gates
        and not any(isinstance(values[on], Continuous) for on in opening)
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Stores rewards that depend on each other, in all their states.

    A state is which of the two compared samples have an open gate, and how many of the others.
    Without a gate, there is one.
    """

    weights: Mapping[str, float]
    differences: dict[str, Float[np.ndarray, " state"]]
    """The largest lead of the worse sample in each reward."""
    groups: dict[str, Float[np.ndarray, "state sample"]]
    """Values in the group with this difference. The better and the worse sample come first."""

    def against(self, without: str | None = None) -> Any:
        """Return how much the worse sample can be ahead in each state, with weights."""
        return sum(
            abs(self.weights[name]) * g for name, g in self.differences.items() if name != without
        ) + np.zeros_like(next(iter(self.differences.values())))


def _parts(
    combined: Combination,
    values: Mapping[str, Values],
    pairs: Mapping[str, Float[np.ndarray, "pair 2"]],
    first: str | None = None,
) -> list[_Part]:
    free = sorted((n for n in values if n not in combined.gates), key=lambda name: name != first)
    return [_part(combined, on, values, pairs) for on in free]


def _part(
    combined: Combination,
    on: str,
    values: Mapping[str, Values],
    pairs: Mapping[str, Float[np.ndarray, "pair 2"]],
) -> _Part:
    """Return the largest differences of a reward and the rewards behind its gate.

    `pairs` holds what the better and the worse sample can have of each reward.
    """
    others = combined.samples - 2
    behind = {name: gate for name, gate in combined.gates.items() if gate.on == on}
    sign = {name: copysign(1.0, combined.weights[name]) for name in (on, *behind)}
    fixed: dict[str, Any] = {"samples": combined.samples, "scores": combined.estimator in SCORES}
    if not behind:
        gap, group = _widest(pairs[on], [(values[on], np.array([others]))], sign[on], **fixed)
        return _Part(combined.weights, {on: gap}, {on: group})
    at_least = next(iter(behind.values())).at_least
    levels = np.array(values[on])
    opening, closing = levels[levels >= at_least], levels[levels < at_least]
    states: list[dict[str, Difference]] = []
    for both in product((True, False), repeat=2):
        of_kind = pairs[on][((pairs[on] >= at_least) == both).all(axis=1)]
        opened = np.arange(others + 1)
        opened = opened[(len(opening) > 0) | (opened == 0)]
        opened = opened[(len(closing) > 0) | (opened == others)]
        if not len(of_kind) or not len(opened):
            continue
        rest = [(opening, opened), (closing, others - opened)]
        pools = [(pool, count) for pool, count in rest if len(pool)]
        found = {on: _widest(of_kind, pools, sign[on], **fixed)}
        for name, gate in behind.items():
            pair = np.where(both, pairs[name], 0.0)
            if gate.otherwise == "zero":
                pools = [(values[name], opened), ([0.0], others - opened)]
                found[name] = _widest(pair, pools, sign[name], **fixed)
            else:
                given = values[name], opened, sign[name]
                found[name] = _widest_if_missing(pair, both, *given, **fixed)
        states.append(found)
    return _Part(
        combined.weights,
        {name: np.concatenate([state[name][0] for state in states]) for name in sign},
        {name: np.concatenate([state[name][1] for state in states]) for name in sign},
    )


def _pairs(values: Values) -> Float[np.ndarray, "pair 2"]:
    found = np.array(values, dtype=np.float64)
    if isinstance(values, Continuous):  # values around 0 matter if a closed gate gives 0
        near = min(abs(values.low), abs(values.high)) if values.low < 0 < values.high else 0.0
        found = np.concatenate([found, [near, -near] if near else []])
    return np.stack(np.meshgrid(found, found, indexing="ij"), axis=-1).reshape(-1, 2)


def _closest(values: Values, *at_least: float) -> Float[np.ndarray, "pair 2"]:
    """Return the pairs of values of the primary reward that can have the smallest difference.

    These are neighbors on the same side of a gate, and the ends of the two sides: if one value
    moves, the inverse square of the standardized difference is convex in the inverse difference.
    """
    found = np.array(values, dtype=np.float64)
    if isinstance(values, Continuous):
        middle = (values.low + values.high) / 2
        found = np.array([values.low, middle, middle + 1e-6 * (values.high - values.low)])
    closed = found < max(at_least, default=-inf)
    sides = [side for side in (found[~closed], found[closed]) if len(side)]
    pairs = [np.stack([side[1:], side[:-1]], axis=1) for side in sides]
    if len(sides) > 1:
        pairs.append(np.array(list(product(*(side[[0, -1]] for side in sides)))))
    return np.concatenate(pairs)


def _widest(
    pairs: Float[np.ndarray, "pair 2"],
    pools: Sequence[tuple[Any, Any]],
    sign: float,
    samples: int,
    *,
    scores: bool,
) -> Difference:
    """Return the largest lead of the worse sample over the better one in one reward.

    Its standardized lead is largest if the others lie at one value of each pool. If it must be
    behind, its lag is smallest if they lie at the ends. `pairs` holds what the two samples can
    have, and `pools` what the others can, with their number in each state. Only `scores` are
    standardized.
    """
    lead = sign * (pairs[:, 1] - pairs[:, 0])
    pairs = pairs[lead >= 0] if np.any(lead >= 0) else pairs
    behind = bool(np.all(lead < 0))
    better, worse = (column.reshape(1, -1, 1, 1) for column in pairs.T)
    parts: list[tuple[Any, Any]] = [(better, 1), (worse, 1)]
    for axis, (values, count) in enumerate(pools, start=2):
        n = count.reshape(-1, 1, 1, 1)
        if not scores:
            parts.append((values[0], n))
        elif behind:
            parts += _far_apart(parts, values, n, axis, is_last=axis == len(pools) + 1)
        elif all(pool is values or list(pool) == [0.0] for pool, _ in pools):
            fixed = sum(other.reshape(-1, 1, 1, 1) for pool, other in pools if pool is not values)
            parts.append((_nearest(values, (better + worse) / (2 + fixed)), n))
        else:
            parts.append((_along(values, axis), n))
    size = sum(n for _, n in parts)
    mean = sum(v * n for v, n in parts) / size
    squares = sum(n * (v - mean) ** 2 for v, n in parts)
    std = np.sqrt(squares / (size - 1)) if scores else np.ones_like(squares)
    gap = sign * (worse - better) / np.where(std > 0, std, 1.0)
    flat = gap.reshape(len(gap), -1)
    states, best = np.arange(len(flat)), np.argmax(flat, axis=1)

    def at_best(array: Any) -> Any:
        return np.broadcast_to(array, gap.shape).reshape(flat.shape)[states, best]

    group = np.full((len(flat), samples), np.nan)
    found = [(at_best(v), at_best(n).astype(np.int64)) for v, n in parts]
    for state, row in enumerate(group):
        values = np.repeat([v[state] for v, _ in found], [n[state] for _, n in found])
        row[: len(values)] = values
    return at_best(gap), group


def _far_apart(
    parts: Sequence[tuple[Any, Any]], values: Values, n: Any, axis: int, *, is_last: bool
) -> list[tuple[Any, Any]]:
    """Return `n` samples at both ends of a pool, in all ways or, for the last pool, in the best.

    The sum of squares is a concave quadratic function of the number of samples at the low end.
    """
    low, high = values[0], values[-1]
    at_low = np.minimum(_along(range(int(np.max(n)) + 1), axis), n)
    if is_last:
        above = sum((v - (low + high) / 2) * m for v, m in [*parts, (high, n)])
        at_low = np.clip(np.rint(above / (high - low or inf)), 0, n)
    return [(low, at_low), (high, n - at_low)]


def _nearest(values: Values, wanted: Any) -> Any:
    if isinstance(values, Continuous):
        return np.clip(wanted, *values)
    levels = np.array(values)
    return levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, wanted)]


def _along(values: Sequence[float], axis: int) -> Any:
    """Return the values along one of four axes: state, pair, and one for each pool."""
    return np.expand_dims(np.array(values), tuple(k for k in range(4) if k != axis))


def _widest_if_missing(
    pairs: Float[np.ndarray, "pair 2"],
    is_open: tuple[bool, ...],
    values: Values,
    opened: Any,
    sign: float,
    samples: int,
    *,
    scores: bool,
) -> Difference:
    """Return the largest lead in a reward that is missing where its gate is closed.

    A missing reward adds 0. One sample that has it is compared with the `opened` others that do.
    """
    if all(is_open):
        return _widest(pairs, [(values, opened)], sign, samples, scores=scores)
    group = np.full((len(opened), samples), np.nan)
    rest = np.arange(samples - 2) < opened[:, None]
    if not any(is_open):
        group[:, 2:] = np.where(rest, values[0], np.nan)
        return np.zeros(len(opened)), group
    toward = -sign if is_open[0] else sign
    best = max(pairs[:, 0 if is_open[0] else 1], key=lambda value: toward * value)
    others = min(*values, best, key=lambda value: toward * value)
    lead, n = toward * (best - others), opened + 1
    # one sample among equal others: its distance from their mean, or its standardized distance
    gap = (n - 1) / np.sqrt(n) * (lead > 0) if scores else (n - 1) / n * lead
    group[:, 0 if is_open[0] else 1] = best
    group[:, 2:] = np.where(rest, others, np.nan)
    return gap, group


def _worst_group(
    combined: Combination, values: Mapping[str, Values], parts: Sequence[_Part]
) -> Counterexample:
    columns: dict[str, Any] = {}
    for part in parts:
        state = int(np.argmax(part.against()))
        columns |= {name: group[state] for name, group in part.groups.items()}
    rewards = np.stack([columns[name] for name in combined.names], axis=1)
    return Counterexample(rewards, combined.rule(values)(rewards))


def _smallest_sign(
    combined: Combination, values: Mapping[str, Values], primary: str
) -> float | None:
    """Return the weight from which on no sample with less of the primary reward is above average.

    The worst group has one sample with the highest value, and one with more of every other reward
    than the rest.
    """
    levels, n = values[primary], combined.samples
    if combined.gates or isinstance(levels, Continuous) or "token_counts" in combined.options:
        return None
    if len(levels) > 2:  # with less than the highest value, a sample can still be above average
        above = levels[-2] * n >= levels[-1] + levels[-2] + (n - 2) * levels[0]
        return inf if above else None
    if combined.estimator in SCORES:
        reach = {name: float(v[0] < v[-1]) for name, v in values.items()}
    else:
        reach = {name: v[-1] - v[0] for name, v in values.items()}
    others = (name for name in values if name != primary)
    against = sum(abs(combined.weights[name]) * reach[name] for name in others)
    return (n - 1) * against / reach[primary]


def _tried(combined: Combination, values: Mapping[str, Values], primary: str) -> Priority:
    """Try all groups of 2, 3, … samples, as long as their number is small."""
    levels = [
        [v.low, (v.low + v.high) / 2, v.high] if isinstance(v, Continuous) else v
        for v in values.values()
    ]
    if prod(map(len, levels)) > _MOST_GROUPS:
        return Priority(primary, None)
    raw = np.array(list(product(*levels)))
    gated = apply_gates(raw[None], combined.names, combined.gates)[0]
    main = raw[:, combined.names.index(primary)]
    advantages_of, tried_up_to = combined.rule(values), None
    for size in range(2, min(combined.samples, _MOST_SAMPLES) + 1):
        if comb(len(raw) + size - 1, size) > _MOST_GROUPS:
            break
        for group in map(list, combinations_with_replacement(range(len(raw)), size)):
            r = main[group]
            if np.ptp(r) == 0:
                continue
            a = advantages_of(gated[group])
            broken = (r[:, None] > r) & (a[:, None] <= a + _TIE)
            if np.any(broken):
                better, worse = map(int, np.argwhere(broken)[0])
                found = Counterexample(gated[group], a, better, worse)
                return Priority(primary, False, counterexample=found, tried_up_to=size)
        tried_up_to = size
    return Priority(primary, None if tried_up_to is None else True, tried_up_to=tried_up_to)
