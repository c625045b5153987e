"""Computes the reward array for a batch of rollouts.

By default, if a reward fails on a rollout, only the entry for that reward and rollout is missing.
"""

import logging
import pickle
from collections import Counter as Counts
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, Literal, get_args

import numpy as np

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError, RewardError
from gdpo.rewards._judges import Judges
from gdpo.rewards._progress import Bar, Counter, OnScored
from gdpo.rewards._workers import Workers
from gdpo.rewards.reward import Reference, Reward, refuse_no_reward
from gdpo.rewards.scores import SHOWN, Call, Failure, Result, Scores, score_one

logger = logging.getLogger(__name__)

OnError = Literal["missing", "worst", "raise"]
"""How to handle a failure: store NaN, store the lowest value of the reward, or raise an
exception."""


class Scorer:
    """Scores batches of completions with several rewards, and continues if a reward fails.

    A reward without a deadline runs in the calling process. A reward with a deadline runs in a
    worker process, which is killed after the deadline. For each completion, all rewards with a
    deadline run in the same worker, one after another, so that they can share results. Coroutine
    functions run concurrently in one event loop, which all scorers of this process share. Identical
    completions with the same reference are scored once.

    A reward fails on a rollout if it raises, returns something other than a number or `None`,
    returns a number outside its range, exceeds its deadline or terminates its process. Only a
    `KeyboardInterrupt` aborts the batch. The first failure of each kind is logged with the
    completion that caused it.

    Use the scorer in a `with` statement, or call `close`. The worker processes always exit when the
    calling process exits.

    Args:
        rewards: Rewards with distinct names.
        workers: Number of processes for rewards with a deadline. The processes start on first use.
        on_error: How to handle a failure. `missing` stores NaN, which estimators leave out of every
            statistic. `worst` stores the reward's lowest value. Use it for failures that only a bad
            completion can cause. `raise` raises a RewardError.
        concurrency: Maximum number of coroutine calls in flight at the same time.
        retries: Maximum number of retries of a coroutine call after an exception or a timeout. The
            pauses before the retries are 1, 2, 4, ... seconds.
        worker_memory_gb: Maximum data memory of a worker process, in GiB. None: no limit.
        progress: Callback that is called with (done, total) if a batch takes longer than two
            seconds. Default: a progress bar on the terminal, or lines in the log.

    Raises:
        ConfigError: If one of the rewards is not a `Reward`, two rewards share a name, or an
            argument is out of range.
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
        _check_rewards(rewards)
        _check_arguments(on_error, workers, concurrency, retries, worker_memory_gb)
        self.rewards = tuple(rewards)
        self.progress: OnScored = progress or Bar()
        self._on_error: OnError = on_error
        self._count, self._memory = workers, worker_memory_gb
        self._workers: Workers | None = None
        self._judges = Judges(concurrency=concurrency, retries=retries, pause=1.0)

    @classmethod
    def from_options(
        cls,
        rewards: Sequence[Reward],
        options: Mapping[str, Any],
        *,
        progress: OnScored | None = None,
    ) -> "Scorer":
        """Return a scorer with the options in a mapping, as in recipes and trainer arguments.

        Raises:
            ConfigError: If an option is unknown or has an invalid value.
        """
        allowed = set(signature(cls).parameters) - {"rewards", "progress"}
        for name in options:
            if name not in allowed:
                raise ConfigError(f"unknown option {name!r}: {did_you_mean(name, allowed)}")
        return cls(rewards, **options, progress=progress)

    def score(
        self,
        completions: Sequence[str],
        references: Sequence[Reference],
        *,
        num_tokens: Sequence[int] | None = None,
        only: Sequence[Reward] | None = None,
    ) -> Scores:
        """Score every completion with every reward.

        Args:
            completions: The model's texts, one per rollout.
            references: The reference of each completion, in the same order.
            num_tokens: Number of tokens in each completion, including the end-of-sequence token.
                Required by rewards that score the number of tokens.
            only: The rewards to compute, in the scorer's order. Default: all rewards.

        Returns:
            The array `[rollout, reward]`, in the order of the arguments, and the failures.

        Raises:
            ConfigError: If the sequences differ in length, or a reward needs `num_tokens` but the
                argument is missing.
            RewardError: If a reward fails and `on_error` is `raise`, or a worker does not start.
        """
        chosen = {k: r for k, r in enumerate(self.rewards) if only is None or r in only}
        judged: dict[str, Any] = {"text": completions, "tokens": num_tokens}
        firsts = _first_places(chosen, judged, references)
        results = self._results(*_calls(chosen, judged, references, firsts))
        values = np.full((len(completions), len(chosen)), np.nan)
        failures: list[Failure] = []
        for column, (k, reward) in enumerate(chosen.items()):
            for i, first in enumerate(firsts[reward.of]):
                result = results[k, first]
                if isinstance(result, Failure):
                    # The error is dropped, because its traceback would keep the reward's local
                    # objects alive.
                    error = result.error if self._on_error == "raise" else None
                    failures.append(replace(result, index=i, error=error))
                    values[i, column] = reward.low if self._on_error == "worst" else np.nan
                elif result is not None:
                    values[i, column] = result
        self._report(failures, completions)
        return Scores(values, tuple(failures))

    def close(self) -> None:
        """Stop the worker processes. New processes start when a batch needs them."""
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
        """Return results keyed by reward and rollout. Identical rollouts appear once."""
        counter = Counter(len(quick) + len(slow) + len(waiting), self.progress)
        results: dict[tuple[int, int], Result] = {}
        try:
            for call in quick:
                result = score_one(call.reward, call.completion, call.reference, call.index)
                results[_key_of(call)] = result
                counter.advance()
            if slow:
                if self._workers is None:
                    self._workers = Workers(self.rewards, count=self._count, memory=self._memory)
                parts = self._workers.score(slow, done=counter.advance)
                for calls, part in zip(slow, parts, strict=True):
                    results |= zip(map(_key_of, calls), part, strict=True)
            if waiting:
                part = self._judges.score(waiting, done=counter.advance)
                results |= zip(map(_key_of, waiting), part, strict=True)
        except BaseException:
            self.close()
            raise
        finally:
            counter.finish()
        return results

    def _report(self, failures: Sequence[Failure], completions: Sequence[str]) -> None:
        if failures and self._on_error == "raise":
            first = failures[0]
            raise RewardError(
                f"reward {first.reward!r} failed, and on_error is 'raise' ({len(failures)} failed "
                f"scores in this batch). First failure: {first}; completion {first.index}: "
                f"{completions[first.index][:SHOWN]!r}. Fix the reward, or set on_error to "
                "'missing' or 'worst'"
            ) from first.error
        became = "the reward's lowest value" if self._on_error == "worst" else "missing"
        _log_first_of_each_kind(failures, completions, became)


def _first_places(
    rewards: Mapping[int, Reward], judged: Mapping[str, Any], references: Sequence[Reference]
) -> dict[str, list[int]]:
    """Return, for text and for tokens, the index of each rollout's first identical rollout."""
    completions, num_tokens = judged["text"], judged["tokens"]
    for what, given in (("references", references), ("num_tokens", num_tokens)):
        if given is not None and len(given) != len(completions):
            raise ConfigError(
                f"got {len(completions)} completions but {len(given)} {what}. Pass one per rollout"
            )
    kinds = {reward.of: reward.name for reward in rewards.values()}
    if "tokens" in kinds and num_tokens is None:
        raise ConfigError(
            f"reward {kinds['tokens']!r} needs the number of tokens. Pass num_tokens, one number "
            "per completion"
        )
    keys = [_key(reference, i) for i, reference in enumerate(references)]
    seen: dict[Any, int] = {}
    return {
        kind: [
            seen.setdefault((kind, *pair), i)
            for i, pair in enumerate(zip(judged[kind], keys, strict=True))
        ]
        for kind in kinds
    }


