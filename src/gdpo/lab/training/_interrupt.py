"""Handles signals that stop training."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from gdpo.errors import rank
from gdpo.lab.recipes.batches import processes

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_SAME_PRESS_S = 1.0
"""Seconds within which a second signal is the same Ctrl-C, which the launcher forwards."""


class Stopped(KeyboardInterrupt):
    """Drops the work in progress after a stop request."""


@dataclass(slots=True)
class StopRequest:
    """Stores whether a stop was requested, and whether the work in progress may be dropped.

    A signal raises `Stopped` if work may be dropped. A bare `except` in a user's reward can swallow
    it, so the request is checked again at the end of each part of the work.
    """

    requested: bool = False
    begun: bool = False
    """Whether the run directory exists. Until then, the previous handler gets the signals."""
    may_give_up: bool = True
    peers: Sequence[int] = ()
    """Ids of the run's other processes on this machine, which receive SIGTERM."""
    announce: Callable[[], object] = lambda: None
    """Shows the stop request, without a lock because a signal handler calls it."""
    since: float = 0.0
    """Monotonic time of the first signal, in seconds."""

    def allow(self) -> None:
        """Let a stop request drop the work in progress."""
        self.may_give_up = True
        self._check()

    def forbid(self) -> None:
        """Make a stop request wait for the work in progress."""
        self._check()
        self.may_give_up = False

    def _check(self) -> None:
        if self.requested and self.may_give_up:
            self.may_give_up = False
            raise Stopped

    def receive(self, number: int, now: float) -> None:
        """Handle a signal. A second SIGINT raises a KeyboardInterrupt.

        The peers get a SIGTERM for either signal.
        """
        if not self.requested:
            self.requested, self.since = True, now
            for peer in self.peers:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(peer, signal.SIGTERM)
            self.announce()
            self._check()
        elif number == signal.SIGINT and now - self.since >= _SAME_PRESS_S:
            raise KeyboardInterrupt


@contextmanager
def stop_on_signal(request: StopRequest) -> Generator[None]:
    """Turn SIGINT and SIGTERM into a stop request inside the `with` block, in the main thread.

    An ignored SIGINT stays ignored. A launcher sends SIGTERM to all processes as soon as one has
    exited, so the main process ignores it after an early end: it still reports the saved step.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request.begun:
            request.receive(number, time.monotonic())
            return
        request.requested = True
        earlier = before[signal.Signals(number)]
        if callable(earlier):
            earlier(number, frame)
        else:
            raise Stopped

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    caught = [n for n in _SIGNALS if n == signal.SIGTERM or before[n] is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, handle)
    done = False
    try:
        yield
        done = not request.requested
    finally:
        after = dict(before)
        if request.begun and not done and processes() > 1 and rank() == "0":
            after[signal.SIGTERM] = signal.SIG_IGN
        for number in caught:
            signal.signal(number, after[number])


_POLL_S = 1.0


_INIT = 1
"""Id of the process that adopts processes whose parent has exited."""


_GONE = "the launcher was killed before the training processes had connected. Start it again"


@contextmanager
def ending_with_the_launcher() -> Generator[None]:
    """Exit this process if the launcher is killed within the block.

    Without the launcher, through which processes connect, torch waits for minutes without signals.
    """
    if processes() == 1:
        yield
        return
    found, launcher = threading.Event(), os.getppid()

    def watch() -> None:
        while not found.wait(_POLL_S):
            parent = os.getppid()
            if parent != launcher or (parent == _INIT and not _responds()):
                os.write(2, f"\ngdpo: {_GONE}\n".encode())
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        found.set()


def _responds() -> bool:
    """Return whether the launcher, which may be process 1, can be reached."""
    address = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
    try:
        socket.create_connection(address, timeout=_POLL_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # it may only be slow
        return True
    return True
