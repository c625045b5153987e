"""Puts one lazy completion into groups of honest ones, and computes the recipe's advantages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, sqrt
from typing import Any

import numpy as np

from gdpo._shapes import Bool, Float, Int
from gdpo._student import student_quantile
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.training._attack_rows import (
    FORMLESS,
    IN_FORM,
    RIGHT,
    Completions,
    Row,
    directions,
    is_right,
    weights_of,
    with_real_failures,
)
from gdpo.rewards import Gate, apply_gates

GROUPS = 512
"""Minimum number of groups of an attack, which form one batch."""

FORM = 0.5
"""Share of the wrong honest completions that have the form of the reference answer."""

_EQUAL = 1e-9
"""Advantages that differ by less count as equal."""


@dataclass(frozen=True, slots=True)
class Change:
    """Stores how the rewards of an attack differ from those of the recipe."""

    constant: str | None = None
    """Name of a reward that is replaced by a constant, so that it has no effect."""
    gates: Mapping[str, Gate] = field(default_factory=dict[str, Gate])
    """Gates that are added to those of the recipe, or replace them."""
    factors: Mapping[str, float] = field(default_factory=dict[str, float])
    """Factors by which weights are multiplied."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Stores how a lazy completion fares in groups with a certain share of right completions."""

    advantage: float
    """Mean advantage of the lazy completion."""
    beaten: float
    """Share of the groups with a right completion, except zero-advantage groups, in which the lazy
    one has at least the advantage of a right one. NaN: no such group."""
    margin: float
    """Mean of the lazy completion's advantage minus the lowest one of a right completion."""
    gain: float
    """Mean of the lazy completion's advantage minus that of well-formed honest wrong ones."""
    surely: float
    """Lower end of the 95 % confidence interval of `gain`, over the rows."""


