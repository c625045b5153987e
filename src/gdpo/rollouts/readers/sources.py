"""Reads `.pt` samples, and Arrow batches of CSV, parquet and Arrow files."""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

from gdpo.errors import DataError, MissingExtraError
from gdpo.rollouts.arrow import HAS_PYARROW, pa, pacsv, pq
from gdpo.rollouts.readers.records import Record
from gdpo.rollouts.readers.report import FileReport, ReadProblem
from gdpo.rollouts.readers.text import (
    BROKEN,
    LONGEST_LINE,
    is_gzip,
    json_lines,
    opened,
    opened_text,
)

LoadPt: TypeAlias = Callable[[Path], Any]
"""Function that reads a `.pt` file with torch: `gdpo.integrations.torch_files.load_dump`."""

_LARGEST_GZIP = 2**30
"""Maximum size of a decompressed parquet file, in bytes. The whole file is kept in memory, because
the metadata at its end is read first."""
_LARGEST_TABLE = 2**28
"""Maximum size of a W&B table, in bytes. The whole table is kept in memory."""
_BLOCKS = (2**20, 2**25, 2**27)
"""Block sizes in bytes. The next size is used if a row does not fit. Arrow reads 32 blocks ahead,
which can take much more than the size of a compressed file."""
_GZIP_BLOCKS = _BLOCKS[:2]
_COLUMNS = 10_000
_FEW = 16
"""Number of rows per batch, if the first ones are to show what a file contains."""
_PART = 2**20
_ROWS, _BYTES = 65_536, 2**26
"""Number of rows and number of bytes at which a batch is complete."""
_DELIMITERS = ",;\t"
_TRIED = 32
"""Number of rows that decide between two delimiters that are both in the first line."""
_WIDEST = 2**20
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_WORDS = {"": None, "nan": None, "true": True, "false": False, "inf": inf, "-inf": -inf}
_FILE, _STREAM, _FEATHER_1 = b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"
_MOST_HELD = 2**26
"""Size in bytes at which several small batches are yielded as one."""


class Unpacked(io.RawIOBase):
    """Streams a gzip file up to the last whole line, as Arrow reads ahead into a broken part."""

    broken: Exception | None = None
    """The error that stopped decompression, or None if there has been no error so far."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._stream = gzip.GzipFile(path, "rb")
        self._rest = b""

    def close(self) -> None:
        """Close the stream and the file."""
        self._stream.close()
        super().close()

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes: whole lines, part of a longer line, or nothing at the end."""
        size = 2**20 if size < 0 else size
        parts, held = [self._rest], len(self._rest)
        while part := self._part(size - held):
            parts.append(part)
            held += len(part)
        found = b"".join(parts)
        end = found.rfind(b"\n") + 1
        if self.broken is None and (held < size or not end):
            end = len(found)
        self._rest = found[end:] if self.broken is None else b""
        return found[:end]

    def _part(self, size: int) -> bytes:
        try:
            return b"" if self.broken is not None else self._stream.read1(size)
        except BROKEN as error:
            self.broken = error
            return b""


def unreadable() -> tuple[type[Exception], ...]:
    """Return the errors that a broken file, or one of another type, raises."""
    arrow = (pa.ArrowException,) if sys.modules.get("pyarrow") else ()
    return (OSError, EOFError, zlib.error, UnicodeError, DataError, MissingExtraError, *arrow)


def saved_samples(file: FileReport, load_pt: LoadPt | None) -> Iterator[tuple[int, Record]]:
    """Yield the samples of a `.pt` file of slime or miles, each with its number."""
    if load_pt is None:
        raise DataError(
            ".pt files need torch: pass load_pt=load_dump, from gdpo.integrations.torch_files"
        )
    payload = load_pt(file.path)
    if not isinstance(payload, dict) or not {"rollout_id", "samples"} <= set(payload):
        raise DataError("not a slime rollout file: it has no 'rollout_id' and 'samples'")
    found = cast("Record", payload)
    if not isinstance(found["samples"], list):
        raise DataError("not a slime rollout file: its 'samples' are not a list")
    for index, sample in enumerate(cast("list[Any]", found["samples"])):
        if isinstance(sample, dict):
            yield index, {**cast("dict[str, Any]", sample), "rollout_id": found["rollout_id"]}
        else:
            file.reject(index, ReadProblem.NO_DICT)


