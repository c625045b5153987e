"""Files whose columns are rewards: parquet and CSV, piece by piece."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float

from gdpo.rewards._gating import Range, described_ranges
from gdpo.rollouts._record import read_declared
from gdpo.rollouts.readers import _columns as columns_of
from gdpo.rollouts.readers._candidates import (
    MOST,
    MOST_LOOKED_AT,
    few_alone,
    no_reward_inferred,
)
from gdpo.rollouts.readers._csv import csv_batches
from gdpo.rollouts.readers._formats import Format
from gdpo.rollouts.readers._inference import (
    LOOKED_AT,
    Values,
    floating_columns,
    infer,
    is_all_rewards,
    resolved,
    reward_texts,
    unlikelihood,
)
from gdpo.rollouts.readers._layout import (
    Layout,
    is_number,
    listed,
    number_paths,
    passed_over,
)
from gdpo.rollouts.readers._of_records import pieces_of
from gdpo.rollouts.readers._open import (
    fields_of,
    format_of,
    layout_of,
    open_parquet,
    parts,
)
from gdpo.rollouts.readers._piece import WEIGHTS_DIFFER, Piece, Reading
from gdpo.rollouts.readers._records import Record
from gdpo.rollouts.readers._rescoring import RESCORED, TEXTS, rescored_table
from gdpo.rollouts.readers._rows import LONGEST, TEXT_ALONE
from gdpo.rollouts.readers._table import RolloutTable
from gdpo.rollouts.readers._trainer_state import logged_rewards

_BATCH = 65_536
"""Rows of parquet at a time."""
_RECORDS = 16_384
"""Rows with JSON in them at a time."""


def read_csv(reading: Reading) -> Iterator[Piece]:
    """The rollouts of a CSV file."""
    batches = csv_batches(reading.file, reading.report)
    first = next(batches, None)
    if first is None:
        reading.tell_empty()
        return
    schema = columns_of.numeric(first)
    _begin(reading, schema)
    yield from _pieces(reading, schema, chain([first], batches), first)


def read_parquet(reading: Reading) -> Iterator[Piece]:
    """The rollouts of a parquet file, whose columns may hold the fields of a record."""
    file = reading.file
    schema, size = _schema_of(reading.found.path)
    form = _begin(reading, schema)
    if form.rows is not None:
        file.expected = size
        yield from pieces_of(reading, form, _records(reading, form))
    else:
        file.rows = size
        yield from _pieces(reading, schema, None, None)


def _schema_of(path: Path) -> tuple[Any, int]:
    parquet = open_parquet(path, None)
    return parquet.schema_arrow, parquet.metadata.num_rows


def _begin(reading: Reading, schema: Any) -> Format:
    fields = fields_of(schema)
    numbers = list(number_paths(schema))
    reading.offer(numbers, fields)
    form, reading.file.told_by = format_of(reading.found, reading.wanted, fields, numbers)
    reading.file.format = form.name
    reading.report.files.append(reading.file)
    return form


def _records(reading: Reading, form: Format) -> Iterator[tuple[int, Record]]:
    """Rows as records, of which only the fields are read that are wanted."""
    parquet = open_parquet(reading.found.path, None)
    asked = reading.wanted.rewards or ()
    fields = {*form.numbers, *asked, *(name.partition(".")[0] for name in asked)}
    size = _RECORDS
    if reading.wanted.rescore is not None:
        fields, size = {*form.numbers, *form.texts}, TEXTS
    names = [name for name in parquet.schema_arrow.names if name in fields]
    row = 0
    for batch in parts(parquet, size, names):
        for record in batch.to_pylist():
            yield row, record
            row += 1


def _pieces(
    reading: Reading, schema: Any, batches: Iterator[Any] | None, first: Any
) -> Iterator[Piece]:
    """By the batches that are given, and the first of them, or those of a parquet file."""
    rescore = reading.wanted.rescore
    known = layout_of(reading.file.format, reading.wanted, fields_of(schema))
    rewards, told = dict[str, str](), RESCORED
    if rescore is None:
        rewards, told, known = _rewards(reading, known, schema, first)
    reading.tell_rewards(tuple(rewards), told)
    _tell_missing(reading, rewards, schema)
    ranges = _ranges(rewards, schema)
    if batches is None:
        batches = _batches(reading, known, rewards, schema)
    for batch in batches:
        table, how = _table(reading, batch, known, rewards), columns_of.how_grouped(batch, known)
        table = replace(table, ranges=ranges)
        if rescore is not None:
            written = columns_of.written(batch, known)
            table = rescored_table(table, written, rescore, reading.file, reading.report)
        weights = _weights(batch, table.names) if rescore is None else None
        for part in _of_steps(reading, table, weights):
            yield reading.piece(part, how, None)


def _rewards(
    reading: Reading, known: Layout, schema: Any, first: Any
) -> tuple[dict[str, str], str, Layout]:
    """The reward columns by name, how they were told, and what the others mean."""
    asked, file = reading.wanted.rewards, reading.file
    paths = list(number_paths(schema))
    if asked is not None:
        return resolved(asked, [*paths, *reward_texts(schema)]), "as asked for", known
    if file.format == "gdpo":
        record = schema.field("rewards").type
        names = [field.name for field in record] if pa.types.is_struct(record) else []
        return {name: f"rewards.{name}" for name in names}, "those of the record", known
    if file.format == "trl":
        return *_of_trl(reading, known, schema), known
    return _inferred(reading, known, schema, first)


def _inferred(
    reading: Reading, known: Layout, schema: Any, first: Any
) -> tuple[dict[str, str], str, Layout]:
    """The rewards that names and values say, where no format does."""
    file = reading.file
    some = list(number_paths(schema, empty=True))
    some += [known.total] if known.total is not None and known.total not in some else []
    numeric, texts = _texts(reading, known, schema, first)
    if known.total in texts:
        known = replace(known, total=None)
    found = infer(_first_numbers(reading, [*some, *numeric], first), known, texts)
    for name, path in found.names.items():
        if path in numeric:
            reading.note(None, f"reward {name!r} is the text of a number, and counts as it")
    file.guessed, file.refused = True, found.why
    if found.why:
        reading.note(None, no_reward_inferred(found.why))
    if known.total is None and found.total is not None:
        known = replace(known, total=found.total)
    return _few(reading, found.names), found.told, known


def _of_trl(reading: Reading, known: Layout, schema: Any) -> tuple[dict[str, str], str]:
    """The columns that TRL's log names, or where there is none all that may be rewards."""
    free = set(schema.names) - known.taken()
    logged = [name for name in logged_rewards(reading.found.path) if name in free]
    others, told = floating_columns(schema, known)
    if not logged:
        reading.file.guessed = True
        return _few(reading, others), told
    told = passed_over([name for name in others if name not in logged])
    return {name: name for name in logged}, f"those of TRL's log (trainer_state.json){told}"


