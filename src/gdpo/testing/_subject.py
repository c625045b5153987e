"""What is under test: an estimator, its options and its claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError

Unit = Literal["each", "all", "kept", "mixed"]
"""What a change of the rewards' units does to the advantages."""

Options: TypeAlias = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""Keyword options of the estimator, or a function that makes them from the NumPy rewards."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What an estimator promises beyond the contract that all of them keep.

    Args:
        unit: What a change of the rewards' units does. `each`: nothing, even of one reward alone;
            `all`: nothing, if all change together; `kept`: the advantages change with them;
            `mixed`: no claim.
        shift: Adding a constant to a reward changes nothing.
        dead_groups: A group in which nothing varies gets exactly 0, whatever the others do.
        constant_rewards: A reward that never varies changes nothing.
        local: A group's advantages depend on no other group.
        signed: Takes negative weights.
    """

    unit: Unit = "mixed"
    shift: bool = True
    dead_groups: bool = True
    constant_rewards: bool = True
    local: bool = False
    signed: bool = True

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ConfigError(f"unit {self.unit!r}: {did_you_mean(self.unit, get_args(Unit))}")


@dataclass(frozen=True, slots=True)
class Subject:
    """An estimator with its options and its claims."""

    estimator: Callable[..., Any]
    options: Options
    claims: Claims

    def __call__(self, rewards: Any, weights: Any, *, like: Any = None) -> Any:
        """Advantages, with options made from `like`: the same rewards as a NumPy array.

        What it is given is looked at again afterwards: an estimator changes none of it.
        """
        before = np.asarray(rewards).copy(), np.asarray(weights).copy()
        advantages = self.estimator(rewards, weights, **self.options_for(rewards, like))
        for given, copy in zip((rewards, weights), before, strict=True):
            same = np.array_equal(np.asarray(given), copy, equal_nan=copy.dtype.kind == "f")
            assert same, "the estimator changes the arrays that it is given"
        return advantages

    def options_for(self, rewards: Any, like: Any = None) -> Mapping[str, Any]:
        """The options that go with these rewards."""
        if callable(self.options):
            return self.options(rewards if like is None else like)
        return self.options


def check_same(got: Any, wanted: Any, *, atol: float, of: Any, what: str) -> None:
    """Raise an AssertionError unless two sets of advantages agree, relative to the largest."""
    got, wanted = np.asarray(got, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    size = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    assert got.shape == wanted.shape, f"{what}: shape {got.shape} instead of {wanted.shape}"
    difference = np.abs(got - wanted).max(initial=0.0)
    assert difference <= atol * size, (  # also false for NaN
        f"{what}: the advantages differ by {difference:.3g}\n{got}\ninstead of\n{wanted}\n"
        f"for the rewards\n{np.asarray(of)!r}"
    )


def check_zero(got: Any, *, of: Any, what: str) -> None:
    """Raise an AssertionError unless every advantage is exactly 0."""
    values = np.asarray(got)
    assert np.count_nonzero(values) == 0, (
        f"{what}: exactly 0 is wanted, got\n{values}\nfor the rewards\n{np.asarray(of)!r}"
    )
