r"""Computes sums for turns, which can be added over steps, and derives findings from them.

$G_{i,t}$ is what rollout $i$ earns of a reward from turn $t$ on, and $R_i = G_{i,1}$ its total.
Groups in which fewer than two rollouts took a turn say nothing about the turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan, sqrt
from typing import NamedTuple

import numpy as np

from gdpo._shapes import Bool, Float, Int
from gdpo.advantages.arrays import rounded
from gdpo.advantages.stages import SAMPLES, mean, standardize
from gdpo.diagnostics.diagnosis import Finding, Kind, percent, times
from gdpo.diagnostics.findings import Thresholds, finding, in_order
from gdpo.diagnostics.influence import NORMAL_95, Influence, PromptWeights, pooled

ToGo = Float[np.ndarray, "prompt sample turn reward"]
Counts = Int[np.ndarray, "prompt sample"]
ByTurn = Float[np.ndarray, "prompt sample turn"]

_TURNS = 2

_ROUNDING = 1e-9
"""Relative difference by which a product may differ from an integer."""


class Pairs(NamedTuple):
    """Stores sums over the groups in which both a value z and the number of turns y vary.

    In a group, P is the sum of z y, both standardized within the group, and d the root of Σz² Σy².
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
        return NORMAL_95 * self.error

    def stands_out(self, errors: float) -> bool:
        return abs(self.correlation) > 0 and abs(self.correlation) >= errors * self.error


class Payments(NamedTuple):
    rollouts: float
    turns: float
    paid: float
    """Number of turns with a positive value."""
    earlier: float
    """Number of turns with a value other than 0 before the last turn of a rollout."""
    total: float
    lowest: float
    """Lowest total. Infinite if the reward never applies."""
    highest: float
    with_turns: Pairs
    """Relation of the total, without the weight, with the number of turns."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnSums:
    groups: int
    alive: Int[np.ndarray, " turn"]
    """Number of rollouts that took each turn that was diagnosed."""
    influences: tuple[Influence | None, ...]
    """Influence sums of each turn. None if no group has two rollouts that took the turn."""
    rewards: Mapping[str, Payments]
    advantages: Pairs
    """Relation of a rollout's mean advantage with the number of turns."""

    @property
    def rollouts(self) -> int:
        return int(self.alive[0])


