"""Recomputes the advantages of recorded rollouts with different estimators.

Steps are processed one at a time, and only sums are kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan, sqrt
from statistics import median

import numpy as np

from gdpo._shapes import Bool, Float
from gdpo.advantages import ESTIMATORS, AdvantageRule, resolve_estimator
from gdpo.diagnostics.influence import Influence, PreparedStep, influence_of, pooled
from gdpo.errors import ConfigError, GdpoError, boundary
from gdpo.rollouts.table import Bounds, RewardArrays

RECORDED = "recorded"
"""Name that represents the recorded advantages in a list of estimators."""

ROUNDING, FRAMEWORKS = 1e-6, 1e-2
"""Tolerances, as fractions of the largest advantage in a step, among gdpo's estimators, and between
them and recorded advantages. Frameworks add an ε of up to 1e-4 to the standard deviation, and some
compute in single precision."""

Advantages = Float[np.ndarray, "prompt sample"]


@dataclass(slots=True)
class _Compared:
    """Accumulates the comparison of an estimator with the baseline, step by step."""

    steps: int = 0
    changed: int = 0
    groups: int = 0
    signal_lost: int = 0
    signal_gained: int = 0
    departure: float = nan
    scales: list[float] = field(default_factory=list)
    influence: Influence | None = None
    count: int = 0
    flips: int = 0
    zeros: int = 0
    _sums: Float[np.ndarray, " 5"] = field(default_factory=lambda: np.zeros(5))

    def add(
        self,
        baseline: Advantages,
        here: Advantages,
        there: Bool[np.ndarray, "prompt sample"],
        *,
        tolerance: float,
    ) -> None:
        """Add the advantages of the rollouts of a step, which are `there`."""
        a, b = baseline[there], here[there]
        departure, factor = changes(a, b)
        self.departure = departure if not self.steps else max(self.departure, departure)
        if factor == factor:
            self.scales.append(factor)
        sizes = (np.abs(baseline), np.abs(here))
        dead = [np.max(s, axis=1, initial=0) <= tolerance * np.max(s, initial=0) for s in sizes]
        self.steps += 1
        self.changed += int(departure > tolerance)
        self.groups += len(baseline)
        self.signal_lost += int(np.sum(~dead[0] & dead[1]))
        self.signal_gained += int(np.sum(dead[0] & ~dead[1]))
        self.count += len(a)
        self.flips += int(np.sum(a * b < 0))
        self.zeros += int(np.sum(b == 0))
        self._sums += [np.sum(a), np.sum(b), np.sum(a * a), np.sum(b * b), np.sum(a * b)]

    def result(self, estimator: str, baseline: str, problem: str) -> "Replayed":
        """Return the comparison. Shares of rollouts are NaN if no step was compared."""
        count = self.count or nan
        rows = self.influence.by_reward if self.influence else {}
        return Replayed(
            estimator=estimator,
            baseline=baseline,
            steps=self.steps,
            changed=self.changed,
            departure=self.departure,
            correlation=self._correlation(),
            sign_flips=self.flips / count,
            zero=self.zeros / count,
            signal_lost=self.signal_lost,
            signal_gained=self.signal_gained,
            groups=self.groups,
            scale=median(self.scales) if self.scales else nan,
            shares={name: (share, margin) for name, (_, share, margin) in rows.items()},
            problem=problem,
        )

    def _correlation(self) -> float:
        """Return Pearson's correlation over all rollouts, or NaN if one set never varies."""
        a, b, aa, bb, ab = self._sums / (self.count or nan)
        spreads = (aa - a * a, bb - b * b)
        if not (spreads[0] > 1e-12 * aa and spreads[1] > 1e-12 * bb):
            return nan
        return float(np.clip((ab - a * b) / sqrt(spreads[0] * spreads[1]), -1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Replayed:
    """Stores how an estimator's advantages differ from a baseline's advantages."""

    estimator: str
    baseline: str
    """The first estimator in the comparison, or `recorded`."""
    steps: int
    """Number of steps in which both have advantages."""
    changed: int
    """Number of steps in which the advantages differ (see `changes`)."""
    departure: float
    """Largest difference over all steps (see `changes`)."""
    correlation: float
    sign_flips: float
    """Share of rollouts whose advantage has the opposite sign of the baseline's advantage."""
    zero: float
    """Share of rollouts whose advantage is exactly 0."""
    signal_lost: int
    """Number of groups in which only the baseline has nonzero advantages."""
    signal_gained: int
    """Number of groups in which only the estimator has nonzero advantages."""
    groups: int
    scale: float
    """Median over the steps of the ratio to the baseline's advantages."""
    shares: Mapping[str, tuple[float, float]]
    """Influence share of every reward with these advantages, and its margin."""
    problem: str
    """Why the estimator could not be called on all steps. Empty: it could."""

    @property
    def same(self) -> bool:
        """Whether the advantages equal the baseline's in every step, up to a factor."""
        return self.steps > 0 and not self.changed and not self.problem


@dataclass(frozen=True, slots=True)
class TrainedWith:
    """Stores the estimator with which some gdpo runs were trained, and its options."""

    estimator: str
    options: Mapping[str, object]
    runs: frozenset[str]
    """Runs whose recorded advantages come from this estimator."""

    @property
    def own_code(self) -> bool:
        """Whether the estimator is user code, which is never called because it is untrusted."""
        return self.estimator not in ESTIMATORS


def changes(
    a: Float[np.ndarray, " rollout"], b: Float[np.ndarray, " rollout"]
) -> tuple[float, float]:
    r"""Return the distance of the advantages $b$ from a positive multiple of $a$, and the factor.

    With the factor $c = \sum a b / \sum a^2$, the distance is $\max|b - c a| / \max|b|$. It is 1 if
    $c \le 0$, or if only one of $a$ and $b$ is 0 everywhere, and 0 if both are. In these cases, the
    factor is NaN.
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
    """Recomputes the advantages of every step with several estimators, and compares them.

    The first estimator is the baseline. If `estimators` is empty, all are used, and the baseline is
    the recorded advantages if the first step has them, else GRPO. `trained` maps names to the
    estimators of gdpo runs; all others have their default options. A bound of a reward that is not
    in `low` or `high` is the declared one.
    """

    def __init__(
        self,
        estimators: Sequence[str],
        *,
        low: Bounds,
        high: Bounds,
        trained: Mapping[str, TrainedWith] | None = None,
    ) -> None:
        self._trained = trained or {}
        for name in estimators:
            if name != RECORDED and name not in self._trained:
                resolve_estimator(name)
        self._bounds = (low, high)
        self.names: tuple[str, ...] = tuple(dict.fromkeys(estimators))
        self.problems: dict[str, str] = {}
        """Reasons why estimators could not be called, keyed by estimator name."""
        self.off_record: dict[str, float] = {}
        """Largest difference from the recorded advantages, by the estimator of a training run."""
        self._rules: dict[tuple[str, tuple[str, ...], str], AdvantageRule] = {}
        """The rule of an estimator for a run and its rewards, with its state."""
        self._compared: dict[str, _Compared] = defaultdict(_Compared)

    def add(self, batch: RewardArrays) -> dict[str, Advantages]:
        """Compare the estimators on a step, and return the advantages, keyed by estimator.

        They are NaN where an estimator gives none.
        """
        if not self.names:
            first = "grpo" if batch.advantages is None else RECORDED
            self.names = tuple(dict.fromkeys((first, *ESTIMATORS)))
        found = {name: self._advantages(name, batch) for name in self.names}
        baseline = found[self.names[0]]
        prepared = PreparedStep.of(batch.rewards, batch.weights)
        for name, here in found.items():
            if not np.any(np.isnan(here)):
                each = self._compared[name]
                step = influence_of(here, prepared, batch.names)
                each.influence = pooled([each.influence, step])
                if not np.any(np.isnan(baseline)):
                    tolerance = FRAMEWORKS if RECORDED in (name, self.names[0]) else ROUNDING
                    each.add(baseline, here, batch.there, tolerance=tolerance)
            own = self._trained.get(name)
            if own is None or own.own_code or batch.advantages is None:
                continue
            if batch.table.run in own.runs and name not in self.problems:
                off = float(np.max(np.abs(here - batch.advantages)))
                self.off_record[name] = max(off, self.off_record.get(name, 0.0))
        return found

    def results(self) -> list[Replayed]:
        """Return the comparison of every estimator with the baseline."""
        return [
            self._compared[name].result(name, self.names[0], self.problems.get(name, ""))
            for name in self.names
        ]

    def _advantages(self, name: str, batch: RewardArrays) -> Advantages:
        trained, run = self._trained.get(name), batch.table.run
        missing = np.full(batch.rewards.shape[:2], nan)
        if name == RECORDED or (trained is not None and trained.own_code):
            theirs = trained is not None and run not in trained.runs
            return missing if theirs or batch.advantages is None else batch.advantages
        if name in self.problems:
            return missing
        tokens = np.where(batch.there, batch.num_tokens, 0.0)
        counts = None if np.any(np.isnan(tokens)) else tokens
        names = batch.names
        try:
            if (key := (run, names, name)) not in self._rules:
                estimator, options = (trained.estimator, trained.options) if trained else (name, {})
                low, high = batch.table.bounds(*self._bounds)
                self._rules[key] = AdvantageRule(estimator, names, options, low=low, high=high)
            rule = self._rules[key]
            with boundary(ConfigError):
                weights = np.array(batch.weights)
                found = rule(batch.rewards, weights, token_counts=counts)
                rule.update(batch.rewards, weights)
        except GdpoError as error:
            self.problems[name] = str(error)
            return missing
        return np.asarray(found, dtype=np.float64)


VIEWED = ("grpo", "gdpo")
"""Estimators that are shown by default. They are stateless, so any step can be computed alone."""


def viewed(batch: RewardArrays, estimators: Iterable[str] = VIEWED) -> dict[str, Advantages]:
    """Return the recorded advantages of a step, if any, and those of the estimators, by name."""
    recorded = {} if batch.advantages is None else {RECORDED: batch.advantages}
    weights = np.array(batch.weights)
    computed = {name: np.asarray(ESTIMATORS[name](batch.rewards, weights)) for name in estimators}
    return recorded | computed


def equal_to(batch: RewardArrays, estimators: Iterable[str]) -> set[str]:
    """Return the estimators whose advantages are a multiple of the recorded ones."""
    found, there = viewed(batch, estimators), batch.there
    given = found.pop(RECORDED)[there]
    return {name for name, a in found.items() if changes(given, a[there])[0] <= FRAMEWORKS}


def disagreement(
    advantages: Float[np.ndarray, "estimator prompt sample"],
    there: Bool[np.ndarray, "prompt sample"],
) -> Advantages:
    """Return the range of the estimators' advantages, each over its root mean square.

    A factor hardly matters to optimizers such as Adam. Estimators with NaN are left out.
    """
    known = [a for a in advantages if not np.any(np.isnan(a))]
    if len(known) < 2:
        return np.zeros(there.shape)
    scales = [np.sqrt(np.mean(a[there] ** 2)) for a in known]
    scaled = [a / scale if scale > 0 else a for a, scale in zip(known, scales, strict=True)]
    return np.ptp(np.stack(scaled), axis=0)
