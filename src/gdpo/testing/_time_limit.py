"""Ends a call that takes too long, in this process."""

import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class TooLate(BaseException):
    """A call took too long. No `Exception`: the code that is ended shall not catch it."""


def at_most(seconds: float, call: Callable[[], T]) -> T:
    """What a call returns, which raises nothing of its own.

    In the main thread an alarm ends it, also within a regular expression. In another one it is left
    behind: it cannot be ended there.

    Args:
        seconds: The time that it may take.
        call: What to call.

    Raises:
        TooLate: It takes longer.
    """
    if threading.current_thread() is not threading.main_thread():
        return _left_behind(seconds, call)
    start = monotonic()
    handler = signal.signal(signal.SIGALRM, _ring)
    others, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        result = call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others:  # somebody else's alarm, which goes on
            signal.setitimer(signal.ITIMER_REAL, max(0.001, others - (monotonic() - start)))
    if monotonic() - start > seconds:  # it caught the alarm, or has one of its own
        raise TooLate
    return result


def _ring(_number: int, _frame: FrameType | None) -> None:
    raise TooLate


def _left_behind(seconds: float, call: Callable[[], T]) -> T:
    results: SimpleQueue[T] = SimpleQueue()
    threading.Thread(target=lambda: results.put(call()), daemon=True).start()
    try:
        return results.get(timeout=seconds)
    except Empty:
        raise TooLate from None
