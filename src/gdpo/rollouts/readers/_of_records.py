"""Files of records, which are lines of JSON, samples of a `.pt` file or rows with JSON in them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from gdpo.errors import DataError
from gdpo.rollouts.readers._candidates import Candidates
from gdpo.rollouts.readers._formats import Format
from gdpo.rollouts.readers._inference import kinds_in
from gdpo.rollouts.readers._layout import at, listed
from gdpo.rollouts.readers._natural import numbers_by_path
from gdpo.rollouts.readers._open import UNREADABLE, Wanted, form_of_records
from gdpo.rollouts.readers._outputs import OnePerRollout
from gdpo.rollouts.readers._piece import WEIGHTS_DIFFER, Piece, Reading
from gdpo.rollouts.readers._records import Record
from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._rescoring import RESCORED, TEXTS, forget_texts, rescored
from gdpo.rollouts.readers._rows import (
    Doubtful,
    Row,
    grouping,
    is_number,
    plain,
    reward_array,
    row_columns,
    whole,
)
from gdpo.rollouts.readers._sources import json_lines, saved_samples
from gdpo.rollouts.readers._table import RolloutTable

_CHUNK = 16_384
"""Records at a time; their prompts are hashed before, so that this is a matter of numbers."""
_TEXT_BYTES = 2**27
"""Of lines at a time whose texts are wanted."""
_ODD = (TypeError, ValueError, IndexError, AttributeError, OverflowError, RuntimeError)
"""What a record whose fields hold something else makes its format raise."""


def source_of(
    kind: str, wanted: Wanted, file: FileReport, report: ReadReport
) -> Iterator[tuple[int, Record]]:
    """The records of a file of lines or of samples, with their lines."""
    if kind == "jsonl":
        return json_lines(file, report)
    return saved_samples(file, report, wanted.load_pt)


def read_records(reading: Reading) -> Iterator[Piece]:
    """The rollouts of a file of lines or of samples, told by the first record."""
    found, wanted, file = reading.found, reading.wanted, reading.file
    source = source_of(found.kind, wanted, file, reading.report)
    first = next(source, None)
    if first is None:
        reading.tell_empty()
        return
    numbers = numbers_by_path(first[1], but=frozenset()).items()
    reading.offer((path for path, value in numbers if is_number(value)), kinds_in(first[1]))
    form, file.told_by = form_of_records(found, wanted, first[1])
    file.format = form.name
    reading.report.files.append(file)
    yield from pieces_of(reading, form, chain([first], source))


def extracted(
    file: FileReport,
    form: Format,
    source: Iterator[tuple[int, Record]],
    report: ReadReport,
    asked: Sequence[str] = (),
) -> Iterator[tuple[int, Row]]:
    """The rollouts of records; a record that does not have its format's fields is lost whole.

    A reward that was asked for, and that the format does not know, is looked for in the record.
    Of a rollout of several outputs the last stands for it.
    """
    return OnePerRollout(file, report).of(_extracted(file, form, source, report, asked))


def pieces_of(
    reading: Reading, form: Format, source: Iterator[tuple[int, Record]]
) -> Iterator[Piece]:
    """The rollouts of records, some at a time; what was read before a broken part comes first."""
    wanted, file, report = reading.wanted, reading.file, reading.report
    named = Candidates(wanted.rewards, file, report, form.known)
    rows, lines, start = list[Row](), list[int](), 0
    broken: Exception | None = None
    try:
        for line, row in extracted(file, form, source, report, wanted.rewards or ()):
            if wanted.rescore is None:
                forget_texts(row)
                named.narrow(row, line)
            lines.append(line)
            rows.append(row)
            if _is_full(rows, file.bytes - start, wanted, named.needed):
                yield from _by_step(reading, named, rows, lines)
                rows, lines, start = [], [], file.bytes
    except UNREADABLE as error:
        broken = error
    if rows:
        yield from _by_step(reading, named, rows, lines)
    if broken is not None:
        raise broken


def _is_full(rows: Sequence[Row], size: int, wanted: Wanted, needed: int) -> bool:
    if wanted.rescore is None:
        return len(rows) >= max(_CHUNK, needed)
    return len(rows) >= TEXTS or size >= _TEXT_BYTES


def _extracted(
    file: FileReport,
    form: Format,
    source: Iterator[tuple[int, Record]],
    report: ReadReport,
    asked: Sequence[str],
) -> Iterator[tuple[int, Row]]:
    assert form.rows is not None, f"{form.name} is no format of records"
    for line, record in source:
        rows, why = _rows_of(form, record)
        if why:
            file.rows += 1
            report.lose(file, line, why)
        elif not rows:
            report.note(file.path, line, "it holds no rollout")
        file.rows += len(rows)
        for row in rows:
            if asked:
                row.rewards = {**_scalars(record, asked), **row.rewards}
            yield line, row


def _rows_of(form: Format, record: Record) -> tuple[list[Row], str]:
    """The rollouts of a record, or why it has not the fields of its format."""
    assert form.rows is not None
    try:
        return list(form.rows(record)), ""
    except DataError as error:
        return [], str(error)
    except KeyError as error:
        return [], f"no field {error} of format {form.name}"
    except RecursionError:
        return [], "a field is nested too deep to be read"
    except _ODD as error:
        return [], f"its fields are not those of {form.name} ({type(error).__name__})"


def _scalars(record: Record, names: Sequence[str]) -> dict[str, Any]:
    found = {name: at(record, name) for name in names}
    return {k: plain(v) for k, v in found.items() if is_number(v) or isinstance(v, str)}


def _by_step(
    reading: Reading, named: Candidates, rows: list[Row], lines: list[int]
) -> Iterator[Piece]:
    """A piece of each step: what its rewards and weights are does not depend on other steps."""
    rescore, before = reading.wanted.rescore, reading.file.numbered
    anew = () if rescore is None else rescored(rows, lines, rescore, reading.file, reading.report)
    if rescore is None:
        named.settle(rows)
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(_step(row, reading.found.step), []).append(place)
    for step, of_step in sorted(places.items()):
        part, at_lines = [rows[i] for i in of_step], [lines[i] for i in of_step]
        told = named.names(part, at_lines) if rescore is None else (anew, RESCORED)
        reading.tell_rewards(*told)
        _tell_absent(reading, told[0], part, at_lines[0])
        table = _table(reading, told[0], step, part, at_lines)
        table = replace(table, row=before + np.array(of_step))
        yield reading.piece(table, grouping(part), at_lines)


def _table(
    reading: Reading,
    names: tuple[str, ...],
    step: int,
    rows: Sequence[Row],
    lines: Sequence[int],
) -> RolloutTable:
    found, file, report = reading.found, reading.file, reading.report
    return RolloutTable(
        run=found.run,
        format=file.format,
        names=names,
        weights=_weights(reading, rows, names, lines),
        files=(found.path,),
        steps=np.full(len(rows), step, np.int64),
        rewards=reward_array(rows, names, lines, file, report),
        file=np.zeros(len(rows), np.int64),
        row=np.arange(len(rows)),
        ranges={},
        **row_columns(rows, lines, file, report),
    )


def _step(row: Row, of_file: int | None) -> int:
    """The step of the record; where it has none, that of the file; where none has, 0. -1: none."""
    step = whole(row.step) if row.step is not None else of_file or 0
    return -1 if step is None else step


def _tell_absent(reading: Reading, names: Sequence[str], rows: Sequence[Row], line: int) -> None:
    """Rewards that no record has, and rollouts of which nothing tells the group."""
    numbers = _numbers(reading, rows[0])
    for name in names:
        found = any(name in row.rewards or name == row.total_name for row in rows)
        if not found:
            reading.note(line, f"no reward {name!r}; its numbers are {listed(numbers)}")
        if name in (reading.wanted.rewards or ()):
            reading.report.seek(name, numbers, found=found)
    bare = sum(row.group is None and row.prompt is None for row in rows)
    if bare and bare < len(rows):
        what = "neither a group nor a prompt, where others have one: put into one group"
        reading.note(line, what, count=bare)
    asked = sum(row.group is None and row.prompt is not None for row in rows)
    if asked and any(row.group is not None for row in rows):
        reading.note(line, "no group, where others have one: told by its prompt", count=asked)


def _numbers(reading: Reading, row: Row) -> list[str]:
    """The numbers that the file has, which may be named as rewards."""
    if reading.file.format == "columns":
        return list(reading.file.numbers)
    numbers = [name for name, value in row.rewards.items() if type(value) is not Doubtful]
    return numbers if row.total is None else list(dict.fromkeys((*numbers, row.total_name)))


def _weights(
    reading: Reading, rows: Sequence[Row], names: Sequence[str], lines: Sequence[int]
) -> tuple[float, ...] | None:
    weights: dict[str, float] = {}
    for row, line in zip(rows, lines, strict=True):
        if row.weights:  # a rollout that was not scored lacks its weight, too
            weights = {**row.weights, **weights}
            if any(weights[name] != w == w for name, w in row.weights.items()):
                reading.note(line, WEIGHTS_DIFFER)
    if not set(names) <= set(weights):
        return None
    return reading.usable_weights(tuple(weights[name] for name in names), lines[0])
