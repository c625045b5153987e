"""Rewards that wait for something elsewhere: coroutine functions, many at a time.

They share one event loop for as long as their scorer lives, so that a client they keep open stays
usable.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

from gdpo.rewards._scores import Call, Result, checked, raised

DEFAULT_DEADLINE_S = 60.0
"""Seconds that one attempt may take where the reward states no deadline."""


class Judges:
    """An event loop in a thread of its own, and the limits that calls keep.

    Args:
        concurrency: Calls that may wait at the same time.
        retries: Further attempts after an exception or a time-out.
        pause: Seconds before the first of them, twice as many before each next one.
    """

    def __init__(self, *, concurrency: int, retries: int, pause: float) -> None:
        self._retries, self._pause = retries, pause
        self._loop = asyncio.new_event_loop()
        self._limit = asyncio.Semaphore(concurrency)
        thread = threading.Thread(target=self._loop.run_forever, name="gdpo-judges", daemon=True)
        thread.start()
        self.close = weakref.finalize(self, _stop, self._loop, thread)

    def score(self, calls: Sequence[Call], *, done: Callable[[], None]) -> list[Result]:
        """The results of some calls, in their order.

        Args:
            calls: What to ask.
            done: Called after each of them.
        """
        future = asyncio.run_coroutine_threadsafe(self._all(calls, done), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _all(self, calls: Sequence[Call], done: Callable[[], None]) -> list[Result]:
        return await asyncio.gather(*(self._one(call, done) for call in calls))

    async def _one(self, call: Call, done: Callable[[], None]) -> Result:
        result: Result = None
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(self._pause * 2 ** (attempt - 1))
            async with self._limit:
                result, again = await _attempt(call)
            if not again:
                break
        done()
        return result


async def _attempt(call: Call) -> tuple[Result, bool]:
    """What came of it, and whether another attempt may help."""
    seconds = call.reward.deadline or DEFAULT_DEADLINE_S
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            value = await cast("Any", call.reward.function)(call.completion, call.reference)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a reward is users' code: its failure is data
        late = limit.expired()
        return call.timed_out(seconds) if late else raised(call.reward, call.index, error), True
    return checked(call.reward, call.index, value), False


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(timeout=5)
    if not loop.is_running():
        loop.close()
