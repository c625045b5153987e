"""Opens a file, and returns its rollouts as batches of columns."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpo.errors import DataError
from gdpo.rollouts.arrow import HAS_PYARROW
from gdpo.rollouts.readers.columns import (
    Part,
    forget_texts,
    kind_of_type,
    of_records,
    of_table,
    texts_in,
    texts_of,
)
from gdpo.rollouts.readers.files import RolloutFile
from gdpo.rollouts.readers.formats import Format, ReaderOptions, format_of, format_of_table
from gdpo.rollouts.readers.names import NAME_LISTS, kinds_in, weight_places
from gdpo.rollouts.readers.propose import LOOKED_AT, Given
from gdpo.rollouts.readers.records import (
    ParsedRollout,
    Record,
    at,
    is_number,
    numbers_by_path,
    one_per_rollout,
    plain,
)
from gdpo.rollouts.readers.report import Details, FileReport, ReadProblem
from gdpo.rollouts.readers.rewards import (
    Run,
    given_by_records,
    given_by_table,
    narrow,
    open_table,
    with_later,
)
from gdpo.rollouts.readers.sources import (
    csv_records,
    open_parquet,
    parts,
    saved_samples,
    unreadable,
)
from gdpo.rollouts.readers.text import json_lines

_CHUNK = 16_384
"""Number of records per batch. Prompts are already hashed, so only numbers take up memory."""
_BATCH = 65_536
_TURNS = 2**20
"""Maximum number of turns per batch of records, for files with turns."""
_TEXTS = 4096
_FEW = 128
"""Number of rollouts per batch if only a few texts are needed, so that few others are read."""
_TEXT_BYTES = 2**27
"""Maximum number of bytes per batch if texts are needed."""
_ODD = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RuntimeError)
"""Errors that a format raises for a record whose fields have unexpected types."""


_Rows: TypeAlias = tuple[list[ParsedRollout], list[int]]
"""Rollouts with their lines."""
Opened: TypeAlias = tuple[Given, Iterator[Part]]
"""What a file is read with, and its rollouts."""


def open_file(asked: ReaderOptions, file: FileReport, run: Run) -> Opened | None:
    """Open a file, and determine its format and what it is read with.

    Return None if no row in the file can be read. A broken file can also raise the other errors in
    `unreadable`, here or while the parts are read.
    """
    if file.kind in ("jsonl", "pt") or (file.kind == "csv" and not HAS_PYARROW):
        read = {"jsonl": json_lines, "csv": csv_records}.get(file.kind)
        source = saved_samples(file, asked.load_pt) if read is None else read(file)
        if (record := next(source, None)) is None:
            return None
        fields, paths = kinds_in(record[1]), numbers_by_path(record[1])
        numbers = [path for path, value in paths.items() if is_number(value)]
        form = format_of(asked, file, fields, numbers, paths, record[1])
        return _of_records(asked, file, form, chain([record], source), run)
    if (table := open_table(file)) is None:
        return None
    schema, rows, first, blocks = table
    form = format_of_table(asked, file, schema)
    if form.numbers:
        file.expected = rows
        return _of_records(asked, file, form, _records_of(file.path, asked, form), run)
    file.rows += rows
    given = Given(form.known)
    if not asked.texts:
        given = file.given = given_by_table(asked, file, form, schema, first, run)
    if first is None:
        given, blocks = _of_parquet(asked, file, given, schema)
    else:
        blocks = chain([first], blocks)
    return given, _table_parts(file, given, blocks)


def _of_parquet(
    asked: ReaderOptions, file: FileReport, given: Given, schema: Any
) -> tuple[Given, Iterator[Any]]:
    """Return what a parquet file is read with, and batches of only the needed columns."""
    known, of_gdpo = given.known, file.format == "gdpo"
    if asked.texts:
        paths, names = {known.prompt, known.completion} - {None}, schema.names
        if asked.rescore is None:
            names = sorted({str(path).partition(".")[0] for path in paths})
        return given, parts(open_parquet(file.path), _TEXTS, names)
    if None not in (known.group, known.step) and not (of_gdpo or given.rewards.groups):
        known = replace(known, prompt=None)  # the group ids do not need it
        given = replace(given, known=known)
    # Equal prompts are stored once in a dictionary, so each prompt is read once.
    prompt = known.prompt if known.group is None or file.format == "columns" else None
    has_turns = of_gdpo and "turns" in schema.names
    needed = replace(known, prompt=prompt, completion=None).places()
    weights = chain.from_iterable(weight_places(*each) for each in given.names.items())
    paths = {*given.names.values(), *needed.values(), *NAME_LISTS, *weights, "trained"}
    names = ["turns"] if has_turns else list[str]()
    for path in paths:
        above = path.partition(".")[0]
        if path in schema.names:
            names.append(path)
        elif above in schema.names:
            names.append(path if kind_of_type(schema.field(above).type) == "object" else above)
    return given, parts(open_parquet(file.path, prompt), _CHUNK if has_turns else _BATCH, names)


def _table_parts(file: FileReport, given: Given, batches: Iterator[Any]) -> Iterator[Part]:
    for batch in batches:
        lines = file.numbered + np.arange(batch.num_rows)
        yield Part(
            lines,
            partial(of_table, batch, lines, given, file),
            partial(texts_in, batch, given.known, restored=file.format == "gdpo"),
        )


def _records_of(path: Path, asked: ReaderOptions, form: Format) -> Iterator[tuple[int, Record]]:
    parquet = open_parquet(path)
    named, texts = asked.rewards or (), form.texts.split() if asked.texts else ()
    fields = {*form.numbers.split(), *texts, *named, *(name.partition(".")[0] for name in named)}
    names = [name for name in parquet.schema_arrow.names if name in fields]
    batches = parts(parquet, _TEXTS if asked.texts else _CHUNK, names)
    return enumerate(record for batch in batches for record in batch.to_pylist())


def _of_records(
    asked: ReaderOptions,
    file: FileReport,
    form: Format,
    source: Iterator[tuple[int, Record]],
    run: Run,
) -> Opened:
    rollouts = one_per_rollout(_rows_of(file, form, source, asked), file)
    chunks = _some_at_a_time(rollouts, file, asked, form)
    given = Given(form.known, form.known.total)
    if not asked.texts and (first := next(chunks, None)) is not None:
        more = partial(_later_rows, run.after(file), asked, form)
        given = given_by_records(asked, form, file, first[0], more, run)
        file.given = given
        chunks = chain(iter([first]), chunks)  # which does not keep the first
    return given, _record_parts(asked, file, given, chunks, run)


def _record_parts(
    asked: ReaderOptions, file: FileReport, given: Given, chunks: Iterator[_Rows], run: Run
) -> Iterator[Part]:
    checked = file.format == "columns"
    for every, numbers in chunks:
        # A reward counts from the first rollout on that has it.
        more, first = (given, 0) if asked.texts else with_later(given, every, file, run)
        if more is not given:
            file.given = more
        for known, some in ((given, slice(first)), (more, slice(first, None))):
            rows, lines = every[some], np.array(numbers[some])
            if rows:
                yield Part(
                    lines,
                    partial(of_records, rows, lines, known, file),
                    partial(texts_of, rows, checked=checked),
                )
        given = more


def _later_rows(
    later: Sequence[RolloutFile], asked: ReaderOptions, form: Format, rows: int
) -> list[ParsedRollout]:
    found = list[ParsedRollout]()
    for other in later:
        if len(found) >= rows or other.kind not in ("jsonl", "parquet"):
            break
        scratch = FileReport(other.path, format=form.name)
        with suppress(*unreadable()):  # which is reported when the file is read
            source = json_lines(scratch)
            if other.kind == "parquet":
                source = _records_of(other.path, asked, form)
            records = islice(source, rows - len(found))
            for _, row in one_per_rollout(_rows_of(scratch, form, records, asked), scratch):
                row.step = other.step if row.step is None else row.step
                found.append(row)
    return found


def _some_at_a_time(
    rollouts: Iterator[tuple[int, ParsedRollout]],
    file: FileReport,
    asked: ReaderOptions,
    form: Format,
) -> Iterator[_Rows]:
    """Yield rollouts and their lines in chunks, with all rollouts before a broken part."""
    rows, lines, start, turns = list[ParsedRollout](), list[int](), 0, 0
    most = max(_CHUNK, 0 if form.rewards == "format" else LOOKED_AT)
    if asked.texts:
        most = _FEW if asked.rescore is None else _TEXTS
    try:
        for line, row in rollouts:
            lines.append(line)
            rows.append(row)
            turns += row.turns.count
            full = file.bytes - start >= _TEXT_BYTES if asked.texts else turns >= _TURNS
            if full or len(rows) >= most:
                yield rows, lines
                rows, lines, start, turns = [], [], file.bytes, 0
                most = most if asked.texts else _CHUNK
    except unreadable():
        if rows:
            yield rows, lines
        raise
    if rows:
        yield rows, lines


def _rows_of(
    file: FileReport, form: Format, source: Iterator[tuple[int, Record]], asked: ReaderOptions
) -> Iterator[tuple[int, ParsedRollout]]:
    for line, record in source:
        try:
            rows = list(form.rows(record))
        except _ODD as error:
            file.reject(line, *_misunderstood(error, form.name))
            continue
        if not rows:
            file.note(line, ReadProblem.NO_ROLLOUT)
        file.rows += len(rows)
        for row in rows:
            if asked.rewards:
                scalars = {
                    name: plain(value)
                    for name in asked.rewards
                    if isinstance(value := at(record, name), str | int | float)
                }
                row.rewards = {**scalars, **row.rewards}
            if not asked.texts:
                forget_texts(row, checked=form.name == "columns")
                narrow(row, asked, form, file)
            yield line, row


def _misunderstood(error: Exception, form: str) -> tuple[ReadProblem, Details]:
    if isinstance(error, DataError):
        return ReadProblem.TOLD, {"why": str(error)}
    if isinstance(error, KeyError):
        return ReadProblem.NO_FIELD, {"field": str(error), "format": form}
    if isinstance(error, RecursionError):
        return ReadProblem.DEEP_FIELD, {}
    return ReadProblem.TYPES, {"format": form, "error": type(error).__name__}
