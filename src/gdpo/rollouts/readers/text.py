"""Opens text files, and reads the JSON objects in them: one per line, or in one list.

A list is parsed one element at a time, to save memory. The length of a line is limited, because a
few kilobytes of gzip can expand to a line of any length.
"""

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias, cast

from gdpo.errors import DataError
from gdpo.rollouts.readers.records import Record
from gdpo.rollouts.readers.report import FileReport, ReadProblem

_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"
Stream: TypeAlias = gzip.GzipFile | io.BufferedReader
BROKEN = (EOFError, OSError, zlib.error)
"""Errors that are raised if a file cannot be read or decompressed to the end."""
LONGEST_LINE = 2**27
"""Maximum size of a line, in decompressed bytes. A line of ms-swift contains a whole step, and this
limit is enough for 1,000 rollouts of 32,000 tokens as text. Parsing a line of small nested lists
takes 20 times its size in memory."""
_CHECKED = 4096
"""Number of lines at the start of a file that are searched for repeated keys. The search doubles
the parsing time."""
_SKIPPED = 2**20
Decoder: TypeAlias = Callable[[], json.JSONDecoder]

_Elements: TypeAlias = Iterator[tuple[int, Any, ReadProblem]]
"""Elements of a list, each with its line, and the problem if it is not an object."""
_LIST = re.compile(rb"\[\s*[{\]]")
_INNER_LIST = re.compile(rb'"([^"\\]{1,64})"\s*:\s*\[\s*\{')
_HEAD = 4096
_SPACES = " \t\r\n"
_SPACE = re.compile(f"[{_SPACES}]*")
_PART = 2**20


