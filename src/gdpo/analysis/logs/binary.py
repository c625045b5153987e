"""Reads TensorBoard's event files and W&B's `.wandb` files without their libraries.

Both hold protobuf messages, of which two or three fields are needed. Nothing in the files is
executed, and checksums are not verified. Reading ends at a damaged length.
"""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gdpo.errors import DataError

_LARGEST = 2**27
"""Maximum size of a message, in bytes. Event files can contain images and videos."""
_BLOCK, _HEADER = 2**15, 7
"""Sizes of a block, of the file's header and of each part's header in a `.wandb` file."""
_WHOLE, _FIRST, _LAST = 1, 2, 4
"""Types of message parts in a `.wandb` file. Other types are in the middle of a message."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
_BITS = 64


def event_rows(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the step and the scalars of each event in a TensorBoard event file.

    An incomplete file is read as far as possible: its run may still be writing it.
    """
    with path.open("rb") as file:
        for message in _framed(file):
            numbers, texts = _fields(message)
            values = (_fields(v)[1] for summary in texts[5] for v in _fields(summary)[1][1])
            scalars = {
                value[1][-1].decode(errors="replace"): float(struct.unpack("<f", value[2][-1])[0])
                for value in values
                if value[1] and value[2] and len(value[2][-1]) == 4
            }
            if scalars:
                yield numbers.get(2, 0), scalars


def wandb_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the values of each call of `wandb.log`, with `_step`, in a `.wandb` file.

    An incomplete file is read as far as possible.
    """
    with path.open("rb") as file:
        for message in _parts_joined(file):
            for history in _fields(message)[1][2]:
                row: dict[str, Any] = {}
                for item in _fields(history)[1][1]:
                    texts = _fields(item)[1]
                    key = ".".join(name.decode(errors="replace") for name in texts[1] + texts[2])
                    try:
                        row[key] = json.loads(texts[16][-1] if texts[16] else b"null")
                    except (ValueError, RecursionError) as error:
                        raise DataError("a value in the .wandb file is not JSON") from error
                yield row


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
        raise DataError("not a W&B .wandb file")
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


def _fields(message: bytes) -> tuple[dict[int, int], defaultdict[int, list[bytes]]]:
    """Return the integers and the bytes of a message, by field number."""
    numbers, texts, place = dict[int, int](), defaultdict[int, list[bytes]](list), 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == _VARINT:
            numbers[key >> 3], place = _varint(message, place)
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire, len(message))
        if wire == _BYTES:
            size, place = _varint(message, place)
        if place + size > len(message):  # of an unknown type, too
            raise DataError("a message in the file is damaged")
        texts[key >> 3].append(message[place : place + size])
        place += size
    return numbers, texts


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < _BITS:
        byte = message[place]
        value, place = value | (byte & 127) << shift, place + 1
        if byte < 128:
            return value, place
        shift += 7
    raise DataError("a message in the file is damaged")
