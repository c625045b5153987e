"""Messages over a pipe: four bytes of length, then that many bytes. Every read has a bound."""

import os
import select
import time


class Closed(Exception):
    """The other end is closed, or closed in the middle of a message."""


class TooLate(Exception):
    """The deadline passed."""


class TooLong(Exception):
    """The message is longer than allowed."""


def read_frame(fd: int, limit: int, deadline: float | None = None) -> bytes:
    """The next message.

    Args:
        fd: A pipe's end.
        limit: The longest message allowed, in bytes.
        deadline: When to give up, on the clock of `time.monotonic`. None: never.

    Raises:
        Closed: The other end is closed.
        TooLate: The deadline passed before the whole message was there.
        TooLong: The message says that it is longer than the limit.
    """
    size = int.from_bytes(read_exactly(fd, 4, deadline), "little")
    if size > limit:
        raise TooLong
    return bytes(read_exactly(fd, size, deadline))


def read_exactly(fd: int, size: int, deadline: float | None = None) -> bytearray:
    """As many bytes as asked for, in memory that the caller may wipe."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if deadline is not None:
            _wait(fd, select.POLLIN, deadline)
        received = os.readv(fd, [view])
        if not received:
            raise Closed
        view = view[received:]
    return data


def write_frame(fd: int, data: bytes, deadline: float | None = None) -> None:
    """Send a message. With a deadline, `fd` must be non-blocking.

    Raises:
        Closed: The other end is closed.
        TooLate: The deadline passed before all was written.
    """
    view = memoryview(len(data).to_bytes(4, "little") + data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            assert deadline is not None, "only a pipe with a deadline is non-blocking"
            _wait(fd, select.POLLOUT, deadline)
        except BrokenPipeError:
            raise Closed from None


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise TooLate
