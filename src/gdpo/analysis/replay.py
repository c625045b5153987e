"""The recorded rewards given to estimators anew: who would have got which advantage.

Step by step, whole, with the options that an estimator has by default; nothing of a step is kept.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import median

import numpy as np
from jaxtyping import Bool, Float

from gdpo.advantages import ESTIMATORS, AdvantageRule, resolve_estimator
from gdpo.analysis._steps import Batch
from gdpo.errors import GdpoError

RECORDED = "recorded"
"""The advantages of the dump, as if they were an estimator's."""

ROUNDING, FRAMEWORKS = 1e-6, 1e-2
"""How far advantages may be from each other, as a share of the largest of the step, and be the
same: ours and ours; ours and recorded ones, for frameworks add an ε of up to 1e-4 to the spread,
and some compute in single precision."""

Advantages = Float[np.ndarray, "prompt sample"]


@dataclass(slots=True)
class Tally:
    """How advantages go with others of the same rollouts, step added to step."""

    count: int = 0
    opposites: int = 0
    zeros: int = 0
    _sums: tuple[float, ...] = (0.0,) * 5

    def add(self, a: Float[np.ndarray, " rollout"], b: Float[np.ndarray, " rollout"]) -> None:
        """Take in the rollouts of a step: the advantages that are compared with, and these."""
        self.count += len(a)
        self.opposites += int(np.sum(a * b < 0))
        self.zeros += int(np.sum(b == 0))
        sums = (np.sum(a), np.sum(b), np.sum(a * a), np.sum(b * b), np.sum(a * b))
        self._sums = tuple(old + float(new) for old, new in zip(self._sums, sums, strict=True))

    @property
    def correlation(self) -> float:
        """Pearson's, over all rollouts; NaN: one of the two never varies."""
        if not self.count:
            return nan
        a, b, aa, bb, ab = (value / self.count for value in self._sums)
        spreads = (aa - a * a, bb - b * b)
        if spreads[0] <= 1e-12 * aa or spreads[1] <= 1e-12 * bb:
            return nan
        return float(np.clip((ab - a * b) / sqrt(spreads[0] * spreads[1]), -1.0, 1.0))

    @property
    def opposite(self) -> float:
        """Share of rollouts with advantages of opposite signs."""
        return self.opposites / self.count if self.count else nan

    @property
    def zero(self) -> float:
        """Share of rollouts whose advantage is exactly 0."""
        return self.zeros / self.count if self.count else nan


@dataclass(frozen=True, slots=True)
class Replayed:
    """What an estimator would have made of the run, beside another."""

    estimator: str
    beside: str
    """What it is compared with: the first estimator named, or the recorded advantages."""
    steps: int
    """On which both have advantages."""
    changed: int
    """Steps on which it is another estimator: see `changes`."""
    departure: float
    """Largest difference, see `changes`, over the steps."""
    correlation: float
    opposite: float
    """Share of rollouts whose advantage has the other sign."""
    zero: float
    """Share of rollouts whose advantage is exactly 0."""
    dies: int
    """Groups without a signal here that have one beside it."""
    revives: int
    """The other way round."""
    groups: int
    scale: float
    """What its advantages are multiplied with beside the other's, median over the steps."""
    problem: str = ""
    """Why it could not be called, or not on all steps."""

    @property
    def same(self) -> bool:
        """Whether nothing would change: on every step the same advantages, up to one factor."""
        return self.steps > 0 and not self.changed and not self.problem


def changes(
    a: Float[np.ndarray, " rollout"], b: Float[np.ndarray, " rollout"]
) -> tuple[float, float]:
    r"""How far the advantages of a step are from a multiple of others, and the multiple.

    With the factor $c = \sum a b / \sum a^2$ the difference is $\max|b - c a| / \max|b|$; it is 1
    if $c$ is not above 0, or only one of the two is 0 everywhere, and 0 if both are.
    """
    largest = float(np.max(np.abs(b), initial=0.0))
    squares = float(np.sum(a * a))
    if largest == 0 or squares == 0:
        return (0.0 if largest == squares == 0 else 1.0), nan
    factor = float(np.sum(a * b)) / squares
    if factor <= 0:
        return 1.0, nan
    return float(np.max(np.abs(b - factor * a))) / largest, factor


