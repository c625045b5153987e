"""Converts the turns of rollouts, from records or from a table, into arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gdpo._shapes import Float, Int
from gdpo.rollouts.readers.columns import Batch, Column, Rows, column_in, entered, inside
from gdpo.rollouts.readers.infer import Values
from gdpo.rollouts.readers.keys import NO_KEY
from gdpo.rollouts.readers.notices import Problem
from gdpo.rollouts.readers.records import ONE_TURN, Row, RowTurns
from gdpo.rollouts.readers.report import FileReport
from gdpo.rollouts.readers.table import RolloutTable, Turns

MOST = 2**26
"""Maximum number of values in the arrays for the turns of a step. Each value takes 8 bytes."""
_NO_TURNS = RowTurns(0, {}, ())
_Lines = Int[np.ndarray, " rollout"]
Whole: TypeAlias = tuple[Float[np.ndarray, "rollout reward"], Values]
"""Rewards and number of tokens of whole rollouts."""


def turns_of(
    batch: Batch, rewards: Mapping[str, str], *, rows: Rows, whole: Whole, file: FileReport
) -> Turns | None:
    """Return the turns of some rollouts of a batch, or None if none of these rollouts has turns.

    `rewards` are the paths of the rewards, by name.
    """
    lines = batch.lines[rows]
    if batch.table is not None:
        column = entered(batch.table, "turns") if file.format == "gdpo" else None
        if column is None:
            return None
        column = column if isinstance(rows, slice) else column.take(pa.array(rows))
        return _of_table(column, rewards, lines, whole[0], file)
    part = batch.part(rows)
    turns = [row.turns for row in part]
    if turns.count(None) == len(turns):
        return None
    if turns.count(ONE_TURN) == len(turns):
        ones, unknown = np.ones(len(part), np.int64), np.full((len(part), 1), np.nan)
        return Turns(ones, whole[0][:, None], unknown, whole[1][:, None])
    return _of_rows(part, tuple(rewards), lines, whole, file)


def whole_rollouts(table: RolloutTable) -> RolloutTable:
    """Return a table with one row per rollout, if several rows with one rollout id are its turns.

    The row of the last turn is kept. A reward that all turns of each rollout repeat belongs to the
    rollout; the values of any other reward are added, and kept for each turn.
    """
    if table.parts is None:
        return table
    order = np.lexsort(table.parts.T[::-1])
    keys, turn = table.parts[order].T
    starts = (keys != np.append(keys[:1] + 1, keys[:-1])) | (keys == NO_KEY)
    if starts.all() or np.any(~starts & (turn == np.append(turn[:1], turn[:-1]))):
        return table
    counts = np.diff(np.append(np.flatnonzero(starts), len(order)))
    first, last = np.flatnonzero(starts), np.cumsum(counts) - 1
    kept = np.sort(order[last])
    back = np.argsort(order[last])
    rewards = table.rewards[order]
    low, high = (f.reduceat(rewards, first) for f in (np.fmin, np.fmax))
    repeated = np.all((low == high) | np.isnan(low), axis=0)
    sums = np.add.reduceat(np.nan_to_num(rewards), first)
    whole = np.where(repeated, rewards[last], np.where(np.isnan(low), np.nan, sums))
    tokens = np.add.reduceat(table.num_tokens[order], first)
    turns = None
    if not repeated.all() and fits(len(first), int(counts.max()), len(table.names)):
        by_turn = np.where(repeated, 0.0, rewards)
        by_turn[last] = rewards[last]
        columns = [by_turn[:, k] for k in range(len(table.names))]
        given = (table.advantages[order], table.num_tokens[order])
        turns = _padded(counts, columns, *given).take(back)
    found = replace(table.take(kept), parts=None, rewards=whole[back], num_tokens=tokens[back])
    return replace(found, groups=table.groups[order[first]][back], turns=turns)


def fits(rollouts: int, turns: int, rewards: int) -> bool:
    """Return whether the arrays for this many rollouts, turns and rewards fit into memory."""
    return rollouts * turns * (rewards + 2) <= MOST


def without_single(table: RolloutTable) -> RolloutTable:
    """Return a table without its turns if they repeat what the rollouts contain.

    This is the case if no rollout has more than one turn, unless the file is gdpo's own, which has
    turns only if the rewards were given for each turn.
    """
    if table.turns is None or table.format == "gdpo" or table.turns.counts.max() > 1:
        return table
    return replace(table, turns=None)


def _of_rows(
    rows: Sequence[Row], names: Sequence[str], lines: _Lines, whole: Whole, file: FileReport
) -> Turns | None:
    """Return the turns of records. A turn without a reward that another turn has earned 0 of it."""
    turns = [row.turns or _NO_TURNS for row in rows]
    counts = np.array([each.count for each in turns], np.int64)
    if not _few(counts, names, lines, file):
        return None
    starts, places = np.cumsum(counts) - counts, np.repeat(lines, counts)
    single = np.array([each is ONE_TURN for each in turns])
    none = np.zeros(len(places), np.bool_)
    columns: list[Values] = []
    for k, name in enumerate(names):
        earned = [each.rewards.get(name) or {} for each in turns]
        given = np.repeat(np.array(list(map(bool, earned)), np.bool_), counts)
        values = np.where(given, 0.0, np.nan)
        for start, by_turn in zip(starts.tolist(), earned, strict=True):
            for turn, value in by_turn.items():
                values[start + turn] = value
        values = Column(values, ~given, none, none).usable(_called(name), places, file)
        values[starts[single]] = whole[0][single, k]
        columns.append(values)
    tokens = np.full(len(places), np.nan)
    tokens[np.repeat(~single, counts)] = [count for each in turns for count in each.num_tokens]
    tokens[starts[single]] = whole[1][single]
    return _padded(counts, columns, np.full(len(places), np.nan), tokens)


def _of_table(
    column: Any, rewards: Mapping[str, str], lines: _Lines, totals: Values, file: FileReport
) -> Turns | None:
    """Return the turns in a column, and report rewards that do not add up to the totals."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (is_list and pa.types.is_struct(kind.value_type)):
        file.note(int(lines[0]), Problem.NO_TURNS)
        return None
    lengths = pc.fill_null(pc.call_function("list_value_length", [column]), 0)
    counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if not counts.any() or not _few(counts, tuple(rewards), lines, file):
        return None
    flat, places = column.flatten(), np.repeat(lines, counts)

    def numbers(path: str, what: str) -> Values:
        found = inside(flat, path)
        none = np.full(len(places), np.nan)
        return none if found is None else column_in(found).usable(what, places, file)

    columns = [numbers(path, _called(name)) for name, path in rewards.items()]
    advantages = numbers("advantage", "the advantage of a turn")
    turns = _padded(counts, columns, advantages, numbers("num_tokens", "num_tokens of a turn"))
    known = np.arange(turns.rewards.shape[1]) < counts[:, None]
    earned = np.where(known[..., None], turns.rewards, 0.0)
    apart = np.abs(earned.sum(axis=1) - totals)
    # NaN is not larger than anything. Records may be in single precision.
    wrong = apart > 1e-4 * (np.abs(earned).sum(axis=1) + np.abs(totals))
    wrong &= counts[:, None] > 0
    for name, odd in zip(rewards, wrong.T, strict=True):
        if odd.any():
            first, count = int(lines[np.argmax(odd)]), int(odd.sum())
            file.note(first, Problem.TURNS_APART, {"name": name}, count=count)
    return turns


def _called(name: str) -> str:
    return f"reward {name!r} of a turn"


def _few(counts: _Lines, names: Sequence[str], lines: _Lines, file: FileReport) -> bool:
    if fits(len(counts), int(counts.max(initial=0)), len(names)):
        return True
    file.note(int(lines[np.argmax(counts)]), Problem.MANY_TURNS)
    return False


def _padded(
    counts: _Lines, rewards: Sequence[Values], advantages: Values, num_tokens: Values
) -> Turns:
    shape = (len(counts), int(counts.max(initial=0)))
    taken = np.arange(shape[1]) < counts[:, None]
    columns = np.full((len(rewards) + 2, *shape), np.nan)
    for column, values in zip(columns, (*rewards, advantages, num_tokens), strict=True):
        column[taken] = values
    return Turns(counts, np.moveaxis(columns[:-2], 0, -1), columns[-2], columns[-1])
