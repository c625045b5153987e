"""The command line: `gdpo <verb>`. One file per verb; what the verbs do is elsewhere.

Only what answers a Ctrl-C is here: it is there before anything heavy is imported.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType

from gdpo.cli._codes import INTERRUPTED

__all__ = ["main"]

STOPPED = "stopped. Give the same command again, with --resume where a training had begun"

_AGAIN_S = 0.05
"""Seconds after which a Ctrl-C is sent again."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: What follows `gdpo`. None: what the process was started with.
    """
    with _quick_to_stop():
        from gdpo.cli._app import run

        run(arguments)


@contextmanager
def _quick_to_stop() -> Generator[None]:
    """Leave at a Ctrl-C with one line, also in the middle of an import.

    An exception there is often swallowed or becomes another one, with a traceback of the import
    machinery. Nothing has been begun then, so the process may end at once.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return

    def leave(_number: int, frame: FrameType | None) -> None:
        if not _importing(frame):
            raise KeyboardInterrupt
        if os.environ.get("RANK", "0") == "0":
            os.write(2, f"\ngdpo: {STOPPED}\n".encode())
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    hook, sys.unraisablehook = sys.unraisablehook, _again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)
        # What libraries do at the exit of the process is not to be interrupted either.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Send a Ctrl-C again that arrived where Python and C libraries swallow every error."""
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