def wandb_table(file: FileReport) -> Iterator[Any]:
    """Yield the rows of a W&B table, in one batch."""
    with opened_text(file.path) as stream:
        raw = stream.read(_LARGEST_TABLE + 1)
    if len(raw) > _LARGEST_TABLE:
        raise DataError(f"the table is larger than {_LARGEST_TABLE:,} bytes")
    try:
        found: Any = json.loads(raw)
        names, rows = [str(name) for name in found["columns"]], found["data"]
        values = zip(*rows, strict=True) if rows else [[] for _ in names]
        table = pa.RecordBatch.from_arrays(list(map(pa.array, values)), names=names)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError("not a W&B table: it has no columns and data") from error
    if rows:
        file.rows += len(rows)
        yield table


def csv_records(file: FileReport) -> Iterator[tuple[int, Record]]:
    """Yield the rows of a CSV file, without pyarrow."""
    delimiter = delimiter_of(file.path)
    csv.field_size_limit(LONGEST_LINE)
    with io.TextIOWrapper(opened_text(file.path), "utf-8", newline="") as text:
        reader = csv.reader(text, delimiter=delimiter)
        names = next(reader, [])
        if len(set(names)) < len(names):
            raise DataError("several columns have the same name: rename them")
        try:
            for index, row in enumerate(filter(None, reader)):
                if len(row) == len(names):
                    yield index, {n: _value(v) for n, v in zip(names, row, strict=True)}
                else:
                    file.reject(index, ReadProblem.FIELDS)
        except csv.Error as error:
            raise DataError(f"not a CSV file at line {reader.line_num:,}: {error}") from error


def _value(text: str) -> Any:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return _WORDS.get(text.lower(), text) if len(text) < 6 else text
    return float(text) if found[1] or found[2] or len(text) > 18 else int(text)


def delimiter_of(path: Path) -> str:
    """Return the character that splits the first line of a CSV file.

    If several do, it is the one that splits all of the first rows into equally many fields.
    """
    with opened_text(path) as stream:
        text = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
        try:
            lines = list(islice(iter(lambda: text.readline(_WIDEST), ""), _TRIED))
        except BROKEN:
            return ","
    counts = {each: _counts(lines, each) for each in _DELIMITERS}
    splitting = [each for each, found in counts.items() if found and found[0] > 1]
    even = [each for each in splitting if len(set(counts[each])) == 1]
    return next(iter(even or splitting), ",")


def _counts(lines: list[str], delimiter: str) -> list[int]:
    try:
        rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []
    return [len(row) for row in (rows[:-1] if len(lines) == _TRIED else rows)]


def csv_batches(file: FileReport) -> Iterator[Any]:
    """Yield a CSV file in batches, with all rows before a broken part."""
    delimiter = delimiter_of(file.path)
    held: list[Any] = []
    try:
        for block in _blocks(file, delimiter):
            file.rows += block.num_rows
            held.append(block)
            if sum(b.num_rows for b in held) >= _ROWS or sum(b.nbytes for b in held) >= _BYTES:
                yield from _in_one(held)
                held = []
    except (pa.ArrowException, DataError, UnicodeDecodeError, *BROKEN) as error:
        yield from _in_one(held)
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in str(error):
            why = "the file is not UTF-8: write it in UTF-8, as df.to_csv does"
            raise DataError(why) from error
        raise
    yield from _in_one(held)
    found = _swallowed(file.path, delimiter) if _lines_of(file.path) > file.rows + 1 else None
    if found is not None:
        row, lines = found
        file.note(row, ReadProblem.QUOTE, {"lines": lines})


def _lines_of(path: Path) -> int:
    count, empty = 0, True
    with opened(path) as stream:
        while part := stream.read(_PART):
            count += part.count(b"\n") - part.count(b"\n\n") - part.count(b"\n\r\n")
            empty = part.endswith(b"\n")
    return count + (not empty)


