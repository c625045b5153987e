"""Rewards that wait for something elsewhere: coroutine functions, many at a time."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, cast

from gdpo.rewards._event_loop import wait_for
from gdpo.rewards.scores import Call, Result, checked, raised

DEFAULT_DEADLINE_S = 60.0
"""Seconds that one attempt may take where the reward states no deadline."""

_GRACE_S = 2.0
"""Seconds that a coroutine may take to clean up after it was cancelled."""

_LEFT_RUNNING = ", and went on after it was cancelled: it was left running and not asked again"

_BLOCKED = (
    ", in which something blocked the event loop: nothing in a coroutine may block (`requests`, "
    "`time.sleep`)"
)


class Judges:
    """The limits that calls of coroutine functions keep.

    Args:
        concurrency: Calls of one batch that may wait at the same time.
        retries: Further attempts after an exception or a time-out.
        pause: Seconds before the first of them, twice as many before each next one.
    """

    def __init__(self, *, concurrency: int, retries: int, pause: float) -> None:
        self._concurrency, self._retries, self._pause = concurrency, retries, pause

    def score(self, calls: Sequence[Call], *, done: Callable[[], None]) -> list[Result]:
        """The results of some calls, in their order.

        Args:
            calls: What to ask.
            done: Called after each of them.
        """
        return wait_for(self._all(calls, done))

    async def _all(self, calls: Sequence[Call], done: Callable[[], None]) -> list[Result]:
        limit = asyncio.Semaphore(self._concurrency)
        return await asyncio.gather(*(self._one(call, limit, done) for call in calls))

    async def _one(self, call: Call, limit: asyncio.Semaphore, done: Callable[[], None]) -> Result:
        result: Result = None
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(self._pause * 2 ** (attempt - 1))
            async with limit:
                result, again = await _attempt(call)
            if not again:
                break
        done()
        return result


async def _attempt(call: Call) -> tuple[Result, bool]:
    """Return what came of one attempt, and whether another may help."""
    seconds = call.reward.deadline or DEFAULT_DEADLINE_S
    start = monotonic()
    task = asyncio.create_task(_asked(call))
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        late = task.cancel()  # also where the whole batch is given up
    if late:
        await asyncio.wait([task], timeout=_GRACE_S)
        return call.timed_out(seconds, "" if task.done() else _LEFT_RUNNING), task.done()
    if monotonic() - start > seconds:  # the limit is looked at between steps only
        return call.timed_out(seconds, _BLOCKED), True
    if task.cancelled():  # it cancelled itself on its last step
        return raised(call.reward, call.index, asyncio.CancelledError()), True
    return task.result()


async def _asked(call: Call) -> tuple[Result, bool]:
    try:
        value = await cast("Any", call.reward.function)(call.completion, call.reference)
        return checked(call.reward, call.index, value), False
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a reward is users' code: its failure is data
        return raised(call.reward, call.index, error), True
