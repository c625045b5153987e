"""What a reward is: a named, bounded function of one completion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

from gdpo.errors import ConfigError

Reference: TypeAlias = Mapping[str, Any]
"""What a completion is judged against: the task's fields of one row, JSON-like values only."""


@dataclass(frozen=True, slots=True)
class Example:
    """A completion whose score is known; it documents a reward and tests it."""

    completion: str
    reference: Reference
    score: float | None
    """The exact value that the reward must return; `None` where it does not apply."""


@dataclass(frozen=True, slots=True)
class Reward:
    """One thing that is wanted of a completion, as a number.

    `function(completion, reference)` is pure, total, bounded and deterministic: whatever a model
    writes, it returns a number in `[low, high]`, or `None` where the reward does not apply to this
    row.

    Args:
        name: What logs, recipes and files call it.
        function: Scores one completion against one reference.
        low: The lowest value that `function` returns.
        high: The highest value, which a perfect completion gets.
        examples: Completions with known scores. `gdpo.testing.check_reward` runs them.

    Raises:
        ConfigError: The name cannot be a metric's name, or the range is empty or not finite.
    """

    name: str
    function: Callable[[str, Reference], float | None]
    low: float
    high: float
    examples: tuple[Example, ...] = ()

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
