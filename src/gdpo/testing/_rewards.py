"""Checks that a reward satisfies its contract on its examples and on adversarial texts."""

import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from time import monotonic
from types import FrameType
from typing import Any, TypeVar

from gdpo.errors import RewardError
from gdpo.rewards import Reference, Reward
from gdpo.rewards.calls import Failure, Result, score_one
from gdpo.rewards.reward import Messages, as_messages, refuse_no_reward
from gdpo.testing._estimators import search

T = TypeVar("T")


class TooLate(BaseException):
    """Signals that a call took too long. `except Exception` does not catch it."""


def at_most(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of `call`, which must not raise exceptions itself, or raise `TooLate`.

    In the main thread, an alarm interrupts the call, even within a regular expression. In others,
    it continues in the background.
    """
    if threading.current_thread() is not threading.main_thread():
        results: SimpleQueue[T] = SimpleQueue()
        threading.Thread(target=lambda: results.put(call()), daemon=True).start()
        try:
            return results.get(timeout=seconds)
        except Empty:
            raise TooLate from None

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TooLate

    start = monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    others, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        result = call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others:  # restore an alarm that the caller had set
            signal.setitimer(signal.ITIMER_REAL, max(0.001, others - (monotonic() - start)))
    if monotonic() - start > seconds:  # the call caught the alarm, or replaced it
        raise TooLate
    return result


_SHOWN = 300
"""Maximum number of characters of a text to show in an error message."""

_PIECE = re.compile(r"</?\w+>|\w+|\s+|.", re.DOTALL)

_COUNTS = (0, 1, 2, 10**3, 10**4, 10**6, 2**31, 2**63)
"""Token counts for testing rewards that score the number of tokens."""

_ODD = (
    "\x00\x01\x07\x1b[31m",
    "\ud800",  # a lone surrogate, from a truncated byte sequence
    "\u202e\u0301\u200b",
    "٣²Ⅷ",
    "\r\n\x0b\x1c\x85\u2028",
    "9" * 5000,  # beyond Python's limit for parsing integers
    "1e999999999",
    "NaN -Infinity",
    "'\"\\{}[]<>",
)


def check_reward(reward: Reward, *, texts: int = 200, seconds: float = 5.0) -> None:
    """Check that a reward satisfies its contract.

    For each example, the reward must return the known score. For any other text and every example's
    reference, it must return a number in `[low, high]` or `None`, return it again in a second call,
    leave the reference unchanged, and finish in time.

    The texts are long, deeply nested, full of control characters, or built from pieces of the
    examples. If hypothesis is installed, it generates more. Rewards of tokens are tested on token
    counts, and rewards of turns on messages of the model. The reward runs in the current process,
    even if it has a deadline.

    Args:
        reward: A reward with at least one example.
        texts: Number of texts built from the examples, beyond the fixed texts.
        seconds: Maximum time for one text.

    Raises:
        ConfigError: If the object is not a `Reward`.
        RewardError: If the contract is broken.
    """
    refuse_no_reward(reward)
    if not reward.examples:
        raise RewardError(
            f"reward {reward.name!r} has no examples: add at least one Example(completion, "
            "reference, score) with a known score"
        )
    try:
        _check(reward, texts, seconds)
    except TooLate as late:
        raise RewardError(str(late)) from None


def _check(reward: Reward, texts: int, seconds: float) -> None:
    for example in reward.examples:
        got = _score(reward, example.completion, example.reference, seconds)
        if got != example.score:
            raise RewardError(
                f"reward {reward.name!r} returns {got} for an example with the score "
                f"{example.score}: fix the function or the example. "
                f"Completion: {_shown(example.completion)}; "
                f"reference: {_shown(example.reference)}"
            )
    references: list[Reference] = []
    for example in reward.examples:
        if example.reference not in references:
            references.append(example.reference)
    for completion in _COUNTS if reward.of == "tokens" else hostile_texts(reward, texts):
        for reference in references:
            _score(reward, completion, reference, seconds)
    # Hypothesis finds the shortest failing text. Rewards that call a service may cost money.
    if find_spec("hypothesis") and not reward.asks_elsewhere:
        _search(reward, references, texts, seconds)


def hostile_texts(reward: Reward, count: int = 200, seed: int = 0) -> Iterator[str]:
    """Yield texts on which careless rewards fail, and `count` recombined examples."""
    examples = _texts(reward)
    tags = sorted({tag for text in examples for tag in re.findall(r"</?\w+>", text)})
    yield from ("", " \n\t", *_ODD)
    for tag in tags:
        yield from (tag, tag * 10_000, tag + "[" * 100_000, tag + '{"a":' * 100_000)
    yield "x" * 1_000_000
    rng = random.Random(seed)
    pieces = [*_ODD, *(piece for text in examples for piece in _PIECE.findall(text))]
    for _ in range(count):  # an example with a few pieces removed, duplicated or replaced
        parts: list[str] = _PIECE.findall(rng.choice(examples))
        for _ in range(rng.randint(1, 4)):
            place = rng.randint(0, len(parts))
            dropped = rng.choice((0, 0, 1, 1, 3))
            put_in = rng.choice(([], [rng.choice(pieces)], parts[place : place + 3] * 2))
            parts[place : place + dropped] = put_in
        yield "".join(parts)


def _texts(reward: Reward) -> list[str]:
    found: list[str] = []
    for completion in (example.completion for example in reward.examples):
        if isinstance(completion, str):
            found.append(completion)
        elif not isinstance(completion, int):
            found += [str(message.get("content")) for message in completion]
    return found


def _search(reward: Reward, references: list[Reference], texts: int, seconds: float) -> None:
    from hypothesis import strategies as st

    pieces = sorted({piece for text in _texts(reward) for piece in _PIECE.findall(text)})
    characters = st.text(st.characters(exclude_categories=()))
    # An example whose completion is empty has no pieces.
    joined = st.lists(st.sampled_from([*pieces, "\n"]) | characters).map("".join)

    def check(completion: str | int, reference: Reference) -> None:
        _score(reward, completion, reference, seconds)

    drawn = st.integers(0, 2**31) if reward.of == "tokens" else characters | joined
    search(check, drawn, st.sampled_from(references), examples=texts)


def _score(
    reward: Reward, completion: str | int | Messages, reference: Reference, seconds: float
) -> float | None:
    # If a call is too late, hypothesis does not search for a shorter text.
    before = deepcopy(reference)

    def broken(what: str) -> str:
        length = len(completion) if isinstance(completion, str) else None
        size = "" if length is None else f" of {length:,} character{'s' * (length != 1)}"
        return (
            f"reward {reward.name!r} {what}; completion{size}: {_shown(completion)}; "
            f"reference: {_shown(before)}"
        )

    judged = completion
    if reward.of == "turn" and isinstance(completion, str):
        judged = as_messages(completion)

    def call() -> Result:
        return score_one(reward, judged, reference)

    try:
        got, again = at_most(seconds, call), at_most(seconds, call)
    except TooLate:
        raise TooLate(broken(f"takes more than the {seconds:g} s allowed")) from None
    if isinstance(got, Failure):
        raise RewardError(broken(f"failed: {got}")) from got.error
    if got != again:
        raise RewardError(broken(f"returns {got}, and {again} when it is called again"))
    if reference != before:
        raise RewardError(broken("changes its reference"))
    return got


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
