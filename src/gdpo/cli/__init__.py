"""Implements the `gdpo <verb>` command line, with one file per verb.

This module handles Ctrl-C. All heavy imports happen later, so that Ctrl-C works from the start.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType

from gdpo.errors import INTERRUPTED, STOPPED, rank

__all__ = ["main"]

_AGAIN_S = 0.05
"""Delay in seconds before resending a Ctrl-C that was swallowed."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Command-line arguments after `gdpo`. None: use `sys.argv`.
    """
    with _quick_to_stop():
        from gdpo.cli._app import run

        run(arguments)


@contextmanager
def _quick_to_stop() -> Generator[None]:
    """Exit with a one-line message on Ctrl-C, even during an import.

    Import machinery often swallows a KeyboardInterrupt or replaces it with a different exception
    and a long traceback. No work has started during the imports, so the process exits at once.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return

    def leave(_number: int, frame: FrameType | None) -> None:
        if not _importing(frame):
            raise KeyboardInterrupt
        if rank() == "0":
            os.write(2, f"\ngdpo: {STOPPED}\n".encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    hook, sys.unraisablehook = sys.unraisablehook, _resend
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)
        # Do not interrupt the exit handlers of libraries either.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _resend(unraisable: "sys.UnraisableHookArgs") -> None:
    """Resend a Ctrl-C that arrived where Python or a C library ignores exceptions."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
