"""CSV, perhaps compressed, as batches of texts: what is a number is told later, value by value."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._sources import BROKEN, Unpacked, is_gzip

_BLOCKS = (2**20, 2**25, 2**27)
"""Bytes at a time, the next where a row does not fit. Arrow reads 32 ahead: of a plain file no more
than lies on the disk, which a compressed one does not say."""
_GZIP_BLOCKS = _BLOCKS[:2]
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
    except (pa.ArrowException, *BROKEN) as error:
        broken = error
    if held:
        yield _joined(held)
    if broken is not None:
        raise broken


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
            if "block size" not in str(error):
                raise
    raise pa.ArrowInvalid(
        f"a row has more than {sizes[-1]:,} bytes: write lines of JSON, or parquet"
    )


def _blocks_of(path: Path, size: int, wrong: _Wrong) -> Iterator[Any]:
    names = _reader(_source(path), size, _skip, []).schema.names
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
