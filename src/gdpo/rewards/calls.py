"""Runs one reward on one rollout, and coroutine rewards concurrently. A failure is a result.

Every coroutine reward in this process runs in one event loop, because a client that a reward keeps
open (httpx, aiohttp) is bound to the loop in which it was first used.
"""

import asyncio
import inspect
import os
import pickle
import sysconfig
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from traceback import walk_tb
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gdpo.errors import RewardError
from gdpo.rewards.reward import Messages, Reference, Reward

T = TypeVar("T")

SHOWN = 200
"""Maximum number of characters of a completion or exception that a message shows."""

_DEADLINE_S = 60.0
"""Maximum time of one attempt of a coroutine call, in seconds, if the reward has no deadline."""

_PAUSE_S = 1.0
"""Number of seconds to wait before the first retry. The wait doubles with each retry."""

_GRACE_S = 2.0
"""Maximum time, in seconds, that a cancelled coroutine may take to clean up."""

_ANSWERS_S = 1.0
"""Number of seconds after which an unresponsive event loop counts as blocked."""

_LEFT_RUNNING = ", ignored its cancellation, was left running and was not retried"

_BLOCKED = (
    " because a call blocked the event loop. Use awaitable calls instead of `requests` or "
    "`time.sleep`"
)


@dataclass(frozen=True, slots=True)
class RewardFailure:
    """Stores how a reward broke its contract on one rollout."""

    reward: str
    kind: str
    """`raised <Exception>`, `not a number`, `out of range`, `timed out`, or `worker died`."""
    message: str
    error: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception, if the reward raised it in this process and `on_error` is `raise`."""
    index: int = 0
    """Index of the rollout in the batch."""
    turn: int | None = None
    """Index of the turn. None: the reward does not score turns."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


Result: TypeAlias = float | RewardFailure | None
"""Result of one reward on one rollout. None: the reward does not apply."""


@dataclass(slots=True)
class RewardCall:
    """Stores one reward to run on one completion or turn, and its result."""

    place: int
    """Index of the reward in the scorer."""
    reward: Reward
    completion: str | int | Messages
    """The text, the number of tokens, or the messages up to a turn, as `reward.of` says."""
    reference: bytes
    """The reference, pickled."""
    result: Result = None
    """Set when the call has run."""

    def arguments(self) -> tuple[str | int | Messages, Reference]:
        """Return copies of what the reward receives, which the reward may change."""
        given = self.completion
        own = given if isinstance(given, str | int) else pickle.loads(pickle.dumps(given))
        return own, pickle.loads(self.reference)

    def run(self) -> Result:
        """Return the result in this process. A reference that cannot be copied is a failure."""
        try:
            given, reference = self.arguments()
        except Exception as error:  # noqa: BLE001  objects of users may define how they are copied
            return raised(self.reward, error)
        return score_one(self.reward, given, reference)

    def timed_out(self, seconds: float, why: str) -> RewardFailure:
        """Return the failure of a call that took longer than `seconds`.

        `why` is the end of the message, with its leading space or comma.
        """
        return RewardFailure(self.reward.name, "timed out", f"took more than {seconds:g} s{why}")


def score_one(reward: Reward, completion: str | int | Messages, reference: Reference) -> Result:
    """Return the reward's value, `None` if the reward does not apply, or the failure.

    If the reward forks, the child exits when the reward returns in it. `completion` is what
    `reward.of` says.
    """
    process = os.getpid()
    try:
        value = reward.function(completion, reference)
        if inspect.isawaitable(value):
            value = wait_for(_awaited(value))
        return checked(reward, value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  user code: its failure becomes data
        return raised(reward, error)
    finally:
        if os.getpid() != process:
            os._exit(1)


async def _awaited(value: Any) -> Any:
    return await value


def checked(reward: Reward, value: object) -> Result:
    """Return a reward's value as a float in the reward's range, `None`, or a failure."""
    if value is None:
        return None
    number = as_number(value)
    if number is None:
        message = f"returned {type(value).__name__}; allowed: a number, or None"
        return RewardFailure(reward.name, "not a number", message)
    if not reward.low <= number <= reward.high:
        kind = "not a number" if np.isnan(number) else "out of range"
        allowed = f"allowed: [{reward.low}, {reward.high}], or None if it does not apply"
        return RewardFailure(reward.name, kind, f"returned {number}; {allowed}")
    return number


def raised(reward: Reward, error: BaseException) -> RewardFailure:
    """Return the failure of a reward that raised, with the file and line."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  str() runs user code, which may also raise
        text = ""
    place = _place(error)
    message = text[: max(0, SHOWN - len(place))] + place
    return RewardFailure(reward.name, f"raised {type(error).__name__}", message, error)


_LIBRARIES = tuple(
    sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OURS = str(Path(__file__).parent) + "/"


def _place(error: BaseException) -> str:
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith((*_LIBRARIES, _OURS, "<frozen"))]
    for file, line in (own or places)[-1:]:
        return f" ({Path(file).name}:{line})"
    return ""


def as_number(value: Any) -> float | None:
    """Return a score as a float. None: it is no number, such as a text."""
    # float() accepts some strings, which are not valid scores. For an array or a tensor, float()
    # runs library code, which may raise any exception.
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001  see above
        return None


async def ask(call: RewardCall, *, limit: asyncio.Semaphore, retries: int) -> Result:
    """Return the result of a call of a coroutine function.

    A call that fails or takes too long is retried at most `retries` times. `limit` is held while it
    runs, and not between attempts.
    """
    result: Result = None
    for attempt in range(retries + 1):
        if attempt:
            await asyncio.sleep(_PAUSE_S * 2 ** (attempt - 1))
        async with limit:
            result, again = await _attempt(call)
        if not again:
            break
    return result


async def _attempt(call: RewardCall) -> tuple[Result, bool]:
    seconds = call.reward.deadline or _DEADLINE_S
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
        return raised(call.reward, asyncio.CancelledError()), True
    return task.result()


async def _asked(call: RewardCall) -> tuple[Result, bool]:
    try:
        function: Any = call.reward.function
        value = await function(*call.arguments())
        return checked(call.reward, value), False
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  user code: its failure becomes data
        return raised(call.reward, error), True


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
        """Reset the state in a forked child, and stop the loop if its own thread forked."""
        if self._loop is not None and self.is_here():
            self._loop.stop()
        self.__init__()

    def leave_if_blocked(self, loop: asyncio.AbstractEventLoop) -> None:
        """Replace a blocked loop and abandon its thread, which cannot be killed."""
        turns = threading.Event()
        loop.call_soon_threadsafe(turns.set)
        if not turns.wait(_ANSWERS_S):
            with self._lock:
                if self._loop is loop:
                    self._loop = None


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
