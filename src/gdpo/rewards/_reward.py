"""What a reward is: a named, bounded function of one completion."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from math import inf, isfinite
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
            process, which is killed when the time is over; it must be importable by its name there.
            A coroutine function is cancelled. None: it is quick, and runs where it is called.
        needs: Says in a sentence what the reward needs of this machine and has found, or raises a
            `GdpoError` with the remedy; called before a run and by `gdpo check`. None: nothing.

    Raises:
        ConfigError: The name cannot be a metric's name, the range is empty or not finite, or the
            deadline is not above 0.
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
        if not self.name.isprintable() or not self.name or set(self.name) & set("/|"):
            raise ConfigError(
                f"a reward's name may not be empty or hold a slash, a bar or what cannot be "
                f"printed, got {self.name!r}: it becomes a metric's name"
            )
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise ConfigError(
                f"reward {self.name!r}: its range must be finite and low < high, got [{self.low}, "
                f"{self.high}]"
            )
        if self.of not in ("text", "tokens"):
            raise ConfigError(
                f"reward {self.name!r}: `of` must be 'text' or 'tokens', got {self.of!r}"
            )
        if self.deadline is not None and not 0 < self.deadline < inf:
            raise ConfigError(
                f"reward {self.name!r}: its deadline must be a number of seconds above 0, got "
                f"{self.deadline}"
            )

    @property
    def asks_elsewhere(self) -> bool:
        """Whether the function is a coroutine function, which waits for an answer."""
        call = getattr(self.function, "__call__", None)  # noqa: B004  of an object with a method
        return iscoroutinefunction(self.function) or iscoroutinefunction(call)
