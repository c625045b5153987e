"""Reads the turns of rollouts from records, or from a column of gdpo's own files."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gdpo._shapes import Float, Int
from gdpo.rollouts.arrow import pa
from gdpo.rollouts.readers.columns import Column, RolloutBatch, Rows, column_in, entered, inside
from gdpo.rollouts.readers.records import ONE_TURN, ParsedRollout, RowTurns
from gdpo.rollouts.readers.report import FileReport, ReadProblem
from gdpo.rollouts.table import TableTurns, Values, fits, padded

_NO_TURNS = RowTurns(0, {}, ())
_Lines = Int[np.ndarray, " rollout"]
Whole: TypeAlias = tuple[Float[np.ndarray, "rollout reward"], Values]


def turns_of(
    batch: RolloutBatch, rewards: Mapping[str, str], *, rows: Rows, whole: Whole, file: FileReport
) -> TableTurns | None:
    """Return the turns of some rollouts, or None. `rewards` are the paths by name."""
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
        return TableTurns(ones, whole[0][:, None], unknown, whole[1][:, None])
    return _of_rows(part, tuple(rewards), lines, whole, file)


def _of_rows(
    rows: Sequence[ParsedRollout],
    names: Sequence[str],
    lines: _Lines,
    whole: Whole,
    file: FileReport,
) -> TableTurns | None:
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
        column, what = Column(values, ~given, none, none), f"reward {name!r} of a turn"
        values = column.usable(what, places, file)
        values[starts[single]] = whole[0][single, k]
        columns.append(values)
    tokens = np.full(len(places), np.nan)
    tokens[np.repeat(~single, counts)] = [count for each in turns for count in each.num_tokens]
    tokens[starts[single]] = whole[1][single]
    return padded(counts, columns, np.full(len(places), np.nan), tokens)


def _of_table(
    column: Any, rewards: Mapping[str, str], lines: _Lines, totals: Values, file: FileReport
) -> TableTurns | None:
    """Return the turns in a column, and report rewards that do not add up to the totals."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (is_list and pa.types.is_struct(kind.value_type)):
        file.note(int(lines[0]), ReadProblem.NO_TURNS)
        return None
    lengths = column.value_lengths().fill_null(0)
    counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if not counts.any() or not _few(counts, tuple(rewards), lines, file):
        return None
    flat, places = column.flatten(), np.repeat(lines, counts)

    def numbers(path: str, what: str) -> Values:
        found = inside(flat, path)
        none = np.full(len(places), np.nan)
        return none if found is None else column_in(found).usable(what, places, file)

    columns = [numbers(path, f"reward {name!r} of a turn") for name, path in rewards.items()]
    advantages = numbers("advantage", "the advantage of a turn")
    turns = padded(counts, columns, advantages, numbers("num_tokens", "num_tokens of a turn"))
    known = np.arange(turns.rewards.shape[1]) < counts[:, None]
    earned = np.where(known[..., None], turns.rewards, 0.0)
    apart = np.abs(earned.sum(axis=1) - totals)
    # NaN is not larger than anything. Records may be in single precision.
    wrong = apart > 1e-4 * (np.abs(earned).sum(axis=1) + np.abs(totals))
    wrong &= counts[:, None] > 0
    for name, odd in zip(rewards, wrong.T, strict=True):
        file.note_where(odd, lines, ReadProblem.TURNS_APART, {"name": name})
    return turns


def _few(counts: _Lines, names: Sequence[str], lines: _Lines, file: FileReport) -> bool:
    if fits(len(counts), int(counts.max(initial=0)), len(names)):
        return True
    file.note(int(lines[np.argmax(counts)]), ReadProblem.MANY_TURNS)
    return False
