"""Reports code of the user that ends the process, or that does not return."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from threading import Timer
from typing import Any, NoReturn

from gdpo._text import one_line
from gdpo.cli._codes import MISTAKE

_PATIENCE_S = 5.0
"""Number of seconds after which a message says what the command waits for."""

_LIMIT_S = 600.0
"""Number of seconds after which a call that does not return ends the command."""

_leave = os._exit


@contextmanager
def exits_reported() -> Generator[None]:
    """Let `os._exit` print a message and exit with an error, so that a CI step does not pass."""
    here = os.getpid()

    def reported(code: int) -> NoReturn:
        if os.getpid() != here:  # a child process of the user's code
            _leave(code)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        _say(
            f"os._exit({code}) was called before the command had finished "
            f"({frame.f_code.co_filename}, line {frame.f_lineno}): remove the call"
        )
        _leave(MISTAKE)

    os._exit = reported
    try:
        yield
    finally:
        os._exit = _leave


@contextmanager
def patient(name: str) -> Generator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Print what the command waits for after some seconds.

    Args:
        name: What the command waits for, as shown in messages.

    Yields:
        A function that limits the time of each call of another function.
    """

    def too_long() -> None:
        _say(f"{name} did not return within {_LIMIT_S:g} s: make it faster, or end its loop")
        _leave(MISTAKE)

    def limited(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with _timer(_LIMIT_S, too_long):
                return function(*arguments, **options)

        return call

    def waiting() -> None:
        _say(f"waiting for {name}. Stops if a single call takes {_LIMIT_S:g} s")

    with _timer(_PATIENCE_S, waiting):
        yield limited


@contextmanager
def _timer(seconds: float, action: Callable[[], None]) -> Generator[None]:
    timer = Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(message: str) -> None:
    """Write to file descriptor 2, because Python's stream may be in use by another thread."""
    os.write(2, f"gdpo: {one_line(message)}\n".encode())
