"""Reads TensorBoard's event files and W&B's `.wandb` files without their libraries.

Both hold protobuf messages, of which two or three fields are needed. Nothing in the files is
executed, and checksums are not tested: a damaged length ends the file.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gdpo.errors import DataError

_LARGEST = 2**27
"""Maximum size of a message, in bytes. Event files can contain images and videos."""
_BLOCK, _HEADER = 2**15, 7
"""Size of a block, and of the header of the file and of each part, in a `.wandb` file."""
_WHOLE, _FIRST, _LAST = 1, 2, 4
"""Types of parts of a message in a `.wandb` file. All others are in the middle of a message."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
_BITS = 64


def event_rows(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the step and the scalars of each event in a TensorBoard event file.

    A file whose end is missing is read as far as possible, because its run may still be writing.
    """
    with path.open("rb") as file:
        for message in _framed(file):
            scalars: dict[str, float] = {}
            step = 0
            for number, value in _fields(message):
                if number == 2 and isinstance(value, int):
                    step = value
                elif number == 5 and isinstance(value, bytes):
                    scalars |= _scalars(value)
            if scalars:
                yield step, scalars


def wandb_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the values of each call of `wandb.log`, with `_step`, in a `.wandb` file.

    A file whose end is missing is read as `event_rows` does.
    """
    with path.open("rb") as file:
        for message in _parts_joined(file):
            for number, value in _fields(message):
                if number == 2 and isinstance(value, bytes):
                    yield dict(_items(value))


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in _fields(summary):
        if number != 1 or not isinstance(value, bytes):
            continue
        known = dict(_fields(value))
        tag, scalar = known.get(1), known.get(2)
        if isinstance(tag, bytes) and isinstance(scalar, bytes) and len(scalar) == 4:
            yield tag.decode(errors="replace"), struct.unpack("<f", scalar)[0]


def _items(history: bytes) -> Iterator[tuple[str, Any]]:
    for number, value in _fields(history):
        if number != 1 or not isinstance(value, bytes):
            continue
        names, content = list[str](), b"null"
        for part, text in _fields(value):
            if part in (1, 2) and isinstance(text, bytes):
                names.append(text.decode(errors="replace"))
            elif part == 16 and isinstance(text, bytes):
                content = text
        try:
            yield ".".join(names), json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataError("a value in the .wandb file is not JSON") from error


def _framed(file: BinaryIO) -> Iterator[bytes]:
    while len(head := file.read(12)) == 12:
        (size,) = struct.unpack("<Q", head[:8])
        if size > _LARGEST:
            if file.tell() == len(head):
                raise DataError("not a TensorBoard event file")
            return
        message = file.read(size + 4)
        if len(message) < size + 4:
            return
        yield message[:-4]


def _parts_joined(file: BinaryIO) -> Iterator[bytes]:
    joined = bytearray()
    for kind, part in _parts(file):
        if kind in (_WHOLE, _FIRST):
            joined.clear()
        joined += part
        if len(joined) > _LARGEST:
            raise DataError(f"a message in the .wandb file is larger than {_LARGEST:,} bytes")
        if kind in (_WHOLE, _LAST) and joined:
            yield bytes(joined)


def _parts(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    if not file.read(_HEADER).startswith(b":W&B"):
        raise DataError("not a .wandb file of W&B")
    while True:
        if (rest := _BLOCK - file.tell() % _BLOCK) < _HEADER:
            file.seek(rest, 1)
        head = file.read(_HEADER)
        if len(head) < _HEADER:
            return
        size, kind = struct.unpack("<HB", head[4:])
        part = file.read(size)
        if len(part) < size:
            return
        yield kind, part


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == _VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, place = _varint(message, place)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise DataError("a message in the file is damaged")
        if place + size > len(message):
            raise DataError("a message in the file is damaged")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < _BITS:
        byte = message[place]
        value, place = value | (byte & 127) << shift, place + 1
        if byte < 128:
            return value, place
        shift += 7
    raise DataError("a message in the file is damaged")
