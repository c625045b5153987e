"""Files as records: lines of JSON, perhaps compressed, perhaps still being written, and `.pt`.

A line of a few kilobytes of gzip may be of any length, so that lines are read up to a bound.
"""

import gzip
import io
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

LONGEST_LINE = 2**27
"""Bytes of a line, decompressed: 1,000 rollouts of 32,000 tokens as text, for a line of ms-swift
holds a whole step. Lines of one rollout with its tokens and their probabilities have some MB. Of
small lists one in another, JSON takes 20 times as much when it is parsed."""
_GZIP = b"\x1f\x8b"
BROKEN = (EOFError, OSError, zlib.error)
"""What a file raises that cannot be read or decompressed to its end."""
_CHECKED = 4096
"""First lines whose objects are searched for keys that stand twice, which doubles the parsing."""
_NOT_UTF8 = "the line is not UTF-8: write the file in UTF-8, as json.dumps does"
_SKIPPED = 2**20
"""Bytes at a time of a line that is not read."""


def is_gzip(path: Path) -> bool:
    """Whether it is a gzip file, whatever its name says."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


class Unpacked(io.RawIOBase):
    """A gzip file as far as it can be decompressed, to the end of the last whole line.

    Whoever reads ahead would come upon the broken part before it has given what is before that.
    """

    broken: Exception | None = None
    """Why it ends before its end."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._stream = gzip.GzipFile(path, "rb")
        self._rest = b""

    def close(self) -> None:
        """Close the file as well."""
        self._stream.close()
        super().close()

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes: whole lines, but for a line that is longer; none at the end."""
        size = 2**20 if size < 0 else size
        parts, held = [self._rest], len(self._rest)
        while held < size and (part := self._part(size - held)):
            parts.append(part)
            held += len(part)
        found = b"".join(parts)
        end = len(found) if held < size and self.broken is None else found.rfind(b"\n") + 1
        if not end and self.broken is None:
            end = len(found)
        self._rest = found[end:] if self.broken is None else b""
        return found[:end]

    def _part(self, size: int) -> bytes:
        try:
            return b"" if self.broken is not None else self._stream.read1(size)
        except BROKEN as error:
            self.broken = error
            return b""


def json_lines(file: FileReport, report: ReadReport) -> Iterator[tuple[int, Record]]:
    """Every line that is a JSON object, with its number; the others are told to the report."""
    told = ""
    for line, raw in _lines(file, report):
        if raw.isspace():
            continue
        repeated: list[str] = []
        record, wrong = _parsed(raw, _noting_repeated(repeated) if line <= _CHECKED else None)
        if repeated:
            told = told or repeated[0]
            report.note(file.path, line, _repeated(repeated[0] if told == repeated[0] else ""))
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
    if not isinstance(found["samples"], list):
        raise DataError("it holds no rollouts: its 'samples' are no list")
    for index, sample in enumerate(cast("list[Any]", found["samples"])):
        if isinstance(sample, dict):
            yield index, {**cast("dict[str, Any]", sample), "rollout_id": found["rollout_id"]}
        else:
            file.rows += 1
            report.lose(file, index, "a sample that is no dict")


def _lines(file: FileReport, report: ReadReport) -> Iterator[tuple[int, bytes]]:
    line = 0
    opened = gzip.open if is_gzip(file.path) else open
    with cast("IO[bytes]", opened(file.path, "rb")) as stream:
        try:
            while raw := stream.readline(LONGEST_LINE + 1):
                line += 1
                file.bytes += len(raw)
                if len(raw) <= LONGEST_LINE:
                    yield line, raw
                else:
                    file.rows += 1
                    report.lose(file, line, _too_long())
                    _skip_line(stream)
        except BROKEN as error:
            what = f"the rest cannot be read: {type(error).__name__}: {error}"
            report.note(file.path, line + 1, what)


def _repeated(name: str) -> str:
    """What is told of the first key that stands twice, and of all others as one."""
    which = f"the key {name[:40]!r} stands" if name else "other keys stand"
    return f"{which} more than once in an object: its last value is used"


def _too_long() -> str:
    return (
        f"the line has more than {LONGEST_LINE:,} bytes, and is skipped: write fewer rollouts to a "
        "line, or parquet"
    )


def _skip_line(stream: IO[bytes]) -> None:
    while stream.readline(_SKIPPED)[-1:] not in (b"", b"\n"):
        pass


def _noting_repeated(repeated: list[str]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """What makes an object of its pairs, and adds the first key that stands in it twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            repeated.append(_first_repeated(pairs))
        return found

    return unique


def _parsed(raw: bytes, made_by: Any) -> tuple[Record | None, str]:
    """The record of a line, whose objects are made by a function; or why it is none."""
    try:
        record = json.loads(raw.decode(), object_pairs_hook=made_by)  # bytes: it would guess
    except RecursionError:
        return None, "the line is nested too deep to be read"
    except UnicodeDecodeError:
        return None, _NOT_UTF8
    except ValueError:
        if raw.endswith(b"\n"):
            return None, "the line is no JSON"
        return None, "the last line is cut off: the run is still writing, or it was killed"
    if not isinstance(record, dict):
        return None, "the line is no JSON object"
    return cast("Record", record), ""


def _first_repeated(pairs: list[tuple[str, Any]]) -> str:
    seen = set[str]()
    return next(name for name, _ in pairs if name in seen or seen.add(name))
