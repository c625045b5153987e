r"""Computes what the findings about turns are based on, with sums that can be added over steps.

$G_{i,t}$ is what rollout $i$ earns of a reward from turn $t$ on, and $R_i = G_{i,1}$ its total.
Groups in which fewer than two rollouts took a turn say nothing about the turn: nothing can be
compared in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan, sqrt
from typing import NamedTuple

import numpy as np

from gdpo._shapes import Bool, Float, Int
from gdpo.advantages.arrays import rounded
from gdpo.advantages.stages import SAMPLES, mean, standardize
from gdpo.diagnostics.influence import Influence, pooled

ToGo = Float[np.ndarray, "prompt sample turn reward"]
Counts = Int[np.ndarray, "prompt sample"]
ByTurn = Float[np.ndarray, "prompt sample turn"]
_PerReward = Float[np.ndarray, " reward"]
Totals = Float[np.ndarray, "prompt sample reward"]

_NORMAL_95 = 1.959964
"""Half-width of a 95 % confidence interval in standard errors."""

_TURNS = 2


class Pairs(NamedTuple):
    """Stores sums over the groups in which both a value and the number of turns vary.

    In a group, P is the sum of z y over its samples, and d is the root of Σz² Σy², where z is the
    value and y the number of turns, both standardized within the group.
    """

    groups: float
    product: float
    """Sum of P."""
    degrees: float
    """Sum of d."""
    squares: float
    """Sum of P²."""
    mixed: float
    """Sum of P d."""
    degrees_squares: float
    """Sum of d²."""

    @property
    def correlation(self) -> float:
        r"""Return $\rho = \sum P / \sum d$, or NaN if there are no such groups."""
        return self.product / self.degrees if self.degrees > 0 else nan

    @property
    def error(self) -> float:
        r"""Return the standard error of $\rho$ over $n$ groups, or NaN for fewer than two groups.

        $$ \frac{1}{\sum d} \sqrt{\frac{n}{n - 1} \sum (P - \rho d)^2} $$
        """
        n, rho = self.groups, self.correlation
        if n < 2 or rho != rho:
            return nan
        rest = self.squares - 2 * rho * self.mixed + rho * rho * self.degrees_squares
        return sqrt(n / (n - 1) * max(rest, 0.0)) / self.degrees

    @property
    def margin(self) -> float:
        """Return the half-width of the 95 % interval of the correlation."""
        return _NORMAL_95 * self.error

    def stands_out(self, errors: float) -> bool:
        """Return whether the correlation is at least so many standard errors away from 0."""
        return abs(self.correlation) > 0 and abs(self.correlation) >= errors * self.error


class Payments(NamedTuple):
    """Stores sums over rollouts about when a reward is paid, with one value per reward.

    The values are multiplied by the weight. Rollouts without the reward are left out.
    """

    rollouts: _PerReward
    turns: _PerReward
    """Number of turns taken."""
    paid: _PerReward
    """Number of turns with a positive value."""
    earlier: _PerReward
    """Number of turns before the last one of a rollout with a value other than 0."""
    total: _PerReward
    """Sum of the totals."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnSums:
    """Stores the sums behind the findings about turns, for one step or several pooled steps."""

    names: tuple[str, ...]
    groups: int
    alive: Int[np.ndarray, " turn"]
    """Number of rollouts that took each turn that was diagnosed."""
    influences: tuple[Influence | None, ...]
    """Influence sums of each turn. None if no group has two rollouts that took the turn."""
    payments: Payments
    lowest: _PerReward
    """Lowest total times weight. Infinite if the reward never applies."""
    highest: _PerReward
    with_turns: Float[np.ndarray, "value sum"]
    """The fields of `Pairs` for the total of each reward, and in the last row for the advantage."""

    @property
    def rollouts(self) -> int:
        """Number of rollouts that took at least one turn."""
        return int(self.alive[0])

    def with_turns_of(self, name: str | None) -> Pairs:
        """Return the relation of a reward with the number of turns. None: of the advantages."""
        place = len(self.names) if name is None else self.names.index(name)
        return Pairs(*self.with_turns[place].tolist())


def to_go(
    rewards: Float[np.ndarray, "prompt sample turn reward"],
    taken: Bool[np.ndarray, "prompt sample turn"],
    absent: Bool[np.ndarray, "prompt_or_1 reward"],
) -> ToGo:
    """Return what each rollout earns from each turn on, in the precision of the rewards.

    If a reward is NaN at a turn that a rollout took, it is left out for the whole rollout, as where
    it is `absent` for the prompt. The result is NaN there, and where the turn was not taken.
    """
    there = taken[..., None]
    lacking = np.any(there & np.isnan(rewards), axis=_TURNS, keepdims=True)
    known = there & ~(lacking | absent[:, None, None, :])
    backwards = np.flip(np.where(known, rewards, 0.0), axis=_TURNS)
    sums = np.flip(np.cumsum(backwards, axis=_TURNS, dtype=np.float64), axis=_TURNS)
    return np.where(known, sums, nan).astype(rewards.dtype, copy=False)