def is_gzip(path: Path) -> bool:
    """Return whether a file begins like a gzip file."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def opened(path: Path) -> Stream:
    """Open a file, decompressed."""
    return gzip.GzipFile(path) if is_gzip(path) else path.open("rb")


def opened_text(path: Path) -> Stream:
    """Open a text file after its byte order mark."""
    stream = opened(path)
    head = stream.read(4)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or (b"\0" in head and head.strip(b"\0")):
        stream.close()
        bare = "BE" if head.startswith(b"\0") else ""  # without the mark that tells the order
        encoding = "UTF-32" if b"\0\0" in head else f"UTF-16{bare}"
        raise DataError(
            f"the file is {encoding}: write it in UTF-8, for example with "
            f"iconv -f {encoding} -t UTF-8 {quote(str(path))} > {quote('utf8_' + path.name)}"
        )
    stream.seek(len(_MARK) if head.startswith(_MARK) else 0)
    return stream


def json_lines(file: FileReport) -> Iterator[tuple[int, Record]]:
    """Yield each JSON object with its line, and report other lines, or elements of a list."""
    named, left, repeated = "", _CHECKED, list[str]()

    def noting_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen = set[str]()
            repeated.append(next(name for name, _ in pairs if name in seen or seen.add(name)))
        return found

    checking = json.JSONDecoder(object_pairs_hook=noting_repeated)
    plain = json.JSONDecoder()

    def decoder() -> json.JSONDecoder:
        repeated.clear()
        return checking if left > 0 else plain

    elements = _listed(file.path, decoder)
    for line, record, wrong in _lines(file, decoder) if elements is None else elements:
        left -= 1
        if repeated:
            # Only the first repeated key is named, so that a malicious file cannot cause many
            # notices.
            named = named or repeated[0]
            which = f"the key {named[:40]!r}" if named == repeated[0] else "another key"
            file.note(line, ReadProblem.REPEATED_KEY, {"which": which})
        if isinstance(record, dict):
            yield line, cast("Record", record)
        else:
            file.reject(line, wrong)


def _lines(file: FileReport, decoder: Decoder) -> Iterator[tuple[int, Any, ReadProblem]]:
    line = 0
    with opened_text(file.path) as stream:
        try:
            while raw := stream.readline(LONGEST_LINE + 1):
                line += 1
                file.bytes += len(raw)
                if len(raw) > LONGEST_LINE:
                    file.reject(line, ReadProblem.LONG_LINE, {"most": LONGEST_LINE})
                    while stream.readline(_SKIPPED)[-1:] not in (b"", b"\n"):
                        pass
                elif not raw.isspace():
                    yield line, *_parsed(raw, decoder())
        except BROKEN as error:
            file.note(line + 1, ReadProblem.REST, {"why": f"{type(error).__name__}: {error}"})


def _parsed(raw: bytes, decoder: json.JSONDecoder) -> tuple[Any, ReadProblem]:
    try:
        text = raw.decode().strip(_SPACES)  # json would guess the encoding of bytes
        record, end = decoder.raw_decode(text)
        if end == len(text):
            return record, ReadProblem.NO_OBJECT
    except RecursionError:
        return None, ReadProblem.TOO_DEEP
    except UnicodeDecodeError:
        return None, ReadProblem.NOT_UTF8
    except ValueError:
        pass
    return None, ReadProblem.NO_JSON if raw.endswith(b"\n") else ReadProblem.CUT_LINE


class _Text:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._ended = "", 0, False
        self.line = 1

    def _more(self) -> bool:
        left = self._text[self._at :]
        if len(left) > LONGEST_LINE:
            raise DataError(
                f"the row at line {self.line:,} has more than {LONGEST_LINE:,} bytes: write "
                "smaller rows, or parquet"
            )
        raw = self._read(max(_PART, len(left)))
        self._ended = not raw
        try:
            self._text, self._at = left + self._decoder.decode(raw, final=not raw), 0
        except UnicodeDecodeError as error:
            raise DataError("the file is not UTF-8: write it in UTF-8") from error
        return not self._ended

    def _read(self, size: int) -> bytes:
        """Return up to `size` bytes. The error of a damaged file is raised after its last bytes."""
        found = bytearray()
        while len(found) < size:
            try:
                part = self._stream.read1(size - len(found))
            except BROKEN as error:
                if found:
                    break
                why = f"the rest cannot be read: {type(error).__name__}: {error}"
                raise DataError(why) from error
            if not part:
                break
            found += part
        return bytes(found)

    def peek(self) -> str:
        while True:
            space = _SPACE.match(self._text, self._at)
            self._move(self._at if space is None else space.end())
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self, expected: str) -> None:
        if (found := self.peek()) != expected:
            what = f"{found!r} instead of {expected!r}" if found else "the end of the file"
            raise DataError(f"the file is not valid JSON at line {self.line:,}: found {what}")
        self._move(self._at + 1)

    def value(self, decoder: json.JSONDecoder) -> Any:
        self.peek()
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise DataError(
                    f"the row at line {self.line:,} is nested too deeply to be read"
                ) from error
            except json.JSONDecodeError as error:
                if not self._ended:
                    self._more()
                    continue
                rest = self._text.rstrip()
                if error.pos >= len(rest) or rest[-1] not in "]}":
                    raise EOFError from error
                line = self.line + self._text.count("\n", self._at, error.pos)
                raise DataError(f"the file is not valid JSON at line {line:,}") from error
            except ValueError as error:  # an integer with thousands of digits
                raise DataError(f"a number at line {self.line:,} is too long") from error
            if end < len(self._text) or self._ended:
                self._move(end)
                return value
            self._more()  # a number may go on

    def _move(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end


def _listed(path: Path, decoder: Decoder) -> _Elements | None:
    """Return the elements of the list in a file, or None if it is a file of lines."""
    begin = b""
    with opened_text(path) as stream, suppress(*BROKEN):
        begin = stream.read(_HEAD).lstrip()
    if _LIST.match(begin):
        return _elements(path, decoder)
    is_json = path.name.lower().removesuffix(".gz").endswith(".json")
    if begin.startswith(b"{") and is_json and not _is_lines(path):
        inner = _INNER_LIST.search(begin)
        name = inner[1].decode(errors="replace") if inner else "NAME"
        to = path.name.partition(".")[0] + "_rows.jsonl"
        rows = (
            f"import json; rows = json.load(open({str(path)!r}, encoding='utf-8'))[{name!r}]; "
            f"open({to!r}, 'w').writelines(json.dumps(row) + chr(10) for row in rows)"
        )
        raise DataError(
            "the file is one JSON object, not a list or one object per line: write its list of "
            f"rows to a file of its own: python -c {quote(rows)}"
        )
    return None


def _elements(path: Path, decoder: Decoder) -> _Elements:
    """Yield the elements of a list, None for one within which the file ends."""
    with opened_text(path) as stream:
        text = _Text(stream)
        text.take("[")
        if text.peek() == "]":
            return
        while True:
            try:
                if text.peek() == "":
                    raise EOFError
                yield text.line, text.value(decoder()), ReadProblem.NO_OBJECT_IN_ROW
            except EOFError:
                yield text.line, None, ReadProblem.CUT_ROW
                return
            if text.peek() != ",":
                break
            text.take(",")
        if text.peek() != "":
            text.take("]")


def _is_lines(path: Path) -> bool:
    """Return whether a file that begins with an object has another object after the first line."""
    with opened_text(path) as stream:
        while (first := stream.readline(LONGEST_LINE)).isspace():
            pass
        second = iter(lambda: stream.read(_PART), b"")
        begin = next((part.lstrip() for part in second if not part.isspace()), b"")
    return first.rstrip().endswith(b"}") and begin.startswith(b"{")
