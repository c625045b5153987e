"""The event loop in which every coroutine reward of this process runs.

One for all, in a thread of its own: a client that a reward keeps open (httpx, aiohttp) belongs to
the loop that it was first used in, and its connections break when that one is closed.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from gdpo.errors import RewardError

T = TypeVar("T")

_ANSWERS_S = 1.0
"""Seconds after which a loop that does not even wake up is taken to be blocked."""


class _Shared:
    """The loop, made when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_turn, args=[self._loop], name="gdpo-coroutines", daemon=True
                )
                self._thread.start()
            return self._loop

    def is_here(self) -> bool:
        """Whether this thread is the loop's."""
        return threading.current_thread() is self._thread

    def forget(self) -> None:
        """Begin anew in a child process, where a loop that was forked from within ends."""
        if self._loop is not None and self.is_here():
            self._loop.stop()
        self.__init__()

    def leave_if_blocked(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take another loop from now on, unless this one still turns: no thread can be ended."""
        turns = threading.Event()
        loop.call_soon_threadsafe(turns.set)
        if not turns.wait(_ANSWERS_S):
            with self._lock:
                self._loop = None if self._loop is loop else self._loop


_shared = _Shared()
# The thread that runs the loop is not in a process that was forked.
os.register_at_fork(after_in_child=_shared.forget)


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    process = os.getpid()
    while True:  # a coroutine may stop the loop, in which others wait
        # asyncio passes on what a coroutine raises, and has noted it as its result
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
        if os.getpid() != process:  # a coroutine forked: its child must not run the others too
            os._exit(1)


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """What comes of a coroutine, in the loop of this process; from any thread but the loop's own.

    Raises:
        RewardError: It was called by a coroutine that runs in that loop, and would wait forever.
    """
    if _shared.is_here():
        coroutine.close()
        raise RewardError(
            "a coroutine reward waits for another reward without `await`, which blocks the event "
            "loop that both run in: use asyncio.to_thread"
        )
    loop = _shared.loop()
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        if not future.done():  # an interrupt
            future.cancel()
            _shared.leave_if_blocked(loop)
        raise
