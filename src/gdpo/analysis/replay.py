"""The recorded rewards given to estimators anew: who would have got which advantage.

Step by step, whole; nothing of a step is kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan, sqrt
from statistics import median

import numpy as np
from jaxtyping import Bool, Float

from gdpo.advantages import ESTIMATORS, AdvantageRule, resolve_estimator
from gdpo.analysis.steps import Batch
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
    flips: int = 0
    zeros: int = 0
    _sums: tuple[float, ...] = (0.0,) * 5

    def add(self, a: Float[np.ndarray, " rollout"], b: Float[np.ndarray, " rollout"]) -> None:
        """Take in the rollouts of a step: the advantages that are compared with, and these."""
        self.count += len(a)
        self.flips += int(np.sum(a * b < 0))
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
    def sign_flips(self) -> float:
        """Share of rollouts with advantages of opposite signs."""
        return self.flips / self.count if self.count else nan

    @property
    def zero(self) -> float:
        """Share of rollouts whose advantage is exactly 0."""
        return self.zeros / self.count if self.count else nan


@dataclass(frozen=True, slots=True)
class Replayed:
    """What an estimator would have changed in a run, compared with a baseline."""

    estimator: str
    baseline: str
    """What it is compared with: the first estimator named, or the recorded advantages."""
    steps: int
    """On which both have advantages."""
    changed: int
    """Steps on which it is another estimator: see `changes`."""
    departure: float
    """Largest difference, see `changes`, over the steps."""
    correlation: float
    sign_flips: float
    """Share of rollouts whose advantage has the other sign."""
    zero: float
    """Share of rollouts whose advantage is exactly 0."""
    signal_lost: int
    """Groups with a signal here and none under the baseline."""
    signal_gained: int
    """The other way round."""
    groups: int
    scale: float
    """Factor between its advantages and those of the baseline, median over the steps."""
    problem: str = ""
    """Why it could not be called, or not on all steps."""

    @property
    def same(self) -> bool:
        """Whether nothing would change: on every step the same advantages, up to one factor."""
        return self.steps > 0 and not self.changed and not self.problem


@dataclass(frozen=True, slots=True)
class TrainedWith:
    """What the runs of gdpo in some estimators were trained with: an estimator with its options."""

    estimator: str
    options: Mapping[str, object]
    runs: frozenset[str]
    """Whose recorded advantages are its own."""

    @property
    def own_code(self) -> bool:
        """Whether it is a user's own, which is never called: a run may come from anywhere."""
        return self.estimator not in ESTIMATORS


