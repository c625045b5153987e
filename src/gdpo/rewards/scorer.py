"""Computes the reward array for a batch of rollouts."""

import logging
import pickle
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo._shapes import Float
from gdpo._text import visible
from gdpo.errors import ConfigError, DataError, RewardError, boundary, check_whole
from gdpo.rewards._pool import RewardPool
from gdpo.rewards.calls import SHOWN, RewardCall, RewardFailure
from gdpo.rewards.reward import Messages, Reference, Reward, as_messages, refuse_no_reward
from gdpo.rewards.text import completion_text, is_from_model

logger = logging.getLogger(__name__)

OnScored = Callable[[int, int], None]
"""Callback that receives the number of finished scores and the total. In the last call, the two are
equal."""

_PATIENCE_S = 2.0
"""Number of seconds before progress is first shown."""

_SHOW_EVERY_S = 0.1
"""Minimum number of seconds between updates. A fast reward runs thousands of times in this
interval."""

_LOG_EVERY_S = 30.0

OnError = Literal["missing", "worst", "raise"]
"""How to handle a failure: store NaN, store the lowest value of the reward, or raise an
exception."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Stores the reward array of a batch and the failures."""

    values: Float[np.ndarray, "rollout reward"]
    """The scores in float64. NaN means that the reward does not apply or failed. For a reward that
    scores turns, the total over the turns."""
    failures: tuple[RewardFailure, ...]
    turns: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """For each reward that scores turns, the scores of each turn of each rollout. NaN as in
    `values`."""

    def failed(self, reward: str) -> int:
        """Return the number of rollouts on which this reward failed."""
        return len({failure.index for failure in self.failures if failure.reward == reward})

    def kinds(self, reward: str) -> Mapping[str, int]:
        """Return the number of rollouts on which this reward failed, by kind of failure."""
        failed = {(f.kind, f.index) for f in self.failures if f.reward == reward}
        return Counter(kind for kind, _ in failed)


