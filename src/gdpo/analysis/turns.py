"""Diagnoses the turns of a step, and collects the results of each turn over a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from gdpo._shapes import Float
from gdpo.advantages import AdvantageRule, Weights
from gdpo.diagnostics import TurnsDiagnosis, diagnose_turns
from gdpo.diagnostics.turns import TurnSums
from gdpo.rollouts.readers import TurnArrays


@dataclass(frozen=True, slots=True)
class RewardAtTurn:
    """Stores the results for one reward at one turn over all steps. NaN means no data."""

    name: str
    groups: int
    """Number of groups with the reward in which at least two rollouts took the turn."""
    zero_variance_groups: float
    """Share of these groups in which all rollouts earn the same from the turn on."""
    influence_share: float
    influence_margin: float


@dataclass(frozen=True, slots=True)
class TurnOverall:
    """Stores the results for one turn over all steps."""

    turn: int
    rollouts: int
    alive: float
    """Share of the rollouts with turns that took the turn."""
    groups: int
    """Number of groups in which at least two rollouts took the turn."""
    rewards: tuple[RewardAtTurn, ...]


@dataclass(frozen=True, slots=True)
class WithTurns:
    """Stores how a reward is related to the number of turns. NaN means no data."""

    name: str
    correlation: float
    margin: float


def diagnose_step(
    turns: TurnArrays,
    weights: Weights,
    names: tuple[str, ...],
    *,
    totals: Float[np.ndarray, "prompt sample reward"],
    recorded: Float[np.ndarray, "prompt sample"] | None,
    estimator: str | None,
    bounds: tuple[Mapping[str, float], Mapping[str, float]],
) -> TurnsDiagnosis | None:
    """Return the diagnosis of the turns of a step, or None if no number of turns is known.

    If the advantages of some turn are not recorded, the advantage of a rollout counts for all its
    turns: the recorded advantage, or the one that the estimator computes from the totals.
    """
    if not np.any(turns.turns):
        return None
    taken = np.arange(turns.rewards.shape[2]) < turns.turns[..., None]
    advantages: Any = turns.advantages
    if not np.all(np.isfinite(advantages[taken])):
        advantages = recorded
    if advantages is None:
        assert estimator is not None, "a step without recorded advantages has an estimator"
        low, high = (
            [known.get(name, nan) for name in names] if known else None for known in bounds
        )
        advantages = AdvantageRule(estimator, names, low=low, high=high)(totals, weights)
    return diagnose_turns(
        turns.rewards,
        weights,
        names,
        turns=turns.turns,
        advantages=advantages,
        estimator=estimator,
    )


def turns_overall(sums: TurnSums) -> list[TurnOverall]:
    """Return the results for each turn, given the sums over all steps."""
    return [
        TurnOverall(
            turn=turn + 1,
            rollouts=int(count),
            alive=float(count / sums.rollouts),
            groups=0 if influence is None else influence.groups,
            rewards=tuple(_at_turn(sums, turn, name) for name in sums.rewards),
        )
        for turn, (count, influence) in enumerate(zip(sums.alive, sums.influences, strict=True))
    ]


def _at_turn(sums: TurnSums, turn: int, name: str) -> RewardAtTurn:
    influence = sums.influences[turn]
    if influence is None or name not in influence.names:
        return RewardAtTurn(name, 0, nan, nan, nan)
    groups, constant = influence.zero_variance_groups(name)
    place = influence.names.index(name)
    shares = (float(values[place]) for values in (influence.shares, influence.margins))
    return RewardAtTurn(name, groups, constant, *(shares if groups else (nan, nan)))


def with_turns(sums: TurnSums) -> list[WithTurns]:
    """Return how each reward is related to the number of turns."""
    pairs = [(name, each.with_turns) for name, each in sums.rewards.items()]
    return [WithTurns(name, each.correlation, each.margin) for name, each in pairs]
