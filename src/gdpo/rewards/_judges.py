"""Runs coroutine rewards concurrently, because such rewards wait for an external service."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, cast

from gdpo.rewards._event_loop import wait_for
from gdpo.rewards.scores import Call, Result, checked, raised

DEFAULT_DEADLINE_S = 60.0
"""Maximum time of one attempt, in seconds, if the reward has no deadline."""

_GRACE_S = 2.0
"""Maximum time, in seconds, that a cancelled coroutine may take to clean up."""

_LEFT_RUNNING = ", ignored its cancellation, was left running and was not retried"

_BLOCKED = (
    " because a call blocked the event loop. Use awaitable calls instead of `requests` or "
    "`time.sleep`"
)


class Judges:
    """Runs coroutine functions with limits on concurrency, time and retries.

    Args:
        pause: Number of seconds to wait before the first retry. The wait doubles with each retry.
    """

    def __init__(self, *, concurrency: int, retries: int, pause: float) -> None:
        self._concurrency, self._retries, self._pause = concurrency, retries, pause

    def score(self, calls: Sequence[Call], *, done: Callable[[], None]) -> list[Result]:
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
    seconds = call.reward.deadline or DEFAULT_DEADLINE_S
    start = monotonic()
    task = asyncio.create_task(_asked(call))
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        late = task.cancel()  # also needed if the whole batch is abandoned
    if late:
        await asyncio.wait([task], timeout=_GRACE_S)
        return call.timed_out(seconds, "" if task.done() else _LEFT_RUNNING), task.done()
    if monotonic() - start > seconds:  # asyncio checks the limit only between steps
        return call.timed_out(seconds, _BLOCKED), True
    if task.cancelled():  # the coroutine cancelled itself in its last step
        return raised(call.reward, call.index, asyncio.CancelledError()), True
    return task.result()


async def _asked(call: Call) -> tuple[Result, bool]:
    try:
        value = await cast("Any", call.reward.function)(*call.arguments())
        return checked(call.reward, call.index, value), False
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  user code: its failure becomes data
        return raised(call.reward, call.index, error), True
