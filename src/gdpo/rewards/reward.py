"""What a reward is: a named, bounded function of one completion."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from math import inf, isfinite
from numbers import Real
from typing import Any, Literal, TypeAlias

from gdpo.errors import ConfigError

Reference: TypeAlias = Mapping[str, Any]
"""What a completion is judged against: the task's fields of one row, JSON-like values only."""


@dataclass(frozen=True, slots=True)
class Example:
    """A completion whose score is known; it documents a reward and tests it."""

    completion: str | int
    """The text, or the number of its tokens: what the reward judges."""
    reference: Reference
    score: float | None
    """The exact value that the reward must return; `None` where it does not apply."""


@dataclass(frozen=True, slots=True)
class Reward:
    """One thing that is wanted of a completion, as a number.

    `function(completion, reference)` is pure, total, bounded and deterministic: whatever a model
    writes, it returns a number in `[low, high]`, or `None` where the reward does not apply to this
    row. It may be a coroutine function: then it may wait for something elsewhere, a judge behind
    HTTP, and may fail.

    Args:
        name: What logs, recipes and files call it.
        function: Scores one completion against one reference.
        low: The lowest value that `function` returns.
        high: The highest value, which a perfect completion gets.
        examples: Completions with known scores. `gdpo.testing.check_reward` runs them.
        of: What `function` judges: the text, or the number of its tokens (an int).
        deadline: Seconds that one completion may take. A function with a deadline runs in a worker
            process, which is killed when the time is over. Its module is imported there; that of a
            script or notebook is sent with all that it refers to. A coroutine function is
            cancelled. None: it is quick, and runs where it is called.
        needs: Says in a sentence what the reward needs of this machine and has found, or raises a
            `GdpoError` with the remedy; called before a run and by `gdpo check`. None: nothing.

    Raises:
        ConfigError: A field holds something else; the name cannot be a metric's name, the range is
            empty or not finite, the deadline is not above 0, or an example's score is out of range.
    """

    name: str
    function: (
        Callable[[Any, Reference], float | None]
        | Callable[[Any, Reference], Awaitable[float | None]]
    )
    low: float
    high: float
    examples: tuple[Example, ...] = ()
    of: Literal["text", "tokens"] = "text"
    deadline: float | int | None = None
    needs: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not callable(self.function):
            raise ConfigError(
                f"reward {self.name!r}: its function must be one, got {_shown(self.function)}"
            )
        _check_range(self.name, self.low, self.high)
        if self.of not in ("text", "tokens"):
            raise ConfigError(
                f"reward {self.name!r}: `of` must be 'text' or 'tokens', got {self.of!r}"
            )
        if self.deadline is not None and not (
            _is_number(self.deadline) and 0 < self.deadline < inf
        ):
            raise ConfigError(
                f"reward {self.name!r}: its deadline must be a number of seconds above 0, got "
                f"{_shown(self.deadline)}"
            )
        _check_examples(self)

    @property
    def asks_elsewhere(self) -> bool:
        """Whether the function is a coroutine function, which waits for an answer."""
        call = getattr(self.function, "__call__", None)  # noqa: B004  of an object with a method
        return iscoroutinefunction(self.function) or iscoroutinefunction(call)


def binary(
    name: str, function: Callable[[Any, Reference], float | None], *examples: Example
) -> Reward:
    """A reward of the text that is 0 or 1."""
    return Reward(name=name, function=function, low=0.0, high=1.0, examples=examples)


def refuse_no_reward(given: object) -> None:
    """Raise a ConfigError with the remedy unless this is a `Reward`."""
    if isinstance(given, Reward):
        return
    if callable(given):
        name = getattr(given, "__name__", "mine")
        raise ConfigError(
            f"{name} is a plain function, not a gdpo.Reward. Wrap it: "
            f"Reward({name!r}, {name}, low=0, high=1), for a function of (completion, reference)"
        )
    raise ConfigError(f"a gdpo.Reward is needed, got {_shown(given)}")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"a reward's name must be text, got {_shown(name)}")
    if not name.isprintable() or not name or set(name) & set("/|"):
        raise ConfigError(
            f"a reward's name may not be empty or hold a slash, a bar or what cannot be printed, "
            f"got {name!r}: it becomes a metric's name"
        )


def _check_range(name: str, low: Any, high: Any) -> None:
    for what, bound in (("low", low), ("high", high)):
        if not _is_number(bound):
            raise ConfigError(f"reward {name!r}: {what} must be a number, got {_shown(bound)}")
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ConfigError(
            f"reward {name!r}: its range must be finite and low < high, got [{low}, {high}]"
        )


def _check_examples(reward: Reward) -> None:
    given: Any = reward.examples
    if isinstance(given, Example):
        raise ConfigError(
            f"reward {reward.name!r}: examples is a single Example; a comma makes it a tuple: "
            "(Example(...),)"
        )
    if not isinstance(given, tuple):
        raise ConfigError(
            f"reward {reward.name!r}: examples must be a tuple of Example(completion, reference, "
            f"score), got {_shown(given)}"
        )
    for i, example in enumerate(reward.examples):
        if not isinstance(example, Example):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"reward {reward.name!r}: examples[{i}] must be an Example(completion, reference, "
                f"score), got {_shown(example)}"
            )
        score: Any = example.score
        if score is not None and not (_is_number(score) and reward.low <= score <= reward.high):
            raise ConfigError(
                f"reward {reward.name!r}: the score of examples[{i}] must be a number in "
                f"[{reward.low}, {reward.high}], or None where it does not apply, got "
                f"{_shown(score)}"
            )


def _is_number(value: object) -> bool:
    # A bool is a number to Python, and a mistake here.
    return not isinstance(value, bool) and isinstance(value, Real)


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r:.80}"