def _refuse_rows_above(size: int, path: Path) -> None:
    """Raise an ArrowInvalid about a row that fits into no block, unless the file has no row."""
    with opened(path) as stream:
        if any(part.strip() for part in iter(lambda: stream.read(_PART), b"")):
            raise pa.ArrowInvalid(f"a row has more than {size:,} bytes: use JSONL or parquet")


def _swallowed(path: Path, delimiter: str) -> tuple[int | None, int] | None:
    """Return the first row that spans lines because of a misplaced quote, and the line count."""
    with io.TextIOWrapper(opened(path), "utf-8", "replace", newline="") as text:
        lines = iter(lambda: text.readline(_PART), "")
        reader, row = csv.reader(lines, delimiter=delimiter, strict=True), -1
        while True:
            before = reader.line_num
            try:
                row += bool(next(reader))
            except StopIteration:
                return None
            except csv.Error as error:
                if "field limit" in str(error):  # too long for this check, but valid
                    return None
                if reader.line_num - before > 1:
                    return (row if row >= 0 else None), reader.line_num - before
                row += 1


def _blocks(file: FileReport, delimiter: str) -> Iterator[Any]:
    """Yield each row once. If a row does not fit, read the file again in larger blocks.

    A row with a wrong number of fields is reported once, too.
    """
    sizes = _GZIP_BLOCKS if is_gzip(file.path) else _BLOCKS
    given = reported = wrong = 0

    def skip(row: Any) -> str:
        nonlocal reported, wrong
        wrong += 1
        if wrong > reported:
            reported = wrong
            file.reject(max(row.number - 2, 0) if row.number else None, ReadProblem.FIELDS)
        return "skip"

    for size in sizes:
        seen = wrong = 0
        try:
            for block in _blocks_of(file.path, delimiter, size, skip):
                seen += block.num_rows
                if seen > given:
                    yield block.slice(block.num_rows - (seen - given))
                    given = seen
            return
        except pa.ArrowInvalid as error:
            if "block size" not in str(error) and "Empty CSV" not in str(error):
                raise
    _refuse_rows_above(sizes[-1], file.path)


def _blocks_of(path: Path, delimiter: str, size: int, wrong: Callable[[Any], str]) -> Iterator[Any]:
    names = _reader(_source(path), delimiter, size, lambda _: "skip", []).schema.names
    if len(names) > _COLUMNS:
        raise DataError(
            f"the file has {len(names):,} columns, and at most {_COLUMNS:,} can be read: keep only "
            "the columns that you need. If each column is a rollout, write one row per rollout"
        )
    source = _source(path)
    yield from _reader(source, delimiter, size, wrong, names)
    if isinstance(source, Unpacked) and source.broken is not None:
        raise source.broken


def _source(path: Path) -> Any:
    return Unpacked(path) if is_gzip(path) else pa.OSFile(str(path))


def _reader(
    source: Any, delimiter: str, size: int, wrong: Callable[[Any], str], texts: list[str]
) -> Any:
    """Return a CSV reader. Columns in `texts` are strings; Arrow infers other types."""
    return pacsv.open_csv(
        source,
        read_options=pacsv.ReadOptions(use_threads=False, block_size=size),
        parse_options=pacsv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, invalid_row_handler=wrong
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(texts, pa.string()),
            null_values=[""],  # a prompt may be the text NA
            strings_can_be_null=True,
        ),
    )