def to_go(
    rewards: Float[np.ndarray, "prompt sample turn reward"],
    taken: Bool[np.ndarray, "prompt sample turn"],
    absent: Bool[np.ndarray, "prompt_or_1 reward"],
) -> ToGo:
    """Return what each rollout earns from each turn on, in the precision of the rewards.

    NaN where the turn was not taken, and for the whole rollout if the reward is NaN at a turn that
    was taken, or `absent` for the prompt.
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
    weights: PromptWeights,
    names: Sequence[str],
    influences: Sequence[Influence | None],
) -> TurnSums:
    taken, known = np.arange(earned.shape[_TURNS]) < counts[..., None], ~np.isnan(earned)
    further = np.concatenate([known[:, :, 1:], np.zeros_like(known[:, :, :1])], axis=_TURNS)
    paid = np.where(known, rewards, 0.0) * weights[:, None, None, :]
    totals = earned[:, :, 0, :].astype(np.float64) * weights[:, None, :]
    each = mean(np.where(taken, advantages, nan), over=_TURNS)
    *pairs, of_advantages = _with_turns(
        np.concatenate([earned[:, :, 0, :], each], axis=-1).astype(earned.dtype), counts
    )
    counted = (known[:, :, :1], known, known & (paid > 0), known & further & (paid != 0))
    columns = (
        *(np.sum(where, axis=(0, 1, 2)).astype(np.float64) for where in counted),
        np.nansum(totals, axis=(0, 1)),
        np.min(np.where(np.isnan(totals), inf, totals), axis=(0, 1)),
        np.max(np.where(np.isnan(totals), -inf, totals), axis=(0, 1)),
    )
    rows = np.stack(columns, axis=-1).tolist()
    return TurnSums(
        groups=int(np.sum(np.any(taken, axis=(1, 2)))),
        alive=np.sum(taken[:, :, : len(influences)], axis=(0, 1)),
        influences=tuple(influences),
        rewards={
            n: Payments(*row, with_turns=p) for n, row, p in zip(names, rows, pairs, strict=True)
        },
        advantages=of_advantages,
    )


def _with_turns(values: Float[np.ndarray, "prompt sample value"], counts: Counts) -> list[Pairs]:
    lengths = np.where(np.isnan(values), nan, counts[..., None].astype(np.float64))
    z, y = (
        np.nan_to_num(standardize(rounded(each), over=SAMPLES).values) for each in (values, lengths)
    )
    product = np.sum(z * y, axis=SAMPLES)
    degrees = np.sqrt(np.sum(z * z, axis=SAMPLES) * np.sum(y * y, axis=SAMPLES))
    columns = (degrees > 0, product, degrees, product**2, product * degrees, degrees**2)
    sums = [np.sum(each, axis=0, dtype=np.float64).tolist() for each in columns]
    return [Pairs(*row) for row in zip(*sums, strict=True)]


def pooled_turns(steps: Sequence[TurnSums]) -> TurnSums:
    by_name: dict[str, list[Payments]] = {}
    for step in steps:
        for name, payments in step.rewards.items():
            by_name.setdefault(name, []).append(payments)
    longest = max(len(step.alive) for step in steps)
    influences: list[Influence | None] = []
    for turn in range(longest):
        at_turn = [s.influences[turn] for s in steps if turn < len(s.influences)]
        known = [each for each in at_turn if each is not None]
        # The variance of a step with one group is estimated with the previous step.
        after = [one.after(last) for one, last in zip(known, [None, *known], strict=False)]
        influences.append(pooled(after) if after else None)
    return TurnSums(
        groups=sum(step.groups for step in steps),
        alive=np.sum([np.pad(s.alive, (0, longest - len(s.alive))) for s in steps], axis=0),
        influences=tuple(influences),
        rewards={
            name: Payments(
                *np.sum([payments[:5] for payments in each], axis=0).tolist(),
                lowest=min(payments.lowest for payments in each),
                highest=max(payments.highest for payments in each),
                with_turns=_pairs_of([payments.with_turns for payments in each]),
            )
            for name, each in by_name.items()
        },
        advantages=_pairs_of([step.advantages for step in steps]),
    )


def _pairs_of(steps: Sequence[Pairs]) -> Pairs:
    return Pairs(*np.sum(steps, axis=0).tolist())


def turn_findings(sums: TurnSums, thresholds: Thresholds) -> tuple[Finding, ...]:
    found = list(_standing_out(sums, thresholds))
    paid = list(_paid_per_turn(sums, thresholds, found))
    named = {name for finding in paid for name in finding.rewards}
    counts = [_turn_count(sums, *each) for each in found if each[0] not in named]
    return in_order([*paid, *_constant_turns(sums, thresholds), *counts])


def _constant_turns(sums: TurnSums, thresholds: Thresholds) -> Iterator[Finding]:
    # How many groups reach each turn, and in how many of them the most varying reward varies.
    counts = np.zeros((len(sums.alive), 2))
    for turn, each in enumerate(sums.influences):
        if each is not None:
            trained = each.sums.weight != 0
            columns = np.stack([each.sums.applies, each.sums.live])
            counts[turn] = np.max(columns, axis=1, where=trained, initial=0.0)
    groups, varying = np.cumsum(counts[::-1], axis=0)[::-1].T
    most = 1 - thresholds.constant_turns
    # So that it cannot be due to few groups, the turn itself may have two more that vary.
    certain = 2 + counts[:, 1] <= most * counts[:, 0] * (1 + _ROUNDING)
    constant = np.flatnonzero(certain & (varying <= most * groups))
    first = int(constant[0]) if len(constant) else 0
    if first == 0:
        return
    share = float(np.sum(sums.alive[first:]) / np.sum(sums.alive))
    influence = sums.influences[first]
    reached = 0 if influence is None else influence.groups
    yield finding(
        Kind.CONSTANT_TURNS,
        (),
        {"turn": float(first), "share": share, "groups": float(reached)},
        turn=first,
        next=first + 1,
        least=percent(thresholds.constant_turns),
        groups=f"{reached:,}",
        share=percent(share),
    )


def _paid_per_turn(
    sums: TurnSums, thresholds: Thresholds, found: Sequence[tuple[str, int]]
) -> Iterator[Finding]:
    """Yield a finding for each reward that favors longer rollouts and outweighs the outcome."""
    ends = {name: end for name, each in sums.rewards.items() if (end := _end(each, thresholds))}
    worth = sum(ends.values())
    for name, sign in found if worth > 0 else ():
        each = sums.rewards[name]
        share, mean = each.paid / each.turns, each.total / each.rollouts
        if sign < 0 or share < thresholds.paid_turns or mean < thresholds.paid_ratio * worth:
            continue
        yield finding(
            Kind.PAID_PER_TURN,
            (name,),
            {
                "paid": share,
                "total": mean,
                "end": worth,
                "ratio": mean / worth,
                **_evidence(each.with_turns),
            },
            paid=percent(share),
            total=f"{mean:.3g}",
            ratio=times(mean / worth),
            ends=", ".join(f"`{end}`" for end in ends),
            worth=f"{worth:.3g}",
            correlation=_signed(each.with_turns),
            factor=f"{worth / mean / 2:.2g}",
        )


def _end(each: Payments, thresholds: Thresholds) -> float:
    """Return the range of the total of a reward that is paid at the end only, or 0."""
    before = each.turns - each.rollouts
    at_the_end = before > 0 and each.earlier <= (1 - thresholds.paid_turns) * before
    return each.highest - each.lowest if at_the_end and each.highest > each.lowest else 0.0


def _turn_count(sums: TurnSums, name: str, sign: int) -> Finding:
    pairs, which = sums.rewards[name].with_turns, "more" if sign > 0 else "fewer"
    remedy = (
        f"give `{name}` once, at the last turn, or subtract a cost for each turn"
        if sign > 0
        else f"lower the weight of `{name}`, or give it only to rollouts that succeed"
    )
    return finding(
        Kind.TURN_COUNT,
        (name,),
        {**_evidence(pairs), "advantages": sums.advantages.correlation},
        which=which,
        groups=f"{pairs.groups:,.0f}",
        correlation=_signed(pairs),
        advantages=_signed(sums.advantages),
        remedy=remedy,
    )


def _standing_out(sums: TurnSums, thresholds: Thresholds) -> Iterator[tuple[str, int]]:
    """Yield each reward through which the advantages favor more turns (1) or fewer turns (-1).

    The correlation of its total with the number of turns is at least `turn_count`, and enough
    standard errors away from 0. In the direction of its weight, it has the sign of the correlation
    of the advantages. The reward has an influence.
    """
    first, advantages = sums.influences[0], sums.advantages
    if first is None or not advantages.stands_out(thresholds.standard_errors):
        return
    shares = dict(zip(first.names, first.shares.tolist(), strict=True))
    weights = dict(zip(first.names, first.sums.weight.tolist(), strict=True))
    for name, each in sums.rewards.items():
        pairs, weight = each.with_turns, weights.get(name, 0.0)
        known = pairs.groups >= thresholds.turn_count_groups and weight != 0
        if not known or abs(pairs.correlation) < thresholds.turn_count:
            continue
        sign = 1 if (pairs.correlation > 0) == (weight > 0) else -1
        influences = shares[name] >= thresholds.turn_count_influence
        agrees = sign * advantages.correlation > 0
        if influences and agrees and pairs.stands_out(thresholds.standard_errors):
            yield name, sign


def _signed(pairs: Pairs) -> str:
    return f"{pairs.correlation:.2f} ± {pairs.margin:.2f}".replace("-", "−")


def _evidence(pairs: Pairs) -> dict[str, float]:
    return {
        "correlation": pairs.correlation,
        "margin": pairs.margin,
        "groups": pairs.groups,
    }
