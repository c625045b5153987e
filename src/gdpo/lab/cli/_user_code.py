"""Reports user code that ends the process."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

from gdpo._text import one_line
from gdpo.errors import MISTAKE

_leave = os._exit


@contextmanager
def exits_reported() -> Generator[None]:
    """Make `os._exit` print a message and exit with an error, so that a CI step fails."""
    here = os.getpid()

    def reported(code: int) -> NoReturn:
        if os.getpid() != here:  # a child process of the user's code
            _leave(code)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        message = (
            f"os._exit({code}) was called before the command had finished "
            f"({frame.f_code.co_filename}, line {frame.f_lineno}): remove the call"
        )
        # Not Python's stream, which may be in use by another thread.
        os.write(2, f"gdpo: {one_line(message)}\n".encode())
        _leave(MISTAKE)

    os._exit = reported
    try:
        yield
    finally:
        os._exit = _leave
