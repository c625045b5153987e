"""Runs every coroutine reward in this process in one event loop.

If a reward keeps a client open (httpx, aiohttp), the client is bound to the loop in which it was
first used. Closing that loop would break the client's connections.
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
"""Number of seconds after which an unresponsive loop counts as blocked."""


class _Shared:
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
        return threading.current_thread() is self._thread

    def forget(self) -> None:
        """Reset the state in a forked child. If the loop's own thread forked, stop the loop."""
        if self._loop is not None and self.is_here():
            self._loop.stop()
        self.__init__()

    def leave_if_blocked(self, loop: asyncio.AbstractEventLoop) -> None:
        """Replace a blocked loop, and abandon its thread, because a thread cannot be killed."""
        turns = threading.Event()
        loop.call_soon_threadsafe(turns.set)
        if not turns.wait(_ANSWERS_S):
            with self._lock:
                self._loop = None if self._loop is loop else self._loop


_shared = _Shared()
# A forked child does not have the thread that runs the loop.
os.register_at_fork(after_in_child=_shared.forget)


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    process = os.getpid()
    while True:  # a coroutine may stop the loop while other coroutines are still waiting
        # asyncio stores these as the coroutine's result, and then raises them here as well
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
        if os.getpid() != process:  # a coroutine forked: the child must not rerun the others
            os._exit(1)


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop of this process, and return its result.

    It can be called from any thread except the loop's own: a coroutine that runs in that loop gets
    a RewardError, because the call would never return.
    """
    if _shared.is_here():
        coroutine.close()
        raise RewardError(
            "a coroutine reward waits for another reward without `await`, which blocks the event "
            "loop that runs both. Call the other reward through asyncio.to_thread"
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