class Scorer:
    """Scores batches of completions with several rewards, and continues if a reward fails.

    Rewards with a deadline run in worker processes (see `Reward`): those of one completion in the
    same one, so that they can share results. Coroutine functions run concurrently in one event loop
    of this process. Identical completions (or turns with identical messages before them) with the
    same reference are scored once.

    A reward fails on a rollout if it raises, returns something other than a number in its range or
    `None`, exceeds its deadline or terminates its process. Only a `KeyboardInterrupt` aborts the
    batch. The first failure of each kind is logged with the completion that caused it.

    Use the scorer in a `with` statement, or call `close`. The worker processes exit with this one.

    Args:
        rewards: Rewards with distinct names.
        workers: Number of processes for rewards with a deadline. They start on first use.
        on_error: What a failure does. `missing` stores NaN, which estimators leave out of every
            statistic. `worst` stores the reward's lowest value, for failures that only a bad
            completion can cause. `raise` raises a RewardError.
        concurrency: Maximum number of coroutine calls in flight.
        retries: Maximum number of retries of a coroutine call after an exception or a timeout,
            after 1, 2, 4, ... seconds.
        worker_memory_gb: Maximum data memory of a worker process, in GiB. None: no limit.
        progress: Function that is called with (done, total) if a batch takes over two seconds.
            Default: a progress bar on the terminal, or lines in the log.

    Raises:
        ConfigError: If a reward is not a `Reward`, two rewards share a name, or an argument is out
            of range.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        workers: int = 2,
        on_error: OnError = "missing",
        concurrency: int = 16,
        retries: int = 2,
        worker_memory_gb: float | int | None = 8,
        progress: OnScored | None = None,
    ) -> None:
        if not isinstance(rewards, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"rewards must be a list, got {type(rewards).__name__}. Put a single reward in "
                "brackets"
            )
        for reward in rewards:
            refuse_no_reward(reward)
        check_distinct([reward.name for reward in rewards])
        refuse_unknown([on_error], get_args(OnError), "unknown on_error")
        check_whole("workers", workers, least=1)
        check_whole("concurrency", concurrency, least=1)
        check_whole("retries", retries, least=0)
        memory: Any = worker_memory_gb
        number = memory if isinstance(memory, int | float) and not isinstance(memory, bool) else 0
        if memory is not None and not number > 0:
            raise ConfigError(f"worker_memory_gb must be a number above 0, or None, got {memory!r}")
        self.rewards = tuple(rewards)
        self.progress: OnScored = progress or _Bar()
        self._on_error: OnError = on_error
        self._pool: RewardPool | None = None
        self._new_pool = partial(
            RewardPool,
            self.rewards,
            workers=workers,
            memory=worker_memory_gb,
            concurrency=concurrency,
            retries=retries,
        )

    @classmethod
    def from_options(cls, rewards: Sequence[Reward], options: Mapping[str, Any]) -> "Scorer":
        """Return a scorer with the options in a mapping, as in recipes and trainer arguments."""
        allowed = set(signature(cls).parameters) - {"rewards", "progress"}
        refuse_unknown(options, allowed, "unknown option")
        return cls(rewards, **options)

    def score(
        self,
        completions: Sequence[str | Messages],
        references: Sequence[Reference],
        *,
        num_tokens: Sequence[int] | None = None,
        only: Sequence[Reward] | None = None,
    ) -> Scores:
        """Score every completion with every reward.

        Args:
            completions: The completion of each rollout: the model's text, or the messages after the
                prompt (`gdpo.rewards.text`). Each message of the model is a turn; a text is one
                turn.
            references: The reference of each completion.
            num_tokens: Number of tokens in each completion, including the end-of-sequence token,
                for rewards that score it.
            only: The rewards to compute, in the scorer's order. Default: all rewards.

        Returns:
            The array `[rollout, reward]`, in the order of the arguments, and the failures.

        Raises:
            ConfigError: If the sequences differ in length, or `num_tokens` is missing.
            RewardError: If a reward fails and `on_error` is `raise`, or a worker does not start.
        """
        chosen = {k: r for k, r in enumerate(self.rewards) if only is None or r in only}
        calls = _Calls(completions, references, num_tokens)
        cells = {k: calls.add(k, reward) for k, reward in chosen.items()}
        self._run(calls)
        values = np.full((len(completions), len(chosen)), np.nan)
        failures: list[RewardFailure] = []
        turns: dict[str, list[list[float]]] = {}
        for column, (k, reward) in enumerate(chosen.items()):
            scores: list[list[float]] = [[] for _ in completions]
            for rollout, turn, call in cells[k]:
                result = call.result
                if isinstance(result, RewardFailure):
                    # The traceback of an error would keep the reward's local objects alive.
                    error = result.error if self._on_error == "raise" else None
                    failures.append(replace(result, index=rollout, turn=turn, error=error))
                    result = reward.low if self._on_error == "worst" else None
                scores[rollout].append(np.nan if result is None else result)
            if reward.of == "turn":
                turns[reward.name] = scores
                values[:, column] = [sum(each) if each else np.nan for each in scores]
            else:
                values[:, column] = [value for (value,) in scores]
        self._report(failures, completions)
        return Scores(values, tuple(failures), turns)

    def close(self) -> None:
        """Stop the worker processes. The next batch that needs them starts new ones."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, calls: "_Calls") -> None:
        """Run quick rewards in this thread, and the others in the pool."""
        total = len(calls.quick) + len(calls.judged) + len(calls.groups)
        progress = _Progress(total, self.progress)
        try:
            for call in calls.quick:
                call.result = call.run()
                progress.advance()
            if calls.judged or calls.groups:
                self._pool = self._pool or self._new_pool()
                self._pool.run(calls.judged, list(calls.groups.values()), done=progress.advance)
        except BaseException:
            self.close()
            raise
        finally:
            progress.finish()

    def _report(
        self, failures: Sequence[RewardFailure], completions: Sequence[str | Messages]
    ) -> None:
        if failures and self._on_error == "raise":
            first = failures[0]
            raise RewardError(
                f"reward {first.reward!r} failed, and on_error is 'raise' ({len(failures)} failed "
                f"scores in this batch). First failure: {first}; completion {_place(first)}: "
                f"{_start(completions[first.index])!r}. Fix the reward, or set on_error to "
                "'missing' or 'worst'"
            ) from first.error
        became = "the reward's lowest value" if self._on_error == "worst" else "missing"
        failed = {(f.reward, f.kind, f.index) for f in failures}
        seen = Counter((reward, kind) for reward, kind, _ in failed)
        for failure in failures:
            count = seen.pop((failure.reward, failure.kind), 0)
            if count:  # the first of its kind
                logger.warning(
                    "reward %r failed on %d of %d rollouts (%s). These scores count as %s. "
                    "First completion%s: %r",
                    failure.reward,
                    count,
                    len(completions),
                    visible(str(failure)),
                    became,
                    "" if failure.turn is None else f" ({_place(failure)})",
                    _start(completions[failure.index]),
                )


class _Item(NamedTuple):
    """Stores what a reward scores: the completion of a rollout, or one of its turns."""

    value: str | int | Messages
    reference: bytes
    """The reference, pickled."""
    number: int
    """Equal for items that get the same score."""
    rollout: int
    turn: int | None