class ArrowFile:
    """Provides the schema, the number of rows and the batches of an Arrow file."""

    def __init__(self, path: Path, unpacked: Any, *, in_file_format: bool) -> None:
        self._path, self._unpacked, self._in_file_format = path, unpacked, in_file_format
        self.schema_arrow = self._opened(None).schema
        self.metadata = SimpleNamespace(num_rows=self._rows())

    def _source(self) -> Any:
        if self._unpacked is not None:
            return pa.BufferReader(self._unpacked)
        return pa.memory_map(str(self._path))

    def _opened(self, fields: list[int] | None) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        opened = pa.ipc.open_file if self._in_file_format else pa.ipc.open_stream
        return opened(self._source(), options=options)

    def _stored(self, fields: list[int]) -> Iterator[Any]:
        """Yield the stored batches, checked because Arrow trusts their offsets."""
        reader = self._opened(fields)
        if self._in_file_format:
            batches = (reader.get_batch(place) for place in range(reader.num_record_batches))
        else:
            batches = iter(reader)
        for batch in batches:
            batch.validate(full=True)
            yield batch

    def _rows(self) -> int:
        """Return the number of rows, or of the rows before the damage in a broken file."""
        count = 0
        try:
            for batch in self._stored([0][: len(self.schema_arrow)]):
                count += batch.num_rows
        except (pa.ArrowException, OSError):  # raised again when these rows are read
            pass
        return count

    def iter_batches(self, size: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield batches of `size` rows, or fewer very long ones, with some columns."""
        names = self.schema_arrow.names
        columns = list(dict.fromkeys(c if c in names else c.partition(".")[0] for c in columns))
        held, rows = list[Any](), 0
        for batch in self._stored([names.index(name) for name in columns]):
            at = 0
            while at < batch.num_rows:
                part = batch.slice(at, size - rows)
                held.append(part)
                at, rows = at + part.num_rows, rows + part.num_rows
                if rows == size or sum(each.nbytes for each in held) >= _MOST_HELD:
                    yield from _in_one(held)
                    held, rows = [], 0
        yield from _in_one(held)


def _in_one(batches: list[Any]) -> list[Any]:
    return pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []


def open_parquet(path: Path, text: str | None = None) -> Any:
    """Open a parquet file so that identical texts in the `text` column are read once.

    An Arrow file is opened as an `ArrowFile`, which has the same schema and number of rows.
    """
    unpacked = _decompressed(path) if is_gzip(path) else None
    with path.open("rb") as file:
        head = file.read(6) if unpacked is None else unpacked[:6].to_pybytes()
    if head.startswith(_FEATHER_1):
        raise DataError("the file is of Feather's version 1: write it in version 2")
    by_name = path.name.lower().removesuffix(".gz").endswith((".arrow", ".feather"))
    if head.startswith((_FILE, _STREAM)) or (by_name and not head.startswith(b"PAR1")):
        return ArrowFile(path, unpacked, in_file_format=head == _FILE)
    source: Any = path if unpacked is None else pa.BufferReader(unpacked)
    metadata = pq.read_metadata(source)
    leaves = map(metadata.schema.column, range(len(metadata.schema)))
    texts = (leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY")
    repeated = [path for path in texts if path.partition(".")[0] == text]
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=repeated)


def _decompressed(path: Path) -> Any:
    content = bytearray()
    with gzip.open(path) as stream:
        while part := stream.read(2**20):
            content += part
            if len(content) > _LARGEST_GZIP:
                raise DataError(
                    f"the file is larger than {_LARGEST_GZIP:,} bytes when decompressed: "
                    "decompress it first, because uncompressed parquet files are read in chunks"
                )
    return pa.py_buffer(content)


def parts(parquet: Any, size: int, columns: Sequence[str]) -> Iterator[Any]:
    """Yield batches by row group, so that all groups before a broken one are read."""
    if isinstance(parquet, ArrowFile):
        yield from parquet.iter_batches(size, columns)
        return
    for group in range(parquet.num_row_groups):
        yield from parquet.iter_batches(
            batch_size=size, row_groups=[group], columns=list(columns), use_threads=False
        )


def rows_of(path: Path) -> Iterator[Record]:
    """Yield the rows of a JSON, CSV, parquet or Arrow file, whatever they mean."""
    file, batches = FileReport(path), iter(())
    kind = file.kind
    if kind == "jsonl" or (kind == "csv" and not HAS_PYARROW):
        yield from (row for _, row in (json_lines if kind == "jsonl" else csv_records)(file))
    elif kind == "csv":
        batches = csv_batches(file)
    elif kind == "parquet":
        parquet = open_parquet(path)
        batches = parts(parquet, _FEW, parquet.schema_arrow.names)
    for batch in batches:
        for start in range(0, batch.num_rows, _FEW):
            yield from batch.slice(start, _FEW).to_pylist()
