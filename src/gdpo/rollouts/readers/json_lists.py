"""Reads the list of objects in a JSON file, and tells such a file from one with an object per line.

A list is parsed one element at a time, so that memory holds at most one of its elements.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias

from gdpo.errors import DataError
from gdpo.rollouts.readers.report import Problem
from gdpo.rollouts.readers.text import BROKEN, Stream, opened_text

Decoder: TypeAlias = Callable[[], json.JSONDecoder]

_Elements: TypeAlias = Iterator[tuple[int, Any, Problem]]
"""Elements of a list, each with its line, and the problem if it is not an object."""
_LIST = re.compile(rb"\[\s*[{\]]")
_HEAD = 4096
_SPACE = re.compile(r"[ \t\r\n]*")
_PART = 2**20


class _Text:
    def __init__(self, stream: Stream, longest: int) -> None:
        self._stream, self._longest = stream, longest
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._ended = "", 0, False
        self.line = 1

    def _more(self) -> bool:
        """Read further, twice as much as is left, and return whether there was more."""
        left = self._text[self._at :]
        if len(left) > self._longest:
            raise DataError(
                f"the row at line {self.line:,} has more than {self._longest:,} bytes: write "
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
            self._move(_after_space(self._text, self._at))
            if self._at < len(self._text) or self._ended or not self._more():
                return self._text[self._at : self._at + 1]

    def peek_second(self) -> str:
        self.peek()
        while (end := _after_space(self._text, self._at + 1)) >= len(self._text):
            if self._ended or not self._more():
                break
        return self._text[end : end + 1]

    def take(self, expected: str) -> None:
        if (found := self.peek()) != expected:
            what = f"{found!r} instead of {expected!r}" if found else "an end that is missing"
            raise DataError(f"the file is not valid JSON at line {self.line:,}: it has {what}")
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


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def listed(path: Path, decoder: Decoder, longest: int) -> _Elements | None:
    """Return the elements of the list in a file, or None for a file of lines.

    An object without a list is an element. `longest` is the maximum size of an element, in bytes.
    """
    begin = b""
    with opened_text(path) as stream, suppress(*BROKEN):
        begin = stream.read(_HEAD).lstrip()
    if _LIST.match(begin):
        return _of_list(path, decoder, longest)
    if not begin.startswith(b"{") or not path.name.lower().removesuffix(".gz").endswith(".json"):
        return None
    return None if _is_lines(path, longest) else _of_object(path, decoder, longest)


def _of_list(path: Path, decoder: Decoder, longest: int) -> _Elements:
    with opened_text(path) as stream:
        yield from _elements(_Text(stream, longest), decoder)


def _of_object(path: Path, decoder: Decoder, longest: int) -> _Elements:
    """Yield the elements of the only list of objects in an object, or else the object itself."""
    names = _lists_in(path, longest)
    if len(names) > 1:
        raise DataError(
            f"the file contains several lists of rows ({', '.join(map(repr, names[:12]))}): write "
            f"one of them to a file of its own: python -c {quote(_one_list(path, names[0]))}"
        )
    with opened_text(path) as stream:
        text = _Text(stream, longest)
        if not names:
            yield 1, text.value(decoder()), Problem.NO_OBJECT_IN_ROW
            return
        for name, _ in _members(text):
            if name == names[0]:
                yield from _elements(text, decoder)
                return


def _one_list(path: Path, name: str) -> str:
    to = path.name.partition(".")[0] + "_rows.jsonl"
    return (
        f"import json; rows = json.load(open({str(path)!r}, encoding='utf-8'))[{name!r}]; "
        f"open({to!r}, 'w').writelines(json.dumps(row) + chr(10) for row in rows)"
    )


def _elements(text: _Text, decoder: Decoder) -> _Elements:
    """Yield the elements of a list. An element within which the file ends is None."""
    text.take("[")
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        try:
            if text.peek() == "":
                raise EOFError
            yield text.line, text.value(decoder()), Problem.NO_OBJECT_IN_ROW
        except EOFError:
            yield text.line, None, Problem.CUT_ROW
            return
        if text.peek() != ",":
            break
        text.take(",")
    if text.peek() != "":
        text.take("]")


def _lists_in(path: Path, longest: int) -> list[str]:
    names: list[str] = []
    with opened_text(path) as stream:
        text = _Text(stream, longest)
        try:
            for name, of_objects in _members(text):
                if of_objects:
                    names.append(name)
        except (DataError, EOFError):
            if not names:
                raise
    return names


def _members(text: _Text) -> Iterator[tuple[str, bool]]:
    plain = json.JSONDecoder()
    text.take("{")
    while text.peek() == '"':
        name = str(text.value(plain))
        text.take(":")
        if text.peek() == "[":
            yield name, text.peek_second() == "{"
            for _ in _elements(text, lambda: plain):
                pass
        else:
            text.value(plain)
        if text.peek() != ",":
            break
        text.take(",")
    text.take("}")


def _is_lines(path: Path, longest: int) -> bool:
    """Return whether a file that begins with an object has another object after the first line."""
    with opened_text(path) as stream:
        first = stream.readline(longest)
        while first.isspace():
            first = stream.readline(longest)
        second = chain.from_iterable(iter(lambda: [stream.read(_PART)], [b""]))
        begin = next((part.lstrip() for part in second if not part.isspace()), b"")
    return first.rstrip().endswith(b"}") and begin.startswith(b"{")