def _calls(
    rewards: Mapping[int, Reward],
    judged: Mapping[str, Any],
    references: Sequence[Reference],
    firsts: Mapping[str, Sequence[int]],
) -> tuple[list[Call], list[list[Call]], list[Call]]:
    """Return the calls to run: rewards without a deadline, with a deadline, and coroutines."""
    quick: list[Call] = []
    slow: dict[int, list[Call]] = {}
    waiting: list[Call] = []
    for k, reward in rewards.items():
        in_worker = reward.deadline is not None and not reward.asks_elsewhere
        others = waiting if reward.asks_elsewhere else quick
        for i in sorted(set(firsts[reward.of])):
            call = Call(k, reward, judged[reward.of][i], references[i], i)
            (slow.setdefault(i, []) if in_worker else others).append(call)
    return quick, list(slow.values()), waiting


def score(
    rewards: Sequence[Reward],
    completions: Sequence[str],
    references: Sequence[Reference],
    *,
    num_tokens: Sequence[int] | None = None,
    on_error: OnError = "missing",
) -> Scores:
    """Score one batch with a temporary `Scorer`.

    To score many batches, create one `Scorer`, which reuses its worker processes.

    Raises:
        ConfigError: If two rewards share a name, the sequences differ in length, or a reward needs
            `num_tokens` but the argument is missing.
        RewardError: If a reward fails and `on_error` is `raise`.
    """
    with Scorer(rewards, on_error=on_error) as scorer:
        return scorer.score(completions, references, num_tokens=num_tokens)


