"""Reads Arrow files: Feather (version 2), and those of `datasets`, in the stream or file format.

The file is mapped into memory, so that only the columns that are needed are loaded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gdpo.errors import DataError

_FILE, _STREAM, _FEATHER_1 = b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"
_MOST = 2**26
"""Number of bytes at which a batch that is made of several is complete."""


@dataclass(frozen=True, slots=True)
class Size:
    """Stores the number of rows, as the metadata of parquet do."""

    num_rows: int


def is_arrow(path: Path, head: bytes) -> bool:
    """Return whether a file is an Arrow file, by its first bytes, or else by its name."""
    if head.startswith(b"PAR1"):
        return False
    known = head.startswith((_FILE, _STREAM, _FEATHER_1))
    return known or path.name.lower().removesuffix(".gz").endswith((".arrow", ".feather"))


class ArrowFile:
    """Provides the schema, the number of rows and the batches of an Arrow file."""

    def __init__(self, path: Path, unpacked: Any = None) -> None:
        self._path, self._unpacked = path, unpacked
        with self._source() as source:
            head = source.read(len(_FILE))
            self._in_file_format = head == _FILE
            if head.startswith(_FEATHER_1):
                raise DataError("the file is of Feather's version 1: write it in version 2")
        self.schema_arrow = self._opened(None).schema
        self.metadata = Size(self._rows())

    def _source(self) -> Any:
        if self._unpacked is not None:
            return pa.BufferReader(self._unpacked)
        return pa.memory_map(str(self._path))

    def _opened(self, fields: Sequence[int] | None) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=None if fields is None else list(fields))
        opened = pa.ipc.open_file if self._in_file_format else pa.ipc.open_stream
        return opened(self._source(), options=options)

    def _stored(self, fields: Sequence[int] | None) -> Iterator[Any]:
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
        """Return the number of rows up to the end, or up to where the file is broken."""
        count = 0
        try:
            for batch in self._stored([0][: len(self.schema_arrow)]):
                count += batch.num_rows
        except (pa.ArrowException, OSError):  # raised again when these rows are read
            pass
        return count

    def iter_batches(self, size: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield batches of `size` rows with some of the columns.

        Batches of very long rows are smaller. For a field of a struct, they contain the struct.
        """
        names = self.schema_arrow.names
        columns = list(dict.fromkeys(c if c in names else c.partition(".")[0] for c in columns))
        held, rows = list[Any](), 0
        for batch in self._stored([names.index(name) for name in columns]):
            at = 0
            while at < batch.num_rows:
                part = batch.slice(at, size - rows)
                held.append(part)
                at, rows = at + part.num_rows, rows + part.num_rows
                if rows == size or sum(each.nbytes for each in held) >= _MOST:
                    yield from _joined(held, columns)
                    held, rows = [], 0
        yield from _joined(held, columns)


def _joined(batches: list[Any], columns: Sequence[str]) -> list[Any]:
    if not batches:
        return []
    return pa.Table.from_batches(batches).select(list(columns)).combine_chunks().to_batches()