class _Calls:
    """Stores the calls of a batch. Items that get the same score share a call."""

    def __init__(
        self,
        completions: Sequence[str | Messages],
        references: Sequence[Reference],
        num_tokens: Sequence[int] | None,
    ) -> None:
        for what, given in (("references", references), ("num_tokens", num_tokens)):
            if given is not None and len(given) != len(completions):
                raise ConfigError(
                    f"got {len(completions)} completions but {len(given)} {what}. Pass one per "
                    "rollout"
                )
        pickled: dict[int, bytes] = {}  # rollouts of a prompt often share one object
        for i, reference in enumerate(references):
            if id(reference) not in pickled:
                pickled[id(reference)] = _key(reference, i, "reference")
        self._references = [pickled[id(reference)] for reference in references]
        self._completions, self._num_tokens = completions, num_tokens
        self._items: dict[Hashable, list[_Item]] = {}
        self.quick: list[RewardCall] = []
        self.judged: list[RewardCall] = []
        self.groups: defaultdict[Hashable, list[RewardCall]] = defaultdict(list)
        """Calls for a worker process. Those of an item run in the same process."""

    def add(self, k: int, reward: Reward) -> list[tuple[int, int | None, RewardCall]]:
        """Add the calls of a reward. Return rollout, turn and call of each of its scores."""
        kind = reward.of, reward.scope
        if kind not in self._items:
            self._items[kind] = list(self._items_of(reward))
        calls: dict[int, RewardCall] = {}
        for item in self._items[kind]:
            if item.number not in calls:
                calls[item.number] = RewardCall(k, reward, item.value, item.reference)
        if reward.asks_elsewhere:
            self.judged += calls.values()
        elif reward.deadline is None:
            self.quick += calls.values()
        else:
            for number, call in calls.items():
                self.groups[kind, number].append(call)
        return [(item.rollout, item.turn, calls[item.number]) for item in self._items[kind]]

    def _items_of(self, reward: Reward) -> Iterator[_Item]:
        counts = self._num_tokens or ()
        if reward.of == "tokens" and self._num_tokens is None:
            raise ConfigError(
                f"reward {reward.name!r} needs the number of tokens. Pass num_tokens, one number "
                "per completion"
            )
        numbers: dict[Hashable, int] = {}
        for i, (completion, reference) in enumerate(
            zip(self._completions, self._references, strict=True)
        ):
            if reward.of == "turn":
                messages = as_messages(completion)
                ends = [j for j, each in enumerate(messages, 1) if is_from_model(each)]
                for turn, end in enumerate(ends):
                    key = _key(messages[:end], i, "completion"), reference
                    number = numbers.setdefault(key, len(numbers))
                    yield _Item(messages[:end], reference, number, i, turn)
            else:
                is_text = reward.of == "text"
                value = completion_text(completion, reward.scope) if is_text else counts[i]
                number = numbers.setdefault((value, reference), len(numbers))
                yield _Item(value, reference, number, i, None)


def score(
    rewards: Sequence[Reward],
    completions: Sequence[str | Messages],
    references: Sequence[Reference],
    *,
    num_tokens: Sequence[int] | None = None,
    on_error: OnError = "missing",
) -> Scores:
    """Score one batch with a temporary `Scorer`.

    To score many batches, create one `Scorer`, which reuses its worker processes. The errors are
    those of `Scorer` and its `score`.
    """
    with Scorer(rewards, on_error=on_error) as scorer:
        return scorer.score(completions, references, num_tokens=num_tokens)


def check_distinct(names: Sequence[str]) -> None:
    """Raise a ConfigError if two rewards share a name."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ConfigError(
            f"reward names must be unique, because weights, metrics and files use them; repeated: "
            f"{', '.join(repeated)}. Rename the duplicates"
        )


def _key(value: Any, index: int, what: str) -> bytes:
    with boundary(
        DataError,
        lambda error: (
            f"the {what} of rollout {index} contains a value that cannot be sent to another "
            f"process ({type(error).__name__}: {str(error)[:SHOWN]}). Use only text, numbers, "
            "lists and dicts"
        ),
    ):
        return pickle.dumps(value)


def _start(completion: str | Messages) -> str:
    return completion_text(completion, "all")[:SHOWN]


def _place(failure: RewardFailure) -> str:
    return f"{failure.index}" if failure.turn is None else f"{failure.index}, turn {failure.turn}"


@dataclass(slots=True)
class _Progress:
    """Counts finished scores, and reports progress if the batch takes long."""

    total: int
    on_progress: OnScored
    done: int = 0
    _next: float = field(default_factory=lambda: time.monotonic() + _PATIENCE_S)
    _showing: bool = False
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def advance(self) -> None:
        with self._counting:
            self.done += 1
            if self.done < self.total and (now := time.monotonic()) > self._next:
                self._showing, self._next = True, now + _SHOW_EVERY_S
                self.on_progress(self.done, self.total)

    def finish(self) -> None:
        if self._showing:
            self.on_progress(self.total, self.total)


class _Bar:
    """Draws a progress bar on standard error, or logs lines if that is not a terminal."""

    _bar: Any = None
    _last = -_LOG_EVERY_S

    def __call__(self, done: int, total: int) -> None:
        import rich.progress as shown
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_terminal:
            now = time.monotonic()
            if now - self._last >= _LOG_EVERY_S:
                self._last = now
                logger.info("scored %d of %d completions", done, total)
            return
        if self._bar is None:
            count, rest = shown.MofNCompleteColumn(), shown.TimeRemainingColumn()
            columns = (shown.TextColumn("scoring"), shown.BarColumn(), count, rest)
            self._bar = shown.Progress(*columns, console=console, transient=True)
            self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done >= total:
            self._bar.stop()
            self._bar = None
