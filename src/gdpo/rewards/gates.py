"""Gates: a reward that counts only where another one is reached."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, TypeAlias

from array_api_compat import array_namespace
from jaxtyping import Bool, Float

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.rewards.reward import Reward


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition: the reward `on` is at least `at_least`.

    Args:
        on: The name of the reward that opens the gate: the harder one.
        at_least: Its value from which on the gate is open, in its unit.

    Raises:
        ConfigError: A threshold that is not finite.
    """

    on: str
    at_least: float

    def __post_init__(self) -> None:
        if not isfinite(self.at_least):
            raise ConfigError(f"a gate's at_least must be a finite number, got {self.at_least}")


def apply_gates(
    rewards: Float[Any, "*batch reward"], names: Sequence[str], gates: Mapping[str, Gate]
) -> Float[Any, "*batch reward"]:
    r"""Rewards of which some count only where another reaches a threshold.

    $$ \tilde r_k = \begin{cases} r_k & r_l \ge t \\ 0 & \text{else} \end{cases} $$

    The paper's way to give one reward priority over an easier one: a short answer is worth
    something only if it is right.

    *Zero-fill.* A closed gate gives 0, a value like any other: it enters the mean and the spread of
    its group, so that a rollout behind an open gate is compared with those behind closed ones, and
    reaching the condition is rewarded too. The other convention, to leave closed rollouts out
    (NaN), compares those behind open gates with each other only; it takes the priority away. For a
    reward whose worst value is not 0, a closed gate is not the worst: shift it first.

    A gate looks at the reward as it was scored, whether or not that one is gated as well. Where the
    condition is missing (NaN), the gated reward is missing too: nobody knows whether it counts.
    Where the gated reward does not apply, it stays missing.

    Args:
        rewards: The last axis holds the rewards, raw; NaN: does not apply.
        names: Of the rewards, in the order of that axis.
        gates: By the name of the reward that is gated.

    Returns:
        A new array of the same shape, library and dtype.

    Raises:
        ConfigError: A name that is no reward's, or a reward gated on itself.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 8.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[1.0, 1.0], [0.0, 1.0]]])  # correct, short
        >>> apply_gates(r, ["correct", "short"], {"short": Gate("correct", at_least=1)})
        array([[[1., 1.],
                [0., 0.]]])
    """
    check_gates(names, gates)
    xp = array_namespace(rewards)
    columns = [rewards[..., k] for k in range(len(names))]
    for name, gate in gates.items():
        k, condition = names.index(name), rewards[..., names.index(gate.on)]
        zero = xp.zeros_like(condition)
        closed_to = xp.where(xp.isnan(condition), condition, zero)
        kept = (condition >= gate.at_least) | xp.isnan(columns[k])
        columns[k] = xp.where(kept, columns[k], closed_to)
    return xp.stack(columns, axis=-1)


def closed_gates(
    rewards: Float[Any, "*batch reward"], names: Sequence[str], gates: Mapping[str, Gate]
) -> dict[str, float]:
    """Share of rollouts for which each gate is closed, among those whose condition applies.

    Args:
        rewards: As they were scored, before `apply_gates`.
        names: Of the rewards.
        gates: By the name of the reward that is gated.
    """
    xp = array_namespace(rewards)
    shares: dict[str, float] = {}
    for name, gate in gates.items():
        condition = rewards[..., names.index(gate.on)]
        known: Bool[Any, "*batch"] = ~xp.isnan(condition)
        closed = known & (condition < gate.at_least)
        count = int(xp.sum(xp.astype(known, xp.int64)))
        shares[name] = int(xp.sum(xp.astype(closed, xp.int64))) / count if count else 0.0
    return shares


def check_gates(names: Sequence[str], gates: Mapping[str, Gate]) -> None:
    """Raise a ConfigError unless every gate stands between two rewards of these names."""
    for name, gate in gates.items():
        for used in (name, gate.on):
            if used not in names:
                raise ConfigError(
                    f"the gate of {name!r} names {used!r}, which is no reward: "
                    f"{did_you_mean(used, names)}"
                )
        if name == gate.on:
            raise ConfigError(f"reward {name!r} is gated on itself: name another reward")


def declared_ranges(
    rewards: Sequence[Any], gated: Container[str] = ()
) -> tuple[list[float], list[float]]:
    """The lowest and the highest value of each reward; NaN of what is no `Reward`.

    Args:
        rewards: `Reward` objects, or functions, which declare no range.
        gated: Names of those with a gate: they are 0 where it is closed.
    """
    ranges = [_range(reward, gated) for reward in rewards]
    return [low for low, _ in ranges], [high for _, high in ranges]


def _range(reward: Any, gated: Container[str]) -> tuple[float, float]:
    if not isinstance(reward, Reward):
        return nan, nan
    if reward.name in gated:
        return min(0.0, reward.low), max(0.0, reward.high)
    return reward.low, reward.high


Range: TypeAlias = tuple[float, float]
"""Lowest and highest value."""


def describe_rewards(
    names: Sequence[str],
    low: Sequence[float],
    high: Sequence[float],
    gates: Mapping[str, Gate],
) -> dict[str, dict[str, Any]]:
    """Return what is declared of each reward, in JSON's types, in the order of the names.

    Args:
        names: Of the rewards.
        low: The lowest value of each; NaN: none is declared.
        high: The highest value of each.
        gates: By the name of the gated reward.
    """
    described: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, bottom, top in zip(names, low, high, strict=True):
        if isfinite(bottom) and isfinite(top):
            described[name] |= {"low": float(bottom), "high": float(top)}
        if name in gates:
            gate = gates[name]
            described[name]["gate"] = {"on": gate.on, "at_least": float(gate.at_least)}
    return described


def described_ranges(described: object) -> dict[str, Range | None]:
    """Return the range of each reward that `describe_rewards` described; None: it has none.

    A file may hold anything in its place: what is no range is none.
    """
    if not isinstance(described, Mapping):
        return {}
    return {str(name): _range_of_declared(entry) for name, entry in described.items()}


def _range_of_declared(entry: object) -> Range | None:
    if not isinstance(entry, Mapping):
        return None
    low, high = _number(entry.get("low")), _number(entry.get("high"))
    return None if low is None or high is None or low >= high else (low, high)


_LARGEST = 1e60
"""Squares of what is within a range must stay finite."""


def _number(value: object) -> float | None:
    if not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None