def turn_sums(
    rewards: Float[np.ndarray, "prompt sample turn reward"],
    earned: ToGo,
    *,
    advantages: ByTurn,
    counts: Counts,
    weights: Float[np.ndarray, "prompt_or_1 reward"],
    names: Sequence[str],
    influences: Sequence[Influence | None],
) -> TurnSums:
    """Return the sums of one step, given the result of `to_go` and the influence at each turn.

    `counts` is the number of turns of each rollout. The weights are without NaN.
    """
    taken, known = np.arange(earned.shape[_TURNS]) < counts[..., None], ~np.isnan(earned)
    paid = np.where(known, rewards, 0.0) * weights[:, None, None, :]
    totals = earned[:, :, 0, :].astype(np.float64) * weights[:, None, :]
    each = mean(np.where(taken, advantages, nan), over=_TURNS)
    values = np.concatenate([earned[:, :, 0, :], each], axis=-1).astype(earned.dtype)
    return TurnSums(
        names=tuple(names),
        groups=int(np.sum(np.any(taken, axis=(1, 2)))),
        alive=np.sum(taken[:, :, : len(influences)], axis=(0, 1)),
        influences=tuple(influences),
        payments=_payments(paid, known, totals),
        lowest=np.min(np.where(np.isnan(totals), inf, totals), axis=(0, 1)),
        highest=np.max(np.where(np.isnan(totals), -inf, totals), axis=(0, 1)),
        with_turns=_with_turns(values, counts),
    )


def _payments(
    paid: Float[np.ndarray, "prompt sample turn reward"],
    known: Bool[np.ndarray, "prompt sample turn reward"],
    totals: Totals,
) -> Payments:
    """Return the payments for rewards times weights, and their totals."""
    further = np.concatenate([known[:, :, 1:], np.zeros_like(known[:, :, :1])], axis=_TURNS)

    def count(where: Bool[np.ndarray, "prompt sample turn reward"]) -> _PerReward:
        return where.reshape(-1, where.shape[-1]).sum(axis=0).astype(np.float64)

    return Payments(
        rollouts=count(known[:, :, :1]),
        turns=count(known),
        paid=count(known & (paid > 0)),
        earlier=count(known & further & (paid != 0)),
        total=np.nansum(totals, axis=(0, 1)),
    )


def _with_turns(
    values: Float[np.ndarray, "prompt sample value"], counts: Counts
) -> Float[np.ndarray, "value sum"]:
    """Return the fields of `Pairs` for each value."""
    lengths = np.where(np.isnan(values), nan, counts[..., None].astype(np.float64))
    z, y = (
        np.nan_to_num(standardize(rounded(each), over=SAMPLES).values) for each in (values, lengths)
    )
    product = np.sum(z * y, axis=SAMPLES)
    degrees = np.sqrt(np.sum(z * z, axis=SAMPLES) * np.sum(y * y, axis=SAMPLES))
    columns = (degrees > 0, product, degrees, product**2, product * degrees, degrees**2)
    return np.stack([np.sum(each, axis=0, dtype=np.float64) for each in columns], axis=-1)


def pooled_turns(steps: Sequence[TurnSums]) -> TurnSums:
    """Return the sums over several steps. If a step lacks a reward, the reward adds 0."""
    names = tuple(dict.fromkeys(name for step in steps for name in step.names))
    fitted = [_with_rewards(step, names) for step in steps]
    longest = max(len(step.alive) for step in steps)
    alive = np.sum([np.pad(s.alive, (0, longest - len(s.alive))) for s in steps], axis=0)
    by_turn = [
        [step.influences[turn] for step in steps if turn < len(step.influences)]
        for turn in range(longest)
    ]
    known = [[each for each in turn if each is not None] for turn in by_turn]
    return TurnSums(
        names=names,
        groups=sum(step.groups for step in steps),
        alive=alive,
        influences=tuple(_pooled(each) if each else None for each in known),
        payments=Payments(*np.sum([step.payments for step in fitted], axis=0)),
        lowest=np.min([step.lowest for step in fitted], axis=0),
        highest=np.max([step.highest for step in fitted], axis=0),
        with_turns=np.sum([step.with_turns for step in fitted], axis=0),
    )


def _pooled(steps: Sequence[Influence]) -> Influence:
    """Return the sums over several steps, with the variance of one-group steps estimated."""
    return pooled([s.after(last) for s, last in zip(steps, [None, *steps], strict=False)])


def _with_rewards(step: TurnSums, names: tuple[str, ...]) -> TurnSums:
    """Return a step with all of these rewards, and nothing for the rewards that it lacks."""
    if step.names == names:
        return step
    places = [names.index(name) for name in step.names]

    def spread(values: Float[np.ndarray, "..."], nothing: float) -> Float[np.ndarray, "..."]:
        result = np.full((len(names), *values.shape[1:]), nothing)
        result[places] = values
        return result

    pairs = spread(step.with_turns[:-1], 0.0)
    return replace(
        step,
        names=names,
        payments=Payments(*(spread(column, 0.0) for column in step.payments)),
        lowest=spread(step.lowest, inf),
        highest=spread(step.highest, -inf),
        with_turns=np.concatenate([pairs, step.with_turns[-1:]]),
    )