def check_distinct(names: Sequence[str]) -> None:
    """Raise a ConfigError if two rewards share a name."""
    repeated = sorted(name for name, count in Counts(names).items() if count > 1)
    if repeated:
        raise ConfigError(
            f"reward names must be unique, because weights, metrics and files use them; repeated: "
            f"{', '.join(repeated)}. Rename the duplicates"
        )


def _check_rewards(rewards: Sequence[Reward]) -> None:
    if not isinstance(rewards, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"rewards must be a list, got {type(rewards).__name__}. Put a single reward in brackets"
        )
    for reward in rewards:
        refuse_no_reward(reward)
    check_distinct([reward.name for reward in rewards])


def _check_arguments(
    on_error: object, workers: object, concurrency: object, retries: object, memory: object
) -> None:
    if not isinstance(on_error, str) or on_error not in get_args(OnError):
        raise ConfigError(
            f"unknown on_error {on_error!r}: {did_you_mean(str(on_error), get_args(OnError))}"
        )
    for name, count, least in (
        ("workers", workers, 1),
        ("concurrency", concurrency, 1),
        ("retries", retries, 0),
    ):
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise ConfigError(f"{name} must be an integer, {least} or more, got {count!r}")
    number = memory if isinstance(memory, int | float) and not isinstance(memory, bool) else 0
    if memory is not None and not number > 0:
        raise ConfigError(f"worker_memory_gb must be a number above 0, or None, got {memory!r}")


def _key(reference: Reference, index: int) -> bytes:
    """Return a key that is identical for identical references."""
    try:
        return pickle.dumps(reference)
    except Exception as error:
        raise DataError(
            f"the reference of rollout {index} contains a value that cannot be sent to another "
            f"process ({type(error).__name__}: {str(error)[:SHOWN]}). Use only text, numbers, "
            "lists and dicts"
        ) from error


def _key_of(call: Call) -> tuple[int, int]:
    return call.place, call.index


def _log_first_of_each_kind(
    failures: Sequence[Failure], completions: Sequence[str], became: str
) -> None:
    seen: Counts[tuple[str, str]] = Counts((f.reward, f.kind) for f in failures)
    for failure in failures:
        count = seen.pop((failure.reward, failure.kind), 0)
        if count:
            logger.warning(
                "reward %r failed on %d of %d rollouts (%s). These scores count as %s. "
                "First completion: %r",
                failure.reward,
                count,
                len(completions),
                failure,
                became,
                completions[failure.index][:SHOWN],
            )
