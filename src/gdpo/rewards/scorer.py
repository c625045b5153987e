"""Computes the reward array for a batch of rollouts."""

import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo._shapes import Float
from gdpo._text import visible
from gdpo.errors import ConfigError, DataError, RewardError, check_whole
from gdpo.rewards._workers import Workers
from gdpo.rewards.calls import SHOWN, Call, Failure, Result, run_concurrently
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
    failures: tuple[Failure, ...]
    turns: Mapping[str, Sequence[Sequence[float]]] = field(
        default_factory=dict[str, Sequence[Sequence[float]]]
    )
    """For each reward that scores turns, the scores of each turn of each rollout. NaN as in
    `values`."""

    def failed(self, reward: str) -> int:
        """Return the number of rollouts on which this reward failed."""
        return len({failure.index for failure in self.failures if failure.reward == reward})

    def kinds(self, reward: str) -> Mapping[str, int]:
        """Return the number of rollouts on which this reward failed, by kind of failure."""
        failed = {(f.kind, f.index): f for f in self.failures if f.reward == reward}
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
        self._count, self._memory = workers, worker_memory_gb
        self._workers: Workers | None = None
        self._concurrency, self._retries = concurrency, retries

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
        items = _items_by_kind(chosen.values(), completions, references, num_tokens)
        results = self._results(*_calls(chosen, items))
        values = np.full((len(completions), len(chosen)), np.nan)
        failures: list[Failure] = []
        turns: dict[str, list[list[float]]] = {}
        for column, (k, reward) in enumerate(chosen.items()):
            scores: list[list[float]] = [[] for _ in completions]
            for _, _, rollout, turn, first in items[_kind(reward)]:
                result = results[k, first]
                if isinstance(result, Failure):
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
        if self._workers is not None:
            self._workers.close()
        self._workers = None

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _results(
        self, quick: list[Call], slow: list[list[Call]], waiting: list[Call]
    ) -> dict[tuple[int, int], Result]:
        progress = _Progress(len(quick) + len(slow) + len(waiting), self.progress)
        results: list[Result] = []
        try:
            for call in quick:
                results.append(call.run())
                progress.advance()
            if slow:
                if self._workers is None:
                    self._workers = Workers(self.rewards, count=self._count, memory=self._memory)
                results += chain.from_iterable(self._workers.score(slow, done=progress.advance))
            if waiting:
                results += run_concurrently(
                    waiting,
                    concurrency=self._concurrency,
                    retries=self._retries,
                    done=progress.advance,
                )
        except BaseException:
            self.close()
            raise
        finally:
            progress.finish()
        calls = [*quick, *chain.from_iterable(slow), *waiting]
        return {(c.place, c.index): result for c, result in zip(calls, results, strict=True)}

    def _report(self, failures: Sequence[Failure], completions: Sequence[str | Messages]) -> None:
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
        seen: Counter[tuple[str, str]] = Counter((reward, kind) for reward, kind, _ in failed)
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


_Kind: TypeAlias = tuple[str, str]
"""What a reward receives: its `of` and its `scope`."""


class _Item(NamedTuple):
    """Stores what a reward scores: the completion of a rollout, or one of its turns."""

    value: str | int | Messages
    reference: bytes
    """The reference, pickled."""
    rollout: int
    turn: int | None
    first: int
    """Index of the first identical item."""


def _kind(reward: Reward) -> _Kind:
    return reward.of, reward.scope


