"""A file opened: its format, and what its columns mean."""

import gzip
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gdpo.errors import DataError, MissingExtraError
from gdpo.rollouts.readers._finding import Found
from gdpo.rollouts.readers._formats import Format, named, recognized
from gdpo.rollouts.readers._inference import (
    Kind,
    kinds_in,
    kinds_of,
    layout,
    looks_rewarded,
)
from gdpo.rollouts.readers._layout import GDPO, TRL, Layout, listed
from gdpo.rollouts.readers._natural import numbers_by_path, rows_by
from gdpo.rollouts.readers._records import Record
from gdpo.rollouts.readers._rescoring import Rescore
from gdpo.rollouts.readers._sources import LoadPt, is_gzip

UNREADABLE = (
    OSError,
    EOFError,
    zlib.error,
    UnicodeError,
    pa.ArrowException,
    DataError,
    MissingExtraError,
)
"""What a file that is broken, or not what it seems, makes its reader raise."""

_UNPACKED = 2**30
"""Bytes of a compressed parquet file, decompressed: its end is read first, so that it is held."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller said; None: what the files say."""

    format: str | None = None
    rewards: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = None
    load_pt: LoadPt | None = None
    rescore: Rescore | None = None


def format_of(
    found: Found,
    wanted: Wanted,
    fields: Collection[str],
    numbers: Iterable[str],
    record: Record | None = None,
) -> tuple[Format, str]:
    """The format of a file, and how it was told.

    Args:
        found: The file.
        wanted: What was asked for.
        fields: The names of its fields.
        numbers: The paths of its numbers.
        record: The first of a file of records.

    Raises:
        DataError: It has none that is known.
        ConfigError: There is no format of the name that was asked for.
    """
    if wanted.format is not None:
        form = named(wanted.format, found.kind, fields)
        if form is None:
            raise DataError(f"format {wanted.format} is not written as {found.kind}")
        return form, "as asked for"
    form = recognized(found.kind, fields, record) if wanted.columns is None else None
    if form is not None:
        return form, f"recognized by its fields {', '.join(sorted(form.fields))}"
    by_columns = wanted.columns is not None or wanted.rewards is not None
    if by_columns or looks_rewarded(fields, numbers):
        form = named("columns", found.kind, fields)
        assert form is not None
        return form, "read by its columns"
    raise DataError(
        f"no format of rollouts that is known has the fields {listed(fields)}; name the "
        "format, or the columns"
    )


def fields_of(schema: Any) -> dict[str, Kind]:
    """The fields of a table, and what they hold.

    Raises:
        DataError: It has two of one name.
    """
    repeated = [name for name, count in Counter(schema.names).items() if count > 1]
    if repeated:
        raise DataError(f"it has several columns called {listed(repeated)}; rename them")
    return kinds_of(schema)


def is_record(path: Path) -> bool:
    """Whether it is a file of gdpo's record, with its end."""
    try:
        fields = pq.read_schema(path).names
    except UNREADABLE:
        return False
    form = recognized("parquet", fields, None)
    return form is not None and form.name == "gdpo"


def form_of_records(found: Found, wanted: Wanted, record: Record) -> tuple[Format, str]:
    """The format of a file of records, by its first, and how it was told.

    Raises:
        DataError: See `format_of`; or its files hold no texts, and they are to be scored anew.
    """
    fields = kinds_in(record)
    numbers = numbers_by_path(record, but=frozenset())
    form, told_by = format_of(found, wanted, fields, numbers, record)
    if form.wordless and wanted.rescore is not None:
        raise DataError(
            f"files of {form.name} hold no texts that could be scored anew: leave --rescore out, "
            "and its own rewards are read"
        )
    if form.rows is None:
        known = layout(wanted.columns, fields)
        form = Format(form.name, "", form.fields, rows_by(known), known=known)
    return form, told_by


def layout_of(form: str, wanted: Wanted, fields: Mapping[str, Kind]) -> Layout:
    """What the columns of a file of this format mean."""
    known = {"gdpo": GDPO, "trl": TRL}.get(form)
    return known or layout(wanted.columns, fields)


def open_parquet(path: Path, text: str | None) -> Any:
    """A parquet file; equal prompts are read once only, as they are stored.

    Raises:
        DataError: It is compressed once more, and too large to be held.
    """
    source: Any = pa.BufferReader(_unpacked(path)) if is_gzip(path) else path
    metadata = pq.read_metadata(source)
    schema = metadata.schema
    leaves = [schema.column(i) for i in range(len(schema))]
    repeated = [
        leaf.path
        for leaf in leaves
        if leaf.physical_type == "BYTE_ARRAY" and leaf.path.partition(".")[0] == text
    ]
    if source is not path:
        source.seek(0)
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=repeated)


def _unpacked(path: Path) -> Any:
    content = bytearray()
    with gzip.open(path) as stream:
        while part := stream.read(2**20):
            content += part
            if len(content) > _UNPACKED:
                raise DataError(
                    f"decompressed it has more than {_UNPACKED:,} bytes, which is too much to be "
                    "held: decompress it first, parquet is read piece by piece"
                )
    return pa.py_buffer(content)


def parts(parquet: Any, size: int, columns: Sequence[str]) -> Iterator[Any]:
    """Batches of one row group each, so that those before a broken one are read."""
    for group in range(parquet.num_row_groups):
        yield from parquet.iter_batches(
            batch_size=size, row_groups=[group], columns=list(columns), use_threads=False
        )
