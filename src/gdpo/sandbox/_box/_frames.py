"""Messages over a pipe: four bytes of length, then that many bytes. Every read has a bound."""

import os
import select
from collections.abc import Callable

Left = Callable[[], float]
"""Returns how many seconds are left; 0 or less: none."""


class Closed(Exception):
    """The other end is closed, or closed in the middle of a message."""


class TooLate(Exception):
    """No time is left."""


class TooLong(Exception):
    """The message is longer than allowed."""


def read_frame(fd: int, limit: int, left: Left | None = None) -> bytes:
    """Return the next message.

    Args:
        fd: A pipe's end.
        limit: The longest message allowed, in bytes.
        left: How long to wait for it. None: for ever.

    Raises:
        Closed: The other end is closed.
        TooLate: No time was left before the whole message was there.
        TooLong: The message says that it is longer than the limit.
    """
    size = int.from_bytes(read_exactly(fd, 4, left), "little")
    if size > limit:
        raise TooLong
    return bytes(read_exactly(fd, size, left))


def read_exactly(fd: int, size: int, left: Left | None = None) -> bytearray:
    """Return as many bytes as asked for, in memory that the caller may wipe."""
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
    """Send a message. Where the time is limited, `fd` must be non-blocking.

    Raises:
        Closed: The other end is closed.
        TooLate: No time was left before all was written.
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
    raise TooLate
