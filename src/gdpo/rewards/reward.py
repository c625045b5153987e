"""Defines a reward: a named, bounded function that scores one completion."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from math import inf, isfinite
from numbers import Real
from typing import Any, Literal, TypeAlias, get_args

from gdpo._text import describe
from gdpo.errors import ConfigError

Reference: TypeAlias = Mapping[str, Any]
"""Data that a completion is scored against: the fields that a task keeps from a row, as JSON-like
values.
"""

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""Chat messages with `role` and `content`. The messages of the model have the role `assistant`."""

Scope: TypeAlias = Literal["last", "all", "opened"]
"""Which text of the model a reward scores: the last message, all, or the last one with its tag."""


def as_messages(completion: str | Messages) -> Messages:
    """Return the messages of a completion. A text counts as one message from the model."""
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    return [completion] if isinstance(completion, Mapping) else completion


@dataclass(frozen=True, slots=True)
class Example:
    """Stores a completion with a known score, which documents and tests a reward."""

    completion: str | int | Messages
    """The text, the number of tokens if the reward scores the length, or the messages up to a turn
    if the reward scores turns (a text stands for one message of the model)."""
    reference: Reference
    score: float | None
    """Exact value that the reward must return. None: the reward does not apply."""


@dataclass(frozen=True, slots=True)
class Reward:
    """Stores a named function that scores one completion, with its range and examples.

    `function(completion, reference)` must be pure and deterministic. For any text that a model
    writes, it returns a number in `[low, high]`, or `None` if the reward does not apply to the row.
    A coroutine function can wait for an external service, such as an LLM judge, and may fail.

    Args:
        name: Name of the reward in logs, recipes and files.
        function: Function that scores one completion against one reference.
        low: Lowest value that `function` returns.
        high: Highest value that `function` returns, which a perfect completion (or turn) gets.
        examples: Completions with known scores. `gdpo.testing.check_reward` runs them.
        of: What `function` receives: "text", "tokens" for the number of tokens (an int), or "turn"
            for the messages up to a turn: the function is called for each message of the model,
            which is the last that it gets, so that the reward of a turn is fixed when the turn
            ends. Estimators for rollouts get the total over the turns. A text is one turn.
        deadline: Maximum time to score one completion, in seconds. The function then runs in a
            worker process, which imports its module and is killed after that time. A function
            defined in a script or notebook is pickled with every object that it uses. A coroutine
            function is cancelled instead. None: the function is fast and runs in the calling
            process (a coroutine function gets 60 seconds).
        needs: Function that checks the reward's requirements on this machine, before a run and in
            `gdpo check`. It returns a sentence about what it found, or raises a `GdpoError` with a
            remedy. None: no requirements.
        scope: The model's messages that `function` gets as one text: "last" for the last one with
            visible content, "all" for all, joined by newlines, or "opened" for the last one after
            the `<think>` at the end of its prompt (`gdpo.rewards.text.left_open`), for rewards that
            need the tag. Only "last" is allowed if `of` is not "text".

    Raises:
        ConfigError: If a field has the wrong type, the name cannot be used in a metric name, the
            range is empty or not finite, the deadline is not above 0, or the score of an example is
            out of range.
    """

    name: str
    function: (
        Callable[[Any, Reference], float | None]
        | Callable[[Any, Reference], Awaitable[float | None]]
    )
    low: float
    high: float
    examples: tuple[Example, ...] = ()
    of: Literal["text", "tokens", "turn"] = "text"
    deadline: float | int | None = None
    needs: Callable[[], str] | None = None
    scope: Scope = "last"

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str):
            raise ConfigError(f"a reward's name must be a string, got {describe(name)}")
        if not name.isprintable() or not name or set(name) & set("/|"):
            raise ConfigError(
                f"a reward's name becomes part of metric names, so it must not be empty or contain "
                f"'/', '|' or non-printable characters; got {name!r}"
            )
        _refuse(self.name, _problems_of_range(self.low, self.high))
        _refuse(self.name, _problems(self))
        _refuse(self.name, _problems_of_examples(self))

    @property
    def asks_elsewhere(self) -> bool:
        """Return whether the function is a coroutine function."""
        call = getattr(self.function, "__call__", None)  # noqa: B004  an object with `__call__`
        return iscoroutinefunction(self.function) or iscoroutinefunction(call)