def _few(reading: Reading, rewards: Mapping[str, str]) -> dict[str, str]:
    if len(rewards) > MOST:
        reading.note(None, few_alone("columns"))
    return dict(islice(rewards.items(), MOST))


def _first_numbers(reading: Reading, paths: Sequence[str], first: Any) -> dict[str, Values]:
    """The numbers of the first rollouts: of a batch of texts, or of a parquet file."""
    likeliest = set(sorted(paths, key=unlikelihood)[:MOST_LOOKED_AT])
    kept = [path for path in paths if path in likeliest]
    first = _first_rows(reading, kept, first)
    return {} if first is None else columns_of.numbers_at(first, kept)


def _texts(reading: Reading, known: Layout, schema: Any, first: Any) -> tuple[list[str], list[str]]:
    """The columns of texts that are named as rewards: those of numbers, and the others.

    The others are told, but long texts beside a reward, which are its explanations. A total that
    is a number anywhere is read as one.
    """
    paths = list(islice(reward_texts(schema), MOST_LOOKED_AT))
    first = _first_rows(reading, paths, first) if paths else None
    columns = {} if first is None else {path: columns_of.entered(first, path) for path in paths}
    columns = {p: column for p, column in columns.items() if column.null_count < len(column)}
    if known.total in columns and columns_of.holds_numbers(columns[known.total], any_of_them=True):
        del columns[known.total]
    numeric = [path for path, column in columns.items() if columns_of.holds_numbers(column)]
    texts = [
        path
        for path, column in columns.items()
        if path not in numeric and (is_all_rewards(path) or columns_of.is_short(column, LONGEST))
    ]
    for path in texts:
        reading.note(None, f"{path!r} {TEXT_ALONE}")
    return numeric, texts


