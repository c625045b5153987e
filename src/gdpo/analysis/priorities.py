"""Computes whether a primary reward always won in a run, and the weights with which it would."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

import numpy as np

from gdpo.priority import MOST_VALUES, Combination, Continuous, Priority, Values, priority
from gdpo.rewards.gates import Gate, Otherwise
from gdpo.rollouts.table import RewardArrays

BOTH = ("grpo", "gdpo")
"""Estimators for which the answer is given."""


@dataclass(slots=True)
class PriorityOverall:
    """Collects over a run what decides whether a primary reward always wins."""

    run: str
    primary: str
    groups: int = 0
    """Number of groups with recorded advantages in which the primary reward varies."""
    broken: int = 0
    """Number of these groups in which a sample with less of it has at least as large an advantage
    as one with more."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weights of the last step, averaged over its prompts."""
    _seen: dict[str, set[float]] = field(default_factory=dict)
    _opened: dict[str, float] = field(default_factory=dict)
    """Lowest value of the primary reward at which another reward was not 0."""
    _missing: set[str] = field(default_factory=set)
    _sizes: Counter[int] = field(default_factory=Counter)
    _main: Counter[float] = field(default_factory=Counter)
    """Number of rollouts with each value of the primary reward."""

    def add(self, batch: RewardArrays) -> None:
        """Add a step of the run. Steps without the primary reward are left out."""
        names = batch.names
        if self.primary not in names:
            return
        rewards = np.round(batch.rewards, 9)  # smaller differences are rounding errors
        main = rewards[..., names.index(self.primary)]
        weights = np.atleast_2d(batch.weights)
        applies = ~np.isnan(weights)
        means = np.nansum(weights, axis=0) / np.maximum(np.sum(applies, axis=0), 1)
        self.weights = dict(zip(names, means.tolist(), strict=True))
        self._sizes.update(np.sum(batch.there, axis=1).tolist())
        there = batch.there & ~np.isnan(main)
        self._main.update(main[there].tolist())
        for name, values in zip(names, np.moveaxis(rewards, -1, 0), strict=True):
            known = ~np.isnan(values)
            self._seen.setdefault(name, set()).update(np.unique(values[known]).tolist())
            if len(seen := self._seen[name]) > MOST_VALUES:  # the ends, and enough to tell
                self._seen[name] = {max(seen), *sorted(seen)[:MOST_VALUES]}
            earned = main[there & (values != 0) & known]
            lowest = float(np.min(earned, initial=inf))
            self._opened[name] = min(self._opened.get(name, inf), lowest)
            if np.any(there & ~known):
                self._missing.add(name)
        if (a := batch.advantages) is not None:
            more = main[:, :, None] > main[:, None, :]
            self.groups += int(np.sum(np.any(more, axis=(1, 2))))
            broken = more & (a[:, :, None] <= a[:, None, :] + 1e-9)
            self.broken += int(np.sum(np.any(broken, axis=(1, 2))))

    @property
    def values(self) -> dict[str, Values]:
        """Return the values that each reward had, or their range if there were many."""
        return {
            name: Continuous(min(seen), max(seen)) if len(seen) > MOST_VALUES else sorted(seen)
            for name, seen in self._seen.items()
            if seen
        }

    @property
    def gates(self) -> Mapping[str, Gate]:
        """Return a gate for each reward that was 0 or missing where the primary one was low."""
        lowest = min(self._seen.get(self.primary, {inf}), default=inf)
        found: dict[str, Gate] = {}
        for name, opened in self._opened.items():
            if name != self.primary and lowest < opened < inf:
                otherwise: Otherwise = "missing" if name in self._missing else "zero"
                found[name] = Gate(self.primary, at_least=opened, otherwise=otherwise)
        return found

    def below(self, gate: Gate) -> int:
        """Return the number of rollouts that did not meet the condition of a gate."""
        return sum(count for value, count in self._main.items() if value < gate.at_least)

    def combined(self, estimator: str) -> Combination:
        """Return the combination of the run with an estimator."""
        values = self.values
        weights = {name: weight for name, weight in self.weights.items() if name in values}
        samples = max(2, self._sizes.most_common(1)[0][0])
        return Combination(weights, samples, estimator, gates=self.gates)

    def answer(self, estimator: str) -> Priority:
        """Return the weights with which the primary reward always wins under an estimator.

        They are not known if the reward has no positive weight in the run, or no value.
        """
        if self.weights.get(self.primary, 0.0) <= 0 or not self._seen.get(self.primary):
            return Priority(self.primary)
        return priority(self.combined(estimator), self.values, self.primary)

    def as_dict(self) -> dict[str, Any]:
        """Return the results in JSON types."""
        return {
            "run": self.run,
            "primary": self.primary,
            "groups": self.groups,
            "broken": self.broken,
            "weights": self.weights,
            "gates": {name: asdict(gate) for name, gate in self.gates.items()},
            "estimators": {
                name: {"holds": a.holds, "smallest": a.smallest, "largest": dict(a.largest)}
                for name, a in ((name, self.answer(name)) for name in BOTH)
            },
        }
