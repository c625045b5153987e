"""Defines the rules that turn sums over turns into findings."""

from collections.abc import Iterator

import numpy as np

from gdpo.diagnostics._findings import in_order
from gdpo.diagnostics._thresholds import Thresholds
from gdpo.diagnostics._turns import Pairs, TurnSums
from gdpo.diagnostics.diagnosis import Finding, Kind, Severity, percent, times

_ROUNDING = 1e-9
"""Relative difference by which a product may miss a whole number."""


def turn_findings(sums: TurnSums, thresholds: Thresholds) -> tuple[Finding, ...]:
    """Return the findings about turns, worst first."""
    paid = list(_paid_per_turn(sums, thresholds))
    named = {name for finding in paid for name in finding.rewards}
    counts = [found for found in _turn_count(sums, thresholds) if found.rewards[0] not in named]
    return in_order([*paid, *_constant_turns(sums, thresholds), *counts])


def _constant_turns(sums: TurnSums, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if no reward varies from some turn on, but some did before."""
    turns = range(len(sums.alive))
    first = next((turn for turn in turns if _constant_from(sums, turn, thresholds)), 0)
    if first == 0:
        return
    share = float(np.sum(sums.alive[first:]) / np.sum(sums.alive))
    groups = _groups(sums, first)
    yield Finding(
        Kind.CONSTANT_TURNS,
        Severity.WARNING,
        (),
        f"after turn {first}, no reward varies: in at least {percent(thresholds.constant_turns)} "
        f"of the {groups:,} groups, all rollouts that take turn {first + 1} earn the same from "
        f"there on, so {percent(share)} of all turns give no signal",
        f"limit the number of turns to {first}, add a reward that varies at later turns, or check "
        "why all rollouts that continue earn the same",
        {"turn": float(first), "share": share, "groups": float(groups)},
    )


def _groups(sums: TurnSums, turn: int) -> int:
    """Return the number of groups in which at least two rollouts took the turn."""
    influence = sums.influences[turn]
    return 0 if influence is None else influence.groups


def _constant_from(sums: TurnSums, first: int, thresholds: Thresholds) -> bool:
    """Return whether no trained reward varies from a turn on, as far as rollouts can be compared.

    The share must also hold at the turn itself if two more groups varied, so that it cannot be due
    to few groups.
    """
    most = 1 - thresholds.constant_turns
    counts = np.array([_varying(sums, turn) for turn in range(first, len(sums.alive))])
    if 2 + counts[0, 1] > most * counts[0, 0] * (1 + _ROUNDING):
        return False
    groups, varying = np.sum(counts, axis=0)
    return bool(varying <= most * groups)


def _varying(sums: TurnSums, turn: int) -> tuple[float, float]:
    """Return the number of groups at a turn, and the most groups in which a reward varies."""
    influence = sums.influences[turn]
    if influence is None:
        return 0.0, 0.0
    trained = influence.sums.weight != 0
    applies = float(np.max(influence.sums.applies, where=trained, initial=0.0))
    return applies, float(np.max(influence.sums.live, where=trained, initial=0.0))


def _paid_per_turn(sums: TurnSums, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each reward that favors longer rollouts and outweighs the outcome."""
    ends = _ends(sums, thresholds)
    worth = sum(ends.values())
    for name, pairs, sign in _standing_out(sums, thresholds) if worth > 0 else ():
        place = sums.names.index(name)
        rollouts, turns, paid, _, total = (float(column[place]) for column in sums.payments)
        share, mean = paid / turns, total / rollouts
        if sign < 0 or share < thresholds.paid_turns or mean < thresholds.paid_ratio * worth:
            continue
        names = ", ".join(f"`{each}`" for each in ends)
        yield Finding(
            Kind.PAID_PER_TURN,
            Severity.WARNING,
            (name,),
            f"`{name}` is paid on {percent(share)} of the turns, so longer is better: it adds up "
            f"to {mean:.3g} per rollout, {times(mean / worth)} the difference that the end makes "
            f"({names}: {worth:.3g}), and {_correlated(pairs)}",
            f"give `{name}` once, at the last turn, or multiply its weight by "
            f"{worth / mean / 2:.2g} or less",
            {"paid": share, "total": mean, "end": worth, "ratio": mean / worth, **_evidence(pairs)},
        )


def _ends(sums: TurnSums, thresholds: Thresholds) -> dict[str, float]:
    """Return the range of weight times total of each reward that is paid at the end only."""
    found: dict[str, float] = {}
    columns = (*sums.payments, sums.lowest, sums.highest)
    for name, row in zip(sums.names, np.stack(columns, axis=-1).tolist(), strict=True):
        rollouts, turns, _, earlier, _, lowest, highest = row
        before = turns - rollouts
        if before and earlier <= (1 - thresholds.paid_turns) * before and highest > lowest:
            found[name] = highest - lowest
    return found


def _turn_count(sums: TurnSums, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each reward that makes more or fewer turns better."""
    for name, pairs, sign in _standing_out(sums, thresholds):
        which = "more" if sign > 0 else "fewer"
        advantages = sums.with_turns_of(None)
        remedy = (
            f"give `{name}` once, at the last turn, or subtract a cost for each turn"
            if sign > 0
            else f"lower the weight of `{name}`, or give it only to rollouts that succeed"
        )
        yield Finding(
            Kind.TURN_COUNT,
            Severity.NOTE,
            (name,),
            f"`{name}` makes {which} turns better: over {pairs.groups:,.0f} groups, its total has "
            f"a correlation of {_signed(pairs)} with the number of turns, and the advantages "
            f"have one of {_signed(advantages)}",
            f"no action needed if rollouts with {which} turns are meant to be better; otherwise "
            f"{remedy}",
            {**_evidence(pairs), "advantages": advantages.correlation},
        )


def _standing_out(sums: TurnSums, thresholds: Thresholds) -> Iterator[tuple[str, Pairs, int]]:
    r"""Yield each reward through which the advantages favor more turns (1) or fewer turns (-1).

    The correlation of the total of the reward with the number of turns is at least
    `turn_count`, and so many standard errors away from 0. In the direction of its weight, it has
    the same sign as the correlation of the advantages. The reward has an influence.
    """
    first, advantages = sums.influences[0], sums.with_turns_of(None)
    if first is None or not advantages.stands_out(thresholds.standard_errors):
        return
    shares = dict(zip(first.names, first.shares.tolist(), strict=True))
    weights = dict(zip(first.names, first.sums.weight.tolist(), strict=True))
    for name in sums.names:
        pairs = sums.with_turns_of(name)
        known = pairs.groups >= thresholds.turn_count_groups and weights.get(name, 0.0) != 0
        if not known or abs(pairs.correlation) < thresholds.turn_count:
            continue
        sign = 1 if (pairs.correlation > 0) == (weights[name] > 0) else -1
        influences = shares[name] >= thresholds.turn_count_influence
        agrees = sign * advantages.correlation > 0
        if influences and agrees and pairs.stands_out(thresholds.standard_errors):
            yield name, pairs, sign


def _correlated(pairs: Pairs) -> str:
    return f"it has a correlation of {_signed(pairs)} with the number of turns"


def _signed(pairs: Pairs) -> str:
    """Return a correlation with the half-width of its 95 % interval."""
    return f"{pairs.correlation:.2f} ± {pairs.margin:.2f}".replace("-", "−")


def _evidence(pairs: Pairs) -> dict[str, float]:
    return {
        "correlation": pairs.correlation,
        "margin": pairs.margin,
        "groups": pairs.groups,
    }
