"""Pads the turns of the rollouts of a step, and checks that they add up to the rollouts."""

from dataclasses import replace

import numpy as np

from gdpo._shapes import Float
from gdpo.rollouts.readers.columns import FlatTurns, Lines, Rows
from gdpo.rollouts.readers.report import FileReport, ReadProblem
from gdpo.rollouts.table import TableTurns, Values, fits, padded


def turns_of(
    turns: FlatTurns,
    rows: Rows,
    lines: Lines,
    rewards: Float[np.ndarray, "rollout reward"],
    num_tokens: Values,
    file: FileReport,
) -> TableTurns | None:
    """Return the turns of some rollouts, or None if they have none.

    `lines`, `rewards` and `num_tokens` are those of these rollouts.
    """
    turns = _taken(turns, rows)
    counts, single = turns.counts, turns.single
    if not counts.any():
        return None
    if not fits(len(counts), int(counts.max(initial=0)), len(turns.rewards)):
        file.note(int(lines[np.argmax(counts)]), ReadProblem.MANY_TURNS)
        return None
    places = np.repeat(lines, counts)
    columns = [
        each.usable(f"reward {name!r} of a turn", places, file)
        for name, each in turns.rewards.items()
    ]
    advantages = turns.advantage.usable("the advantage of a turn", places, file)
    tokens = turns.num_tokens.usable("num_tokens of a turn", places, file)
    if single is None:
        found = padded(counts, columns, advantages, tokens)
        _report_apart(found, tuple(turns.rewards), lines, rewards, file)
        return found
    first = (np.cumsum(counts) - counts)[single]
    for values, whole in zip((*columns, tokens), (*rewards.T, num_tokens), strict=True):
        values[first] = whole[single]
    return padded(counts, columns, advantages, tokens)


def _taken(turns: FlatTurns, rows: Rows) -> FlatTurns:
    if isinstance(rows, slice):
        return turns
    counts = turns.counts[rows]
    starts = (np.cumsum(turns.counts) - turns.counts)[rows]
    flat = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
    return replace(
        turns,
        counts=counts,
        rewards={name: column.take(flat) for name, column in turns.rewards.items()},
        advantage=turns.advantage.take(flat),
        num_tokens=turns.num_tokens.take(flat),
        single=None if turns.single is None else turns.single[rows],
    )


def _report_apart(
    turns: TableTurns,
    names: tuple[str, ...],
    lines: Lines,
    rewards: Float[np.ndarray, "rollout reward"],
    file: FileReport,
) -> None:
    """Report rewards of turns that do not add up to the reward of the rollout."""
    earned = np.where(turns.taken[..., None], turns.rewards, 0.0)
    apart = np.abs(earned.sum(axis=1) - rewards)
    # NaN is not larger than anything. Records may be in single precision.
    wrong = apart > 1e-4 * (np.abs(earned).sum(axis=1) + np.abs(rewards))
    wrong &= turns.counts[:, None] > 0
    for name, odd in zip(names, wrong.T, strict=True):
        file.note_where(odd, lines, ReadProblem.TURNS_APART, {"name": name})