class Attack:
    """Stores scored completions of a recipe's rows, and builds groups from them.

    Args:
        resolved: The recipe.
        rows: The rows.
        found: Their completions.
        values: Raw rewards of the completions.
        judges: Indices of the rewards that judge correctness.
        seed: Seed of the groups. The same numbers are used for all policies and success rates.
    """

    def __init__(
        self,
        resolved: Resolved,
        rows: Sequence[Row],
        found: Completions,
        *,
        values: Float[np.ndarray, "completion reward"],
        judges: Sequence[int],
        seed: int,
    ) -> None:
        self.resolved, self.rows, self.found = resolved, rows, found
        self.values, self.judges = values, judges
        repeats = ceil(GROUPS / len(rows))
        self._row = np.repeat(np.arange(len(rows)), repeats)
        shape = (3, len(self._row), resolved.recipe.batch.samples)
        self._drawn = np.random.default_rng(seed).random(shape)

    @cached_property
    def right(self) -> Bool[np.ndarray, " completion"]:
        """Whether each completion reaches the reference answer of its row in all judges."""
        signs = directions(self.resolved, self.found.problems)
        judged = (self.values * signs)[:, list(self.judges)]
        right = np.zeros(len(judged), dtype=bool)
        for i, honest in enumerate(self.found.honest):
            lazy = [places[i] for places in self.found.lazy.values() if i in places]
            of_row = [*lazy, *self.found.recorded[i], *(j for kind in honest for j in kind)]
            right[of_row] = is_right(judged[of_row], judged[honest[RIGHT][0]])
        return right

    @cached_property
    def weights(self) -> Float[np.ndarray, "completion reward"]:
        """Weights of the row of each completion. NaN: the reward does not apply to the row."""
        return weights_of(self.resolved, self.found.problems)

    @cached_property
    def recorded_success(self) -> float | None:
        """Share of the recorded completions that are right. None: nothing is recorded."""
        recorded = [i for of_row in self.found.recorded for i in of_row]
        return float(np.mean(self.right[recorded])) if recorded else None

    @cached_property
    def _choices(self) -> tuple[Int[np.ndarray, "row kind most"], Int[np.ndarray, "row kind"]]:
        kinds = with_real_failures(self.found, self.rows, self.right)
        counts = np.array([[len(kind) for kind in of_row] for of_row in kinds])
        choices = np.zeros((*counts.shape, int(counts.max())), dtype=int)
        for i, of_row in enumerate(kinds):
            for k, kind in enumerate(of_row):
                choices[i, k, : len(kind)] = kind
        return choices, counts

    def outcome(self, policy: str, rate: float, change: Change | None = None) -> Outcome:
        """Return how a lazy policy fares at a success rate of the honest completions.

        Args:
            policy: Name of a lazy policy that is defined for at least one row.
            rate: Share of right completions among the honest ones, from 0 to 1.
            change: How rewards and weights differ from the recipe's. None: the recipe's own.
        """
        chosen, kind = self.groups(policy, rate)
        row = self._row[self._places(policy)]
        return _outcome(self._advantages(chosen, change or Change()), kind, row)

    def groups(
        self, policy: str, rate: float
    ) -> tuple[Int[np.ndarray, "prompt sample"], Int[np.ndarray, "prompt sample"]]:
        """Return the completions of all groups, the lazy one first, and their kinds (-1: lazy)."""
        places, row = self.found.lazy[policy], self._row[self._places(policy)]
        form, drawn, pick = (of_each[self._places(policy)] for of_each in self._drawn)
        wrong = np.where(form < FORM, IN_FORM, FORMLESS)
        kind = np.where(drawn < rate, RIGHT, wrong)
        choices, counts = self._choices
        pick = (pick * counts[row[:, None], kind]).astype(int)
        chosen = choices[row[:, None], kind, pick]
        kind[:, 0], chosen[:, 0] = -1, [places[i] for i in row.tolist()]
        return chosen, kind

    def _places(self, policy: str) -> Int[np.ndarray, " prompt"]:
        """Return the indices of the groups whose row has a completion of the policy."""
        return np.flatnonzero(np.isin(self._row, list(self.found.lazy[policy])))

    def _advantages(
        self, chosen: Int[np.ndarray, "prompt sample"], change: Change
    ) -> Float[np.ndarray, "prompt sample"]:
        resolved = self.resolved
        gates = {**resolved.gates, **change.gates}
        rewards = apply_gates(self.values[chosen], resolved.names, gates)
        if change.constant is not None:
            k = resolved.names.index(change.constant)
            rewards[..., k] = resolved.rewards[k].low
        factors = [change.factors.get(name, 1.0) for name in resolved.names]
        tokens = np.asarray(self.found.tokens)[chosen]
        own = any(row.problem.weights is not None for row in self.rows)
        weights = self.weights[chosen[:, 0]] if own else np.asarray(resolved.weights)
        return self._of_rule(rewards, weights * factors, tokens)

    def _of_rule(self, rewards: Any, weights: Any, tokens: Any) -> Any:
        """Return the advantages of the recipe's rule. A completion of a recipe is one turn."""
        rule = self.resolved.rule
        if not rule.wants_turns:
            return np.asarray(rule(rewards, weights, token_counts=tokens))
        turns = np.ones_like(tokens)
        of_turns = rule(rewards[:, :, None], weights, token_counts=tokens, turns=turns)
        return np.asarray(of_turns)[:, :, 0]


def _outcome(
    advantages: Float[np.ndarray, "prompt sample"],
    kind: Int[np.ndarray, "prompt sample"],
    row: Int[np.ndarray, " prompt"],
) -> Outcome:
    lazy = advantages[:, 0]
    lowest = np.min(np.where(kind == RIGHT, advantages, np.inf), axis=1)
    live = np.isfinite(lowest) & np.any(np.abs(advantages) > _EQUAL, axis=1)
    margin = (lazy - lowest)[live]
    in_form = kind == IN_FORM
    some = np.any(in_form, axis=1)
    wrong = np.sum(np.where(in_form, advantages, 0.0), axis=1)[some] / np.sum(in_form, axis=1)[some]
    gain = lazy[some] - wrong
    _, of_row, counts = np.unique(row[some], return_inverse=True, return_counts=True)
    means = np.bincount(of_row, gain, len(counts)) / counts
    return Outcome(
        advantage=float(np.mean(lazy)),
        beaten=float(np.mean(margin >= -_EQUAL)) if len(margin) else np.nan,
        margin=float(np.mean(margin)) if len(margin) else np.nan,
        gain=float(np.mean(means)) if len(means) else np.nan,
        surely=_lower_end(means),
    )


def _lower_end(means: Float[np.ndarray, " row"]) -> float:
    if len(means) < 2:
        return float(np.sum(means)) if len(means) else float("nan")
    half = _quantile(len(means) - 1) * np.std(means, ddof=1) / sqrt(len(means))
    return float(np.mean(means) - half)


@lru_cache
def _quantile(freedom: int) -> float:
    return student_quantile(0.975, freedom)
