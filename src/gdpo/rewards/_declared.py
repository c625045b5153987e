"""What is declared of a run's rewards, ranges and gates, as the run keeps it beside its rollouts.

Whoever shows the run later reads it there, and imports no code that the run names.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias, cast

from gdpo.rewards._gating import Gate

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
    entries = cast("Mapping[Any, Any]", described).items()
    return {str(name): _range(entry) for name, entry in entries}


def _range(entry: object) -> Range | None:
    if not isinstance(entry, Mapping):
        return None
    bounds = cast("Mapping[Any, Any]", entry)
    low, high = _number(bounds.get("low")), _number(bounds.get("high"))
    return None if low is None or high is None or low >= high else (low, high)


_LARGEST = 1e60
"""Squares of what is within a range must stay finite."""


def _number(value: object) -> float | None:
    if not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None