class Replay:
    """Gives every step to every estimator, and keeps how they go together.

    Args:
        estimators: Names; the first is what the others are compared with. `recorded` is one. None:
            all, beside the recorded advantages where the first step has them, else GRPO's.
        low: Lowest value of each reward by name, for estimators that need it; of others and left
            out: those that the files declare.
        high: Highest value, likewise.
        among: What all of them are.

    Raises:
        ConfigError: There is no such estimator.
    """

    def __init__(
        self,
        estimators: Sequence[str] | None = None,
        *,
        low: Mapping[str, float] | None = None,
        high: Mapping[str, float] | None = None,
        among: Iterable[str] = ESTIMATORS,
    ) -> None:
        for name in estimators or ():
            if name != RECORDED:
                resolve_estimator(name)
        self._bounds = (dict(low or {}), dict(high or {}))
        self.names: tuple[str, ...] = tuple(dict.fromkeys(estimators or ()))
        self._among = tuple(among)
        self.problems: dict[str, str] = {}
        self._rules: dict[tuple[str, tuple[str, ...], str], AdvantageRule | None] = {}
        self._tallies: dict[str, Tally] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._factors: dict[str, list[float]] = {}
        self._departures: dict[str, float] = {}

    def advantages(self, batch: Batch) -> dict[str, Advantages]:
        """What every estimator makes of a step, NaN where there are none; nothing is compared."""
        if not self.names:
            first = "grpo" if batch.advantages is None else RECORDED
            self.names = tuple(dict.fromkeys((first, *self._among)))
        return {name: self._advantages(name, batch) for name in self.names}

    def add(self, batch: Batch) -> dict[str, Advantages]:
        """Replay a step; returns its advantages by estimator."""
        found = self.advantages(batch)
        beside = found[self.names[0]]
        there = batch.placed >= 0
        for name in self.names:
            if not np.any(np.isnan(found[name])) and not np.any(np.isnan(beside)):
                self._compare(name, beside, found[name], there)
        return found

    def results(self) -> list[Replayed]:
        """Every estimator beside the first."""
        return [self._result(name) for name in self.names]

    def _advantages(self, name: str, batch: Batch) -> Advantages:
        if name == RECORDED:
            missing = np.full(batch.rewards.shape[:2], nan)
            return missing if batch.advantages is None else batch.advantages
        key = (batch.table.run, batch.table.names, name)
        if key not in self._rules:
            declared, names = batch.table.ranges, batch.table.names
            low = {reward: known[0] for reward, known in declared.items()} | self._bounds[0]
            high = {reward: known[1] for reward, known in declared.items()} | self._bounds[1]
            self._rules[key] = make_rule(name, names, {}, self.problems, low=low, high=high)
        return call_rule(self._rules[key], name, batch.rewards, batch.weights, self.problems)

    def _compare(
        self,
        name: str,
        beside: Advantages,
        here: Advantages,
        there: Bool[np.ndarray, "prompt sample"],
    ) -> None:
        tolerance = FRAMEWORKS if RECORDED in (name, self.names[0]) else ROUNDING
        a, b = beside[there], here[there]
        self._tallies.setdefault(name, Tally()).add(a, b)
        departure, factor = changes(a, b)
        self._departures[name] = max(self._departures.get(name, 0.0), departure)
        if factor == factor:
            self._factors.setdefault(name, []).append(factor)
        dead = [_dead(values, tolerance) for values in (beside, here)]
        self._counts.update(
            {
                (name, "steps"): 1,
                (name, "changed"): int(departure > tolerance),
                (name, "groups"): len(beside),
                (name, "dies"): int(np.sum(~dead[0] & dead[1])),
                (name, "revives"): int(np.sum(dead[0] & ~dead[1])),
            }
        )

    def _result(self, name: str) -> Replayed:
        tally = self._tallies.get(name, Tally())
        return Replayed(
            estimator=name,
            beside=self.names[0],
            correlation=tally.correlation,
            opposite=tally.opposite,
            zero=tally.zero,
            departure=self._departures.get(name, nan),
            scale=median(self._factors[name]) if name in self._factors else nan,
            problem=self.problems.get(name, ""),
            **{
                key: self._counts[name, key]
                for key in ("steps", "changed", "dies", "revives", "groups")
            },
        )


def make_rule(
    name: str,
    rewards: Sequence[str],
    options: Mapping[str, object],
    problems: dict[str, str],
    *,
    low: Mapping[str, float],
    high: Mapping[str, float],
) -> AdvantageRule | None:
    """An estimator with options; None: it cannot be had, and `problems` says why."""
    try:
        return AdvantageRule(
            name,
            rewards,
            options,
            low=[low.get(reward, nan) for reward in rewards],
            high=[high.get(reward, nan) for reward in rewards],
        )
    except GdpoError as error:
        problems.setdefault(name, str(error))
        return None


def call_rule(
    rule: AdvantageRule | None,
    name: str,
    rewards: Float[np.ndarray, "prompt sample reward"],
    weights: Sequence[float],
    problems: dict[str, str],
    *,
    token_counts: np.ndarray | None = None,
) -> Advantages:
    """The advantages of a step; a rule with state goes on from step to step, as in training.

    NaN: it could not be called, and `problems` says why.
    """
    if rule is not None and name not in problems:
        try:
            found = rule(rewards, np.array(weights), token_counts=token_counts)
            rule.update(rewards)
        except Exception as error:  # noqa: BLE001 (users' estimators; the report tells)
            problems.setdefault(name, f"{type(error).__name__}: {error}")
        else:
            return np.asarray(found, dtype=np.float64)
    return np.full(rewards.shape[:2], nan)


def disagreement(
    advantages: Float[np.ndarray, "estimator prompt sample"],
    there: Bool[np.ndarray, "prompt sample"],
) -> Advantages:
    """The range of the estimators' advantages, each divided by their root mean square.

    An optimizer like Adam is blind to their size. Estimators with NaN are left out.
    """
    known = [a for a in advantages if not np.any(np.isnan(a))]
    if len(known) < 2:
        return np.zeros(there.shape)
    scales = [np.sqrt(np.mean(a[there] ** 2)) for a in known]
    scaled = [a / scale if scale > 0 else a for a, scale in zip(known, scales, strict=True)]
    return np.ptp(np.stack(scaled), axis=0)


def _dead(advantages: Advantages, tolerance: float) -> Bool[np.ndarray, " prompt"]:
    sizes = np.abs(advantages)
    return np.max(sizes, axis=1, initial=0.0) <= tolerance * np.max(sizes, initial=0.0)
