"""Implements the `gdpo <verb>` command line, with one file per verb.

This module defines the exit codes, and handles Ctrl-C. All heavy imports happen later, so that
Ctrl-C works from the start.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["main"]

FAILED = 1
"""A check failed, a finding met `gdpo analyze --fail-on`, or a training run failed."""

MISTAKE = 2
"""The command line, a recipe or a file is invalid. A message on stderr explains the error."""

CRASHED = 70
"""A failure of gdpo or of the machine. The traceback or the reason is on stderr.

Python's default exit code for a crash is 1, which scripts could not distinguish from FAILED.
"""

CLOSED = 141
"""The reader of the output closed the pipe. Shells report this code for SIGPIPE."""

INTERRUPTED = 130
"""The user pressed Ctrl-C. Shells report this code for SIGINT."""

STOPPED = "stopped. Rerun the same command; add --resume if training had started"

_AGAIN_S = 0.05
"""Delay in seconds before resending a Ctrl-C that was swallowed."""


def rank() -> str:
    """Return the rank of this process in a distributed run."""
    return os.environ.get("RANK", "0")


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
