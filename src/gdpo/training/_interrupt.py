"""Signals that ask a training to stop, and where it may be given up for them."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from gdpo.recipes.batches import processes

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_SAME_PRESS_S = 1.0
"""A launcher passes on the Ctrl-C that the terminal has sent already: what follows sooner is the
same one."""


class Stopped(KeyboardInterrupt):
    """What runs was given up because a stop was asked for."""


@dataclass(slots=True)
class StopRequest:
    """Whether a stop was asked for, and whether what runs now may be given up for it.

    A signal raises `Stopped` where it may. An exception out of a signal can get lost (in a
    `__del__`, or in a bare `except` of a user's reward), so the request is asked for again wherever
    a part of the work ends.
    """

    requested: bool = False
    begun: bool = False
    """Whether there is a run directory; before, a signal is left to the handler that was there."""
    may_give_up: bool = True
    peers: Sequence[int] = field(default=())
    """Other processes of this training on this machine, which are told."""
    told: Callable[[], None] = lambda: None
    """Says that the request was heard. It runs inside a signal handler, so it takes no lock."""
    since: float = 0.0
    """When the first signal came, in seconds of the monotonic clock."""

    def allow(self) -> None:
        """From here on what runs may be given up."""
        self.may_give_up = True
        self._check()

    def forbid(self) -> None:
        """From here on what runs is finished first."""
        self._check()
        self.may_give_up = False

    def _check(self) -> None:
        if self.requested and self.may_give_up:
            self.may_give_up = False
            raise Stopped

    def heard(self, number: int, now: float) -> None:
        """Take in a signal.

        Args:
            number: SIGINT or SIGTERM.
            now: Seconds of the monotonic clock.

        Raises:
            Stopped: What runs may be given up.
            KeyboardInterrupt: It is a second SIGINT.
        """
        if not self.requested:
            self.requested, self.since = True, now
            for peer in self.peers:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(peer, signal.SIGTERM)
            self.told()
            self._check()
        elif number == signal.SIGINT and now - self.since >= _SAME_PRESS_S:
            raise KeyboardInterrupt


@contextmanager
def stop_on_signal(request: StopRequest) -> Generator[None]:
    """Make a request of SIGINT and SIGTERM while the context lasts.

    SIGTERM counts because launchers and cluster managers send it before they kill. A signal that is
    ignored stays ignored, but SIGTERM. Outside the main thread signals cannot be caught, so there
    the request is never set.

    A launcher sends SIGTERM to all processes as soon as one has ended. So where one of several
    processes ends before its last step, SIGTERM stays ignored after the context: the main process
    has yet to say what it saved, and the launcher kills what does not end.

    Args:
        request: Hears the signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request.begun:
            request.heard(number, time.monotonic())
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
        if request.begun and not done and processes() > 1:
            after[signal.SIGTERM] = signal.SIG_IGN
        for number in caught:
            signal.signal(number, after[number])


_POLL_S = 1.0


_INIT = 1
"""The process that takes over those whose parent has died."""


_GONE = "the launcher of this training was killed before its processes had found each other"


@contextmanager
def ending_with_the_launcher() -> Generator[None]:
    """End this process where the launcher is killed within the block.

    Processes that train together find each other through their launcher. Where it is dead torch
    waits for it for minutes, and hears no signal meanwhile.
    """
    if processes() == 1:
        yield
        return
    found, launcher = threading.Event(), os.getppid()

    def watch() -> None:
        while not found.wait(_POLL_S):
            parent = os.getppid()
            if parent != launcher or (parent == _INIT and not _answers()):
                os.write(2, f"\ngdpo: {_GONE}\n".encode())
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        found.set()


def _answers() -> bool:
    """Whether the launcher can be reached; a launcher may be process 1 of a container."""
    address = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
    try:
        socket.create_connection(address, timeout=_POLL_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # it may only be slow
        return True
    return True
