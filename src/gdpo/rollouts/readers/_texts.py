"""The texts of some rollouts, for who wants to look at them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from gdpo.errors import DataError
from gdpo.rollouts.readers._columns import entered, numeric
from gdpo.rollouts.readers._csv import csv_batches
from gdpo.rollouts.readers._finding import Found, kind_of
from gdpo.rollouts.readers._layout import Layout, number_paths
from gdpo.rollouts.readers._of_records import extracted, source_of
from gdpo.rollouts.readers._open import (
    UNREADABLE,
    Wanted,
    fields_of,
    form_of_records,
    format_of,
    layout_of,
    open_parquet,
)
from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._rows import Row
from gdpo.rollouts.readers._sources import LoadPt

_FEW = 1024
"""Rows at a time: texts are large."""


@dataclass(frozen=True, slots=True)
class RolloutText:
    """The texts of one rollout, as the file has them: text, chat messages or tokens."""

    row: int
    prompt: Any
    completion: Any


def read_texts(
    file: Path,
    rows: Sequence[int],
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    load_pt: LoadPt | None = None,
) -> list[RolloutText]:
    """Prompt and completion of some rollouts of one file.

    Args:
        file: As a table names it.
        rows: As the column `row` of a table has them.
        format: As it was given to `read_rollout_files`.
        columns: Likewise.
        load_pt: Likewise.

    Returns:
        One for each of the rows, in their order.

    Raises:
        DataError: The file cannot be read, or has no such row.
    """
    found = Found(file, kind_of(file), "", None, evaluation=False)
    wanted = Wanted(format, columns=columns, load_pt=load_pt)
    try:
        texts = dict(_texts(found, wanted, set(rows)))
        return [texts[row] for row in rows]
    except UNREADABLE as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    except KeyError as error:
        raise DataError(f"{file} has no row {error}") from error


def _texts(found: Found, wanted: Wanted, rows: set[int]) -> Iterator[tuple[int, RolloutText]]:
    file, report = FileReport(found.path, "", ""), ReadReport((found.path,))
    if found.kind in ("jsonl", "pt"):
        source = source_of(found.kind, wanted, file, report)
        first = next(source, None)
        if first is not None:
            form, _ = form_of_records(found, wanted, first[1])
            yield from _rows(extracted(file, form, chain([first], source), report), rows)
        return
    if found.kind == "csv":
        batches = csv_batches(file, report)
        first = next(batches, None)
        if first is not None:
            schema = numeric(first)
            fields = fields_of(schema)
            form, _ = format_of(found, wanted, fields, number_paths(schema))
            known = layout_of(form.name, wanted, fields)
            yield from _of_batches(chain([first], batches), known, rows)
        return
    parquet = open_parquet(found.path, None)
    fields = fields_of(parquet.schema_arrow)
    form, _ = format_of(found, wanted, fields, number_paths(parquet.schema_arrow))
    if form.rows is not None:
        records = ((0, r) for batch in parquet.iter_batches(_FEW) for r in batch.to_pylist())
        yield from _rows(extracted(file, form, records, report), rows)
        return
    known = layout_of(form.name, wanted, fields)
    names = {n.partition(".")[0] for n in (known.prompt, known.completion) if n is not None}
    yield from _of_batches(parquet.iter_batches(_FEW, columns=sorted(names)), known, rows)


def _rows(rollouts: Iterator[tuple[int, Row]], rows: set[int]) -> Iterator[tuple[int, RolloutText]]:
    left = set(rows)
    for place, (_, row) in enumerate(rollouts):
        if place in left:
            left.discard(place)
            yield place, RolloutText(place, row.prompt, row.completion)
        if not left:
            return


def _of_batches(
    batches: Iterable[Any], known: Layout, rows: set[int]
) -> Iterator[tuple[int, RolloutText]]:
    first = 0
    for batch in batches:
        prompt, completion = (
            None if path is None else entered(batch, path)
            for path in (known.prompt, known.completion)
        )
        for row in sorted(row for row in rows if first <= row < first + batch.num_rows):
            texts = (None if c is None else c[row - first].as_py() for c in (prompt, completion))
            yield row, RolloutText(row, *texts)
        first += batch.num_rows