def _first_rows(reading: Reading, kept: Sequence[str], first: Any) -> Any:
    """The first rows, with the columns of these paths; None: there are none."""
    if first is None:
        columns = list(dict.fromkeys(path.partition(".")[0] for path in kept))
        parquet = open_parquet(reading.found.path, None)
        columns = [*(p for p in kept if p in parquet.schema_arrow.names), *columns]
        first = next(parts(parquet, LOOKED_AT, list(dict.fromkeys(columns))), None)
    return None if first is None else first[:LOOKED_AT]


def _ranges(rewards: Mapping[str, str], schema: Any) -> dict[str, Range]:
    """Return the ranges that gdpo's own record declares of its rewards."""
    declared = described_ranges(read_declared(schema))
    known = {name: declared.get(path.removeprefix("rewards.")) for name, path in rewards.items()}
    return {name: found for name, found in known.items() if found is not None}


def _tell_missing(reading: Reading, rewards: Mapping[str, str], schema: Any) -> None:
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
    for name, path in rewards.items():
        found = columns_of.entered(empty, path) is not None
        if not found:
            has = listed(schema.names)
            reading.note(None, f"no column {path!r}: it is missing there; it has {has}")
        if name in (reading.wanted.rewards or ()):
            reading.report.seek(name, number_paths(schema), found=found)


def _batches(
    reading: Reading, known: Layout, rewards: Mapping[str, str], schema: Any
) -> Iterator[Any]:
    """Of a parquet file the columns that are wanted, as they are stored."""
    path = reading.found.path
    if reading.wanted.rescore is not None:
        yield from parts(open_parquet(path, None), TEXTS, schema.names)
        return
    text = None if known.group is not None else known.prompt
    scalar = (known.step, known.group, known.total, known.advantage, known.num_tokens)
    paths = {*rewards.values(), *scalar, known.finish_reason, text, "trained", "weights"}
    columns = [p for p in paths if p is not None and {p, p.partition(".")[0]} & set(schema.names)]
    yield from parts(open_parquet(path, text), _BATCH, columns)


def _table(reading: Reading, batch: Any, known: Layout, rewards: Mapping[str, str]) -> RolloutTable:
    found, names = reading.found, tuple(rewards)
    columns = columns_of.table_columns(batch, known, rewards, reading.file, reading.report)
    if known.step is None:
        columns["steps"] = np.full(batch.num_rows, found.step or 0)
    return RolloutTable(
        run=found.run,
        format=reading.file.format,
        names=names,
        weights=None,
        files=(found.path,),
        file=np.zeros(batch.num_rows, np.int64),
        ranges={},
        **columns,
    )


def _of_steps(
    reading: Reading, table: RolloutTable, weights: Float[np.ndarray, "row reward"] | None
) -> Iterator[RolloutTable]:
    """A table of each step, with the weights that its rollouts have."""
    order = np.argsort(table.steps, kind="stable")
    starts = np.flatnonzero(np.diff(table.steps[order])) + 1
    for rows in np.split(order, starts) if len(table) else ():
        part = table.take(rows) if len(starts) else table
        own = None if weights is None else _of_step(reading, weights[rows], part)
        yield replace(part, weights=own)


def _of_step(
    reading: Reading, weights: Float[np.ndarray, "row reward"], table: RolloutTable
) -> tuple[float, ...] | None:
    """Those of the first row that has them; None: none has any that can be used, which is told."""
    known = ~np.isnan(weights).any(axis=-1)
    first = int(np.argmax(known))
    others = np.flatnonzero(known & np.any(weights != weights[first], axis=-1))
    if len(others):
        reading.note(int(table.row[others[0]]), WEIGHTS_DIFFER, count=len(others))
    return reading.usable_weights(tuple(weights[first].tolist()), int(table.row[first]))


def _weights(batch: Any, names: tuple[str, ...]) -> Float[np.ndarray, "row reward"] | None:
    """The weights of every row; NaN: it has none. None: the file does not say."""
    columns = [columns_of.entered(batch, f"weights.{name}") for name in names]
    if not columns or any(c is None or not is_number(c.type) for c in columns):
        return None
    floats = [pc.cast(c, pa.float64()).to_numpy(zero_copy_only=False) for c in columns]
    return np.stack(floats, axis=-1)
