"""Ctrl-C that loses nothing: the first one asks for a stop, the second one stops at once."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class StopRequest:
    """Whether somebody asked the run to stop."""

    requested: bool = False


@contextmanager
def stop_on_signal(request: StopRequest, told: Callable[[], None]) -> Generator[None]:
    """Make a request of the first SIGINT or SIGTERM; a SIGINT after it raises KeyboardInterrupt.

    SIGTERM counts because launchers and cluster managers send it before they kill. Outside the main
    thread signals cannot be caught, so there the request is never set.

    Args:
        request: Set by the first signal.
        told: Called once, then. It runs inside a signal handler, so it must not take a lock.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if request.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not request.requested:
            request.requested = True
            told()

    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