@dataclass(frozen=True, slots=True)
class DeclaredRange:
    """Stores the declared range of a reward that is not a `Reward` object.

    Raises:
        ConfigError: If the range is empty, not finite, or does not consist of numbers.
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        _refuse(self.name, _problems_of_range(self.low, self.high))


def examples_of(reference: Reference, scores: Mapping[str, float | None]) -> tuple[Example, ...]:
    """Return examples with the same reference, from their completions and scores."""
    return tuple(Example(completion, reference, score) for completion, score in scores.items())


def binary(
    name: str,
    function: Callable[[Any, Reference], float | None],
    *examples: Example,
    scope: Scope = "last",
) -> Reward:
    """Return a reward that scores the text as 0 or 1."""
    return Reward(name=name, function=function, low=0.0, high=1.0, examples=examples, scope=scope)


def refuse_no_reward(given: object) -> None:
    """Raise a ConfigError with the remedy if this is not a `Reward`."""
    if isinstance(given, Reward):
        return
    if callable(given):
        name = getattr(given, "__name__", "mine")
        raise ConfigError(
            f"{name} is a plain function, not a gdpo.Reward. Wrap it: "
            f"Reward({name!r}, {name}, low=0, high=1), for a function of (completion, reference)"
        )
    raise ConfigError(f"expected a gdpo.Reward, got {describe(given)}")


def _refuse(name: str, problems: Iterator[str]) -> None:
    for problem in problems:
        raise ConfigError(f"reward {name!r}: {problem}")


def _problems_of_range(low: Any, high: Any) -> Iterator[str]:
    for what, bound in (("low", low), ("high", high)):
        if not _is_number(bound):
            yield f"{what} must be a number, got {describe(bound)}"
    if not (isfinite(low) and isfinite(high) and low < high):
        yield f"the range must be finite with low < high, got [{low}, {high}]"


def _problems(reward: Reward) -> Iterator[str]:
    if not callable(reward.function):
        yield f"function must be callable, got {describe(reward.function)}"
    if reward.of not in ("text", "tokens", "turn"):
        yield f"`of` must be 'text', 'tokens' or 'turn', got {reward.of!r}"
    if reward.scope not in get_args(Scope):
        yield f"scope must be 'last', 'all' or 'opened', got {describe(reward.scope)}"
    if reward.scope != "last" and reward.of != "text":
        yield (
            f"scope={reward.scope!r} is only for rewards of the text, but `of` is {reward.of!r}: "
            "remove scope, or set of='text'"
        )
    limit = reward.deadline
    if limit is not None and not (_is_number(limit) and 0 < limit < inf):
        yield f"deadline must be a number of seconds above 0, got {describe(limit)}"


def _problems_of_examples(reward: Reward) -> Iterator[str]:
    given: Any = reward.examples
    if isinstance(given, Example):
        yield "examples is a single Example. Add a comma to make it a tuple: (Example(...),)"
    form = "Example(completion, reference, score)"
    if not isinstance(given, tuple):
        yield f"examples must be a tuple of {form}, got {describe(given)}"
    for i, example in enumerate(reward.examples):
        if not isinstance(example, Example):  # pyright: ignore[reportUnnecessaryIsInstance]
            yield f"examples[{i}] must be an {form}, got {describe(example)}"
        score: Any = example.score
        if score is not None and not (_is_number(score) and reward.low <= score <= reward.high):
            yield (
                f"the score of examples[{i}] must be a number in [{reward.low}, {reward.high}], or "
                f"None if the reward does not apply; got {describe(score)}"
            )


def _is_number(value: object) -> bool:
    # Python treats a bool as a number. Here a bool is an error.
    return not isinstance(value, bool) and isinstance(value, Real)
