"""Sends messages over a pipe. A message begins with its length in four bytes. Reads are bounded."""

import os
import select
from collections.abc import Callable

Left = Callable[[], float]
"""Function that returns the remaining seconds. 0 or less means that the time has run out."""


class Closed(Exception):
    """Raised if the other end was closed, possibly in the middle of a message."""


class FrameTooLate(Exception):
    """Raised if the time has run out."""


class TooLong(Exception):
    """Raised if a message is longer than allowed."""


def read_frame(fd: int, limit: int, left: Left | None = None) -> bytes:
    """Return the next message, or raise Closed, FrameTooLate or TooLong.

    By default, wait forever.
    """
    size = int.from_bytes(read_exactly(fd, 4, left), "little")
    if size > limit:
        raise TooLong
    return bytes(read_exactly(fd, size, left))


def read_exactly(fd: int, size: int, left: Left | None = None) -> bytearray:
    """Read exactly `size` bytes into a buffer, which the caller can overwrite after use."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if left is not None:
            _wait(fd, select.POLLIN, left)
        received = os.readv(fd, [view])
        if not received:
            raise Closed
        view = view[received:]
    return data


def write_frame(fd: int, data: bytes, left: Left | None = None) -> None:
    """Send a message, or raise Closed or FrameTooLate.

    If the time is limited, `fd` is non-blocking.
    """
    view = memoryview(len(data).to_bytes(4, "little") + data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            assert left is not None, "only a pipe whose time is limited is non-blocking"
            _wait(fd, select.POLLOUT, left)
        except BrokenPipeError:
            raise Closed from None


def _wait(fd: int, event: int, left: Left) -> None:
    poll = select.poll()
    poll.register(fd, event)
    while (seconds := left()) > 0:
        if poll.poll(seconds * 1000):
            return
    raise FrameTooLate
