"""One file read: its format told, and its rollouts as tables in the order of the file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gdpo.errors import DataError
from gdpo.rollouts.readers import _columns as columns_of
from gdpo.rollouts.readers._columns import Layout
from gdpo.rollouts.readers._finding import ENDINGS, Found
from gdpo.rollouts.readers._formats import Format
from gdpo.rollouts.readers._open import (
    UNREADABLE,
    Wanted,
    form_of_records,
    format_of,
    layout_of,
    open_parquet,
    parts,
    read_csv,
)
from gdpo.rollouts.readers._records import Record
from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._rescoring import RESCORED, forget_texts, rescored, rescored_table
from gdpo.rollouts.readers._rows import (
    Doubtful,
    Row,
    grouping,
    is_number,
    reward_array,
    reward_names,
    row_columns,
    whole,
)
from gdpo.rollouts.readers._sources import json_lines, saved_samples
from gdpo.rollouts.readers._table import RolloutTable

_BATCH = 65_536
"""Rows of parquet at a time."""
_CHUNK = 16_384
"""Records at a time; their prompts are hashed before, so that this is a matter of numbers."""
_ODD = (TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)
"""What a record whose fields hold something else makes its format raise."""
_TEXTS = 4096
"""Rollouts at a time whose texts are wanted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rollouts of a file, of one or several steps."""

    table: RolloutTable
    grouped_by: str


def read_file(found: Found, wanted: Wanted, report: ReadReport) -> Iterator[Piece]:
    """The rollouts of a file; what cannot be read is told to the report."""
    if not found.kind:
        report.left_out[found.path] = f"its name has none of the endings {', '.join(ENDINGS)}"
        return
    try:
        if found.kind in ("jsonl", "pt"):
            yield from _read_records(found, wanted, report)
        else:
            yield from _read_columns(found, wanted, report)
    except UNREADABLE as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _lose_rest(found.path, f"cannot be read: {why}"[:300], report)


def extracted(
    file: FileReport,
    form: Format,
    source: Iterator[tuple[int, Record]],
    report: ReadReport,
    asked: Sequence[str] = (),
) -> Iterator[tuple[int, Row]]:
    """The rollouts of records; a record that does not have its format's fields is lost whole.

    A reward that was asked for, and that the format does not know, is looked for in the record.
    """
    assert form.rows is not None, f"{form.name} is no format of records"
    for line, record in source:
        try:
            rows = list(form.rows(record))
        except DataError as error:
            rows, why = [], str(error)
        except KeyError as error:
            rows, why = [], f"no field {error} of format {form.name}"
        except _ODD as error:
            rows, why = [], f"its fields are not those of {form.name} ({type(error).__name__})"
        else:
            file.rows += len(rows)
            for row in rows:
                if asked:
                    row.rewards = {**_scalars(record, asked), **row.rewards}
                yield line, row
            continue
        file.rows += 1
        report.lose(file, line, why)


def _scalars(record: Record, names: Sequence[str]) -> dict[str, Any]:
    found = {name: columns_of.at(record, name) for name in names}
    return {k: v for k, v in found.items() if is_number(v) or isinstance(v, str)}


def _read_records(found: Found, wanted: Wanted, report: ReadReport) -> Iterator[Piece]:
    file = FileReport(found.path, "", "")
    source = (
        json_lines(file, report)
        if found.kind == "jsonl"
        else saved_samples(file, report, wanted.load_pt)
    )
    first = next(source, None)
    if first is None:
        if file.skipped:
            file.format = "unknown"
            report.files.append(file)
        else:
            report.left_out[found.path] = "it is empty"
        return
    form, file.told_by = form_of_records(found, wanted, first[1])
    file.format = form.name
    report.files.append(file)
    rollouts = extracted(file, form, chain([first], source), report, wanted.rewards or ())
    yield from _pieces(found, wanted, file, rollouts, report)


def _pieces(
    found: Found,
    wanted: Wanted,
    file: FileReport,
    rollouts: Iterator[tuple[int, Row]],
    report: ReadReport,
) -> Iterator[Piece]:
    lines: list[int] = []
    rows: list[Row] = []
    size = _CHUNK if wanted.rescore is None else _TEXTS
    broken: Exception | None = None
    try:
        for line, row in rollouts:
            if wanted.rescore is None:
                forget_texts(row)
            lines.append(line)
            rows.append(row)
            if len(rows) == size:
                yield _piece(found, wanted, file, rows, lines, report)
                lines, rows = [], []
    except UNREADABLE as error:  # what was read before counts
        broken = error
    if rows:
        yield _piece(found, wanted, file, rows, lines, report)
    if broken is not None:
        raise broken


def _piece(
    found: Found,
    wanted: Wanted,
    file: FileReport,
    rows: list[Row],
    lines: list[int],
    report: ReadReport,
) -> Piece:
    if wanted.rescore is None:
        names, told = reward_names(rows, wanted.rewards, file.rewards)
    else:
        names, told = rescored(rows, lines, wanted.rescore, file, report), RESCORED
    _tell_rewards(file, names, told)
    _tell_absent(names, rows, lines[0], file, report)
    first = file.read + file.unplaced
    steps = [_step(row, found) for row in rows]
    table = RolloutTable(
        run=found.run,
        format=file.format,
        names=names,
        weights=_weights(rows, names),
        files=(found.path,),
        steps=np.array([-1 if step is None else step for step in steps], np.int64),
        rewards=reward_array(rows, names, lines, file, report),
        file=np.zeros(len(rows), np.int64),
        row=np.arange(first, first + len(rows)),
        **row_columns(rows, lines, file, report),
    )
    return Piece(_kept(table, file, lines, report), grouping(rows[0]))


def _step(row: Row, found: Found) -> int | None:
    """The step of the record; where it has none, that of the file; where none has, 0."""
    if row.step is None:
        return found.step or 0
    return whole(row.step)


def _tell_absent(
    names: Sequence[str], rows: Sequence[Row], line: int, file: FileReport, report: ReadReport
) -> None:
    """Rewards that no record has, and rollouts of which nothing tells the group."""
    for name in names:
        if not any(name in row.rewards or name == row.total_name for row in rows):
            first = rows[0].rewards.items()
            numbers = [name for name, value in first if type(value) is not Doubtful]
            listed = columns_of.listed(dict.fromkeys((*numbers, rows[0].total_name)))
            report.note(file.path, line, f"no reward {name!r}; its numbers are {listed}")
    bare = [at for at, row in enumerate(rows) if row.group is None and row.prompt is None]
    if bare and len(bare) < len(rows):
        what = "neither a group nor a prompt, where others have one: put into one group"
        report.note(file.path, line, what, count=len(bare))


def _weights(rows: Sequence[Row], names: Sequence[str]) -> tuple[float, ...] | None:
    weights: dict[str, float] = {}
    for row in rows:  # a rollout that was not scored lacks its weight, too
        if row.weights:
            weights = {**row.weights, **weights}
    return tuple(weights[name] for name in names) if set(names) <= set(weights) else None


def _tell_rewards(file: FileReport, names: Sequence[str], told: str) -> None:
    file.rewards = tuple(dict.fromkeys((*file.rewards, *names)))
    file.rewards_told_by = told


def _kept(
    table: RolloutTable, file: FileReport, lines: Sequence[int] | None, report: ReadReport
) -> RolloutTable:
    """Without the rollouts whose step is none; and the count of those that are left."""
    wrong = np.flatnonzero(table.steps < 0)
    if len(wrong):
        line = lines[wrong[0]] if lines is not None else int(table.row[wrong[0]])
        report.lose(file, line, "its step is no whole number from 0", rows=len(wrong))
        file.unplaced += len(wrong)
        table = table.take(np.flatnonzero(table.steps >= 0))
    file.read += len(table)
    return table


def _read_columns(found: Found, wanted: Wanted, report: ReadReport) -> Iterator[Piece]:
    file = FileReport(found.path, "", "")
    if found.kind == "csv":
        table = read_csv(file, report)
        file.rows += table.num_rows
        schema, batches = table.schema, iter(table.to_batches())
    else:
        parquet = open_parquet(found.path, None)
        schema, batches = parquet.schema_arrow, None
        file.rows = parquet.metadata.num_rows
    form, file.told_by = format_of(found, wanted, schema.names)
    file.format = form.name
    report.files.append(file)
    if form.rows is not None:
        file.expected, file.rows = file.rows, 0
        rollouts = extracted(
            file, form, _parquet_records(found.path, form), report, wanted.rewards or ()
        )
        yield from _pieces(found, wanted, file, rollouts, report)
        return
    known = layout_of(form, wanted, schema.names)
    yield from _column_pieces(found, wanted, file, report, schema, batches, known)


def _column_pieces(
    found: Found,
    wanted: Wanted,
    file: FileReport,
    report: ReadReport,
    schema: Any,
    batches: Iterator[Any] | None,
    known: Layout,
) -> Iterator[Piece]:
    rewards, told = columns_of.reward_columns(schema, known, wanted.rewards)
    if wanted.rescore is not None:
        rewards, told = {}, RESCORED
    _tell_rewards(file, list(rewards), told)
    _tell_missing(rewards, schema.names, file, report)
    if batches is None and wanted.rescore is None:
        batches = _batches(found.path, known, rewards, schema)
    elif batches is None:
        batches = parts(open_parquet(found.path, None), _TEXTS, schema.names)
    for batch in batches:
        piece = _column_piece(batch, found, known, rewards, file, report)
        table = piece.table
        if wanted.rescore is not None:
            written = columns_of.written(batch, known)
            table = rescored_table(table, written, wanted.rescore, file, report)
        yield Piece(_kept(table, file, None, report), piece.grouped_by)


def _tell_missing(
    rewards: Mapping[str, str], names: Sequence[str], file: FileReport, report: ReadReport
) -> None:
    for path in rewards.values():
        if not {path, path.partition(".")[0]} & set(names):
            has = columns_of.listed(names)
            report.note(file.path, None, f"no column {path!r}: it is missing there; it has {has}")


def _batches(path: Path, known: Layout, rewards: Mapping[str, str], schema: Any) -> Iterator[Any]:
    text = None if known.group is not None else known.prompt
    scalar = (known.step, known.group, known.total, known.advantage, known.num_tokens)
    paths = {*rewards.values(), *scalar, known.finish_reason, text, "trained", "weights"}
    columns = [p for p in paths if p is not None and {p, p.partition(".")[0]} & set(schema.names)]
    yield from parts(open_parquet(path, text), _BATCH, columns)


def _column_piece(
    batch: Any,
    found: Found,
    known: Layout,
    rewards: Mapping[str, str],
    file: FileReport,
    report: ReadReport,
) -> Piece:
    columns = columns_of.table_columns(batch, known, rewards, file, report)
    if known.step is None:
        columns["steps"] = np.full(batch.num_rows, found.step or 0)
    table = RolloutTable(
        run=found.run,
        format=file.format,
        names=tuple(rewards),
        weights=_struct_weights(batch, tuple(rewards)),
        files=(found.path,),
        file=np.zeros(batch.num_rows, np.int64),
        **columns,
    )
    return Piece(table, columns_of.how_grouped(batch, known))


def _struct_weights(batch: Any, names: tuple[str, ...]) -> tuple[float, ...] | None:
    if "weights" not in batch.schema.names or not batch.num_rows:
        return None
    first = batch.column("weights")[0].as_py()
    if not isinstance(first, dict) or not set(names) <= set(first):
        return None
    return tuple(float(first[name]) for name in names)


def _parquet_records(path: Path, form: Format) -> Iterator[tuple[int, Record]]:
    parquet = open_parquet(path, None)
    names = [name for name in form.numbers if name in parquet.schema_arrow.names]
    row = 0
    for batch in parts(parquet, _CHUNK, names):
        for record in batch.to_pylist():
            yield row, record
            row += 1


def _lose_rest(path: Path, why: str, report: ReadReport) -> None:
    """All rows of the file that were not read by then."""
    file = next((f for f in reversed(report.files) if f.path == path), None)
    if file is None:
        report.left_out[path] = why
        return
    file.rows = max(file.rows, file.expected)
    rest = max(file.rows - file.read - file.skipped, 0)
    report.lose(file, file.read + file.skipped, why, rows=rest)
