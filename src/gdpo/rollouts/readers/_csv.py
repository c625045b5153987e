"""CSV, perhaps compressed, as batches of texts: what is a number is told later, value by value."""

import csv
import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from gdpo.errors import DataError
from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._sources import BROKEN, Unpacked, is_gzip

_BLOCKS = (2**20, 2**25, 2**27)
"""Bytes at a time, the next where a row does not fit. Arrow reads 32 ahead: of a plain file no more
than lies on the disk, which a compressed one does not say."""
_GZIP_BLOCKS = _BLOCKS[:2]
_COLUMNS = 10_000
_PART = 2**20
_ROWS, _BYTES = 65_536, 2**26
"""At which a batch is large enough."""


class _Wrong:
    """Tells of rows with another number of fields, each once however often the file is read."""

    def __init__(self, file: FileReport, report: ReadReport) -> None:
        self._file, self._report = file, report
        self._told = self._seen = 0

    def again(self) -> None:
        """The file is read from its start once more."""
        self._seen = 0

    def __call__(self, row: Any) -> str:
        """Of Arrow: skip the row."""
        self._seen += 1
        if self._seen > self._told:
            self._told = self._seen
            self._file.rows += 1
            what = "it has another number of fields than the first line"
            self._report.lose(self._file, max(row.number - 2, 0) if row.number else None, what)
        return "skip"


def csv_batches(file: FileReport, report: ReadReport) -> Iterator[Any]:
    """The rows of a CSV file, in batches; those before a part that is broken come first.

    Raises:
        pyarrow.ArrowInvalid: It is no CSV, or a row is too long.
        OSError, EOFError, zlib.error: It cannot be opened or decompressed.
    """
    held: list[Any] = []
    broken: Exception | None = None
    try:
        for block in _blocks(file.path, _Wrong(file, report)):
            file.rows += block.num_rows
            held.append(block)
            if sum(b.num_rows for b in held) >= _ROWS or sum(b.nbytes for b in held) >= _BYTES:
                yield _joined(held)
                held = []
    except (pa.ArrowException, DataError, *BROKEN) as error:
        broken = error
    if held:
        yield _joined(held)
    if broken is not None:
        raise _explained(broken)
    if _lines_of(file.path) > file.rows + 1 and (found := _swallowed(file.path)) is not None:
        row, lines = found
        what = f"a quote is not closed, so that {lines:,} lines were read as one row: close it"
        report.note(file.path, row, what)


def _explained(error: Exception) -> Exception:
    """The error, in plain words where Arrow's do not say what to do."""
    if "invalid UTF8" in str(error):
        return DataError("it is not UTF-8: write it in UTF-8, as df.to_csv does")
    return error


def _lines_of(path: Path) -> int:
    """Lines that hold something, whatever stands in quotes."""
    count, empty = 0, True
    with _opened(path) as stream:
        while part := stream.read(_PART):
            count += part.count(b"\n") - part.count(b"\n\n") - part.count(b"\n\r\n")
            empty = part.endswith(b"\n")
    return count + (not empty)


def _swallowed(path: Path) -> tuple[int | None, int] | None:
    """The first row whose quotes are not as in CSV and that spans lines, and how many lines.

    What stands right after a closing quote, other than a comma, was to be in the next row.
    """
    with io.TextIOWrapper(_opened(path), "utf-8", "replace", newline="") as text:
        reader, row = csv.reader(iter(lambda: text.readline(_PART), ""), strict=True), -1
        while True:
            before = reader.line_num
            try:
                row += bool(next(reader))
            except StopIteration:
                return None
            except csv.Error as error:
                if "field limit" in str(error):  # a text too long for this check alone
                    return None
                if reader.line_num - before > 1:
                    return (row if row >= 0 else None), reader.line_num - before
                row += 1


def _opened(path: Path) -> Any:
    return gzip.open(path) if is_gzip(path) else path.open("rb")


def _joined(blocks: list[Any]) -> Any:
    return pa.Table.from_batches(blocks).combine_chunks().to_batches()[0]


def _blocks(path: Path, wrong: _Wrong) -> Iterator[Any]:
    """All rows, each once: where one does not fit, the file is read again by larger blocks."""
    sizes = _GZIP_BLOCKS if is_gzip(path) else _BLOCKS
    given = 0
    for size in sizes:
        seen = 0
        wrong.again()
        try:
            for block in _blocks_of(path, size, wrong):
                seen += block.num_rows
                if seen > given:
                    yield block.slice(block.num_rows - (seen - given))
                    given = seen
            return
        except pa.ArrowInvalid as error:
            if "block size" not in str(error) and "Empty CSV" not in str(error):
                raise
    raise pa.ArrowInvalid(
        f"a row has more than {sizes[-1]:,} bytes: write lines of JSON, or parquet"
    )


def _blocks_of(path: Path, size: int, wrong: _Wrong) -> Iterator[Any]:
    names = _reader(_source(path), size, _skip, []).schema.names
    if len(names) > _COLUMNS:
        raise DataError(
            f"it has {len(names):,} columns, and at most {_COLUMNS:,} are read: keep only "
            "those that you need; if each column is a rollout, write one row per rollout"
        )
    source = _source(path)
    yield from _reader(source, size, wrong, names)
    if isinstance(source, Unpacked) and source.broken is not None:
        raise source.broken


def _skip(_row: Any) -> str:
    return "skip"


def _source(path: Path) -> Any:
    return Unpacked(path) if is_gzip(path) else pa.OSFile(str(path))


def _reader(source: Any, size: int, wrong: Callable[[Any], str], texts: list[str]) -> Any:
    """The columns that are named hold texts; of the others Arrow guesses what they hold."""
    return pacsv.open_csv(
        source,
        read_options=pacsv.ReadOptions(use_threads=False, block_size=size),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=wrong),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(texts, pa.string()),
            null_values=[""],  # a prompt may be the text NA
            strings_can_be_null=True,
        ),
    )