@dataclass(slots=True)
class _Compared:
    """Compares an estimator with the baseline, one step after another."""

    tally: Tally = field(default_factory=Tally)
    steps: int = 0
    changed: int = 0
    groups: int = 0
    signal_lost: int = 0
    signal_gained: int = 0
    departure: float = nan
    scales: list[float] = field(default_factory=list[float])


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
            all, compared with the recorded advantages where the first step has them, else GRPO's.
        low: Lowest value of each reward by name, for estimators that need it; of others and left
            out: those that the files declare.
        high: Highest value, likewise.
        among: What all of them are.
        trained: By name, those of the estimators that runs of gdpo were trained with; the others
            are called with their default options.

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
        trained: Mapping[str, TrainedWith] | None = None,
    ) -> None:
        self._trained = trained or {}
        for name in estimators or ():
            if name != RECORDED and name not in self._trained:
                resolve_estimator(name)
        self._bounds = (dict(low or {}), dict(high or {}))
        self.names: tuple[str, ...] = tuple(dict.fromkeys(estimators or ()))
        self._among = tuple(among)
        self.problems: dict[str, str] = {}
        """Why an estimator could not be called, by its name."""
        self.off_record: dict[str, float] = {}
        """Of those that runs were trained with the largest difference from what these recorded."""
        self._rules: dict[tuple[str, tuple[str, ...], str], AdvantageRule | None] = {}
        self._compared: dict[str, _Compared] = {}

    def advantages(self, batch: Batch) -> dict[str, Advantages]:
        """What every estimator makes of a step, NaN where there are none; nothing is compared."""
        if not self.names:
            first = "grpo" if batch.advantages is None else RECORDED
            self.names = tuple(dict.fromkeys((first, *self._among)))
        return {name: self._advantages(name, batch) for name in self.names}

    def add(self, batch: Batch) -> dict[str, Advantages]:
        """Replay a step; returns its advantages by estimator."""
        found = self.advantages(batch)
        baseline = found[self.names[0]]
        for name, here in found.items():
            if not np.any(np.isnan(here)) and not np.any(np.isnan(baseline)):
                self._compare(name, baseline, here, batch.there)
            own = self._trained.get(name)
            if own is None or own.own_code or batch.advantages is None:
                continue
            if batch.table.run in own.runs and name not in self.problems:
                off = float(np.max(np.abs(here - batch.advantages)))
                self.off_record[name] = max(off, self.off_record.get(name, 0.0))
        return found

    def results(self) -> list[Replayed]:
        """Return the comparison of every estimator with the first."""
        compared = [(name, self._compared.get(name, _Compared())) for name in self.names]
        return [
            Replayed(
                estimator=name,
                baseline=self.names[0],
                steps=each.steps,
                changed=each.changed,
                departure=each.departure,
                correlation=each.tally.correlation,
                sign_flips=each.tally.sign_flips,
                zero=each.tally.zero,
                signal_lost=each.signal_lost,
                signal_gained=each.signal_gained,
                groups=each.groups,
                scale=median(each.scales) if each.scales else nan,
                problem=self.problems.get(name, ""),
            )
            for name, each in compared
        ]

    def _advantages(self, name: str, batch: Batch) -> Advantages:
        trained, run = self._trained.get(name), batch.table.run
        missing = np.full(batch.rewards.shape[:2], nan)
        if name == RECORDED or (trained is not None and trained.own_code):
            theirs = trained is not None and run not in trained.runs
            return missing if theirs or batch.advantages is None else batch.advantages
        key = (run, batch.table.names, name)
        if key not in self._rules:
            self._rules[key] = self._rule(name, batch)
        rule = self._rules[key]
        if rule is None or name in self.problems:
            return missing
        try:
            found = rule(batch.rewards, np.array(batch.weights), token_counts=_token_counts(batch))
            rule.update(batch.rewards)
        except Exception as error:  # noqa: BLE001 (users' estimators; the report tells)
            self.problems.setdefault(name, f"{type(error).__name__}: {error}")
            return missing
        return np.asarray(found, dtype=np.float64)

    def _rule(self, name: str, batch: Batch) -> AdvantageRule | None:
        """The estimator for a run: one with state goes on from step to step, as in training."""
        trained, names = self._trained.get(name), batch.table.names
        estimator, options = (trained.estimator, trained.options) if trained else (name, {})
        bounds = [
            {reward: known[end] for reward, known in batch.table.ranges.items()} | self._bounds[end]
            for end in (0, 1)
        ]
        low, high = ([known.get(reward, nan) for reward in names] for known in bounds)
        try:
            return AdvantageRule(estimator, names, options, low=low, high=high)
        except GdpoError as error:
            self.problems.setdefault(name, str(error))
            return None

    def _compare(
        self,
        name: str,
        baseline: Advantages,
        here: Advantages,
        there: Bool[np.ndarray, "prompt sample"],
    ) -> None:
        tolerance = FRAMEWORKS if RECORDED in (name, self.names[0]) else ROUNDING
        compared = self._compared.setdefault(name, _Compared())
        compared.tally.add(baseline[there], here[there])
        departure, factor = changes(baseline[there], here[there])
        compared.departure = departure if not compared.steps else max(compared.departure, departure)
        if factor == factor:
            compared.scales.append(factor)
        sizes = (np.abs(baseline), np.abs(here))
        dead = [np.max(s, axis=1, initial=0) <= tolerance * np.max(s, initial=0) for s in sizes]
        compared.steps += 1
        compared.changed += int(departure > tolerance)
        compared.groups += len(baseline)
        compared.signal_lost += int(np.sum(~dead[0] & dead[1]))
        compared.signal_gained += int(np.sum(dead[0] & ~dead[1]))


def _token_counts(batch: Batch) -> Float[np.ndarray, "prompt sample"] | None:
    """None: some are not known."""
    tokens = batch.num_tokens
    known = not np.any(np.isnan(tokens[batch.there]))
    return np.where(batch.there, tokens, 0.0) if known else None


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
