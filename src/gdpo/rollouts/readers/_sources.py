"""Files as records: lines of JSON, perhaps compressed, perhaps still being written, and `.pt`."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from gdpo.errors import DataError
from gdpo.rollouts.readers._records import Record
from gdpo.rollouts.readers._report import FileReport, ReadReport

LoadPt: TypeAlias = Callable[[Path], Any]
"""Reads a `.pt` file, which takes torch: `gdpo.integrations.slime.load_dump`."""

_GZIP = b"\x1f\x8b"


def opened(path: Path) -> IO[bytes]:
    """A file to read, decompressed if it is a gzip file, whatever its name says."""
    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP
    return cast("IO[bytes]", gzip.open(path)) if compressed else path.open("rb")


def json_lines(file: FileReport, report: ReadReport) -> Iterator[tuple[int, Record]]:
    """Every line that is a JSON object, with its number; the others are told to the report."""
    with opened(file.path) as stream:
        line = 0
        while raw := _next_line(stream, file, line, report):
            line += 1
            if raw.strip():
                record, wrong = _parsed(raw)
                if record is not None:
                    yield line, record
                else:
                    file.rows += 1
                    report.lose(file, line, wrong)


def saved_samples(
    file: FileReport, report: ReadReport, load_pt: LoadPt | None
) -> Iterator[tuple[int, Record]]:
    """The samples of a file that slime or miles saved.

    Args:
        file: A `.pt` file.
        report: Told of samples that are none.
        load_pt: Reads the file.

    Raises:
        DataError: It is no such file, or there is nothing to read it with.
    """
    if load_pt is None:
        raise DataError(".pt files take torch: give load_pt=load_dump, of gdpo.integrations.slime")
    payload = load_pt(file.path)
    if not isinstance(payload, dict) or not {"rollout_id", "samples"} <= set(payload):
        raise DataError("it holds no rollouts: no 'rollout_id' and 'samples'")
    found = cast("Record", payload)
    for index, sample in enumerate(cast("list[Any]", found["samples"])):
        if isinstance(sample, dict):
            yield index, {**cast("dict[str, Any]", sample), "rollout_id": found["rollout_id"]}
        else:
            file.rows += 1
            report.lose(file, index, "a sample that is no dict")


def _next_line(stream: IO[bytes], file: FileReport, line: int, report: ReadReport) -> bytes:
    try:
        return stream.readline()
    except (EOFError, OSError, zlib.error) as error:
        what = f"the rest cannot be read: {type(error).__name__}: {error}"
        report.note(file.path, line + 1, what)
        return b""


def _parsed(raw: bytes) -> tuple[Record | None, str]:
    try:
        record = json.loads(raw.decode())  # of bytes it would guess the encoding
    except (ValueError, RecursionError):
        if raw.endswith(b"\n"):
            return None, "the line is no JSON"
        return None, "the last line is cut off: the run is still writing, or it was killed"
    if not isinstance(record, dict):
        return None, "the line is no JSON object"
    return cast("Record", record), ""
