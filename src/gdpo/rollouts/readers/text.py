"""Opens text files: decompresses gzip, skips a byte order mark, and refuses UTF-16."""

import gzip
import io
import zlib
from pathlib import Path
from shlex import quote
from typing import TypeAlias

from gdpo.errors import DataError

_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"
Stream: TypeAlias = gzip.GzipFile | io.BufferedReader
BROKEN = (EOFError, OSError, zlib.error)
"""Errors that are raised if a file cannot be read or decompressed to the end."""


def is_gzip(path: Path) -> bool:
    """Return whether a file is compressed with gzip, according to its first bytes."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def opened(path: Path) -> Stream:
    """Open a file, decompressed."""
    return gzip.GzipFile(path) if is_gzip(path) else path.open("rb")


def opened_text(path: Path) -> Stream:
    """Open a text file after its byte order mark."""
    stream = opened(path)
    head = stream.read(4)
    if encoding := _wide(head):
        stream.close()
        raise DataError(
            f"the file is {encoding}: write it in UTF-8, for example with "
            f"iconv -f {encoding} -t UTF-8 {quote(str(path))} > {quote('utf8_' + path.name)}"
        )
    stream.seek(len(_MARK) if head.startswith(_MARK) else 0)
    return stream


def _wide(head: bytes) -> str:
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    if len(head) == 4 and head[1] == head[3] == 0 < min(head[0], head[2]):
        return "UTF-16LE"
    return "UTF-16BE" if len(head) == 4 and head[0] == head[2] == 0 < min(head[1], head[3]) else ""