def _items_by_kind(
    rewards: Iterable[Reward],
    completions: Sequence[str | Messages],
    references: Sequence[Reference],
    num_tokens: Sequence[int] | None,
) -> dict[_Kind, list[_Item]]:
    for what, given in (("references", references), ("num_tokens", num_tokens)):
        if given is not None and len(given) != len(completions):
            raise ConfigError(
                f"got {len(completions)} completions but {len(given)} {what}. Pass one per rollout"
            )
    kinds = {_kind(reward): reward for reward in rewards}
    counted = next((reward for reward in kinds.values() if reward.of == "tokens"), None)
    if counted is not None and num_tokens is None:
        raise ConfigError(
            f"reward {counted.name!r} needs the number of tokens. Pass num_tokens, one number "
            "per completion"
        )
    pickled: dict[int, bytes] = {}  # rollouts of a prompt often share one object
    for i, reference in enumerate(references):
        if id(reference) not in pickled:
            pickled[id(reference)] = _key(reference, i, "reference")
    keys = [pickled[id(reference)] for reference in references]
    counts = () if num_tokens is None else num_tokens
    return {kind: _items(reward, completions, keys, counts) for kind, reward in kinds.items()}


def _items(
    reward: Reward,
    completions: Sequence[str | Messages],
    references: Sequence[bytes],
    num_tokens: Sequence[int],
) -> list[_Item]:
    seen: dict[Any, int] = {}
    items: list[_Item] = []

    def add(value: str | int | Messages, key: Any, rollout: int, turn: int | None = None) -> None:
        reference = references[rollout]
        first = seen.setdefault((key, reference), len(items))
        items.append(_Item(value, reference, rollout, turn, first))

    for i, completion in enumerate(completions):
        if reward.of == "tokens":
            add(num_tokens[i], num_tokens[i], i)
        elif reward.of == "text":
            text = completion_text(completion, reward.scope)
            add(text, text, i)
        else:
            messages = as_messages(completion)
            ends = [j for j, each in enumerate(messages, 1) if is_from_model(each)]
            for turn, end in enumerate(ends):
                add(messages[:end], _key(messages[:end], i, "completion"), i, turn)
    return items


def _calls(
    rewards: Mapping[int, Reward], items: Mapping[_Kind, Sequence[_Item]]
) -> tuple[list[Call], list[list[Call]], list[Call]]:
    quick: list[Call] = []
    slow: dict[tuple[_Kind, int], list[Call]] = {}
    waiting: list[Call] = []
    for k, reward in rewards.items():
        in_worker = reward.deadline is not None and not reward.asks_elsewhere
        others = waiting if reward.asks_elsewhere else quick
        kind = _kind(reward)
        for i, item in enumerate(items[kind]):
            if item.first == i:
                call = Call(k, reward, item.value, item.reference, i)
                (slow.setdefault((kind, i), []) if in_worker else others).append(call)
    return quick, list(slow.values()), waiting


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
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise DataError(
            f"the {what} of rollout {index} contains a value that cannot be sent to another "
            f"process ({type(error).__name__}: {str(error)[:SHOWN]}). Use only text, numbers, "
            "lists and dicts"
        ) from error


def _start(completion: str | Messages) -> str:
    return completion_text(completion, "all")[:SHOWN]


def _place(failure: Failure) -> str:
    return f"{failure.index}" if failure.turn is None else f"{failure.index}, turn {failure.turn}"


@dataclass(slots=True)
class _Progress:
    """Counts finished scores, and reports progress if the batch takes long."""

    total: int
    on_progress: OnScored
    done: int = 0
    _next: float = field(default_factory=lambda: time.monotonic() + _PATIENCE_S)
    _showing: bool = False

    def advance(self) -> None:
        self.done += 1
        if self.done < self.total and (now := time.monotonic()) > self._next:
            self._showing, self._next = True, now + _SHOW_EVERY_S
            self.on_progress(self.done, self.total)

    def finish(self) -> None:
        if self._showing:
            self.on_progress(self.total, self.total)


class _Bar:
    """Draws a progress bar on standard error, or logs lines if that is not a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._last = -_LOG_EVERY_S

    def __call__(self, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        if not console.is_terminal:
            now = time.monotonic()
            if now - self._last >= _LOG_EVERY_S:
                self._last = now
                logger.info("scored %d of %d completions", done, total)
            return
        if self._bar is None:
            count, rest = MofNCompleteColumn(), TimeRemainingColumn()
            columns = (TextColumn("scoring"), BarColumn(), count, rest)
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done >= total:
            self._bar.stop()
            self._bar = None
