"""Concordance of shares and effects, and intervals over warm starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from gdpo.diagnostics.influence import student_quantile


def concordance(
    shares: Sequence[float],
    effects: Sequence[float],
    counts: Callable[[int, int], bool] = lambda *_: True,
) -> float:
    """Return the share of pairs that both order in the same way. NaN: no pair counts.

    An equal pair counts one half.

    Args:
        shares: Influence share of each reward.
        effects: Own effect of each reward.
        counts: Whether the pair of these two rewards counts.
    """
    pairs = [
        (1 + np.sign((shares[i] - shares[j]) * (effects[i] - effects[j]))) / 2
        for i, j in combinations(range(len(shares)), 2)
        if counts(i, j)
    ]
    return float(np.mean(pairs)) if pairs else float("nan")


@dataclass(frozen=True, slots=True)
class Mean:
    """Stores a mean over warm starts with its 95 % interval (Student's t)."""

    mean: float
    low: float
    high: float
    count: int
    digits: int = 2
    """Digits that are printed."""

    def __str__(self) -> str:
        mean, low, high = (f"{each:.{self.digits}f}" for each in (self.mean, self.low, self.high))
        return f"{mean} ({low} to {high})"


def over_warm_starts(values: Sequence[float], digits: int = 2) -> Mean:
    """Return the mean of one value per warm start. NaN: this warm start has none."""
    known = np.array([value for value in values if not np.isnan(value)])
    if len(known) < 2:
        only = float(known[0]) if len(known) else float("nan")
        return Mean(only, np.nan, np.nan, len(known), digits)
    half = student_quantile(0.975, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known))
    mean = float(known.mean())
    return Mean(mean, mean - half, mean + half, len(known), digits)


def mean_of(values: Sequence[Any]) -> float:
    """Return the mean of the known values. NaN: there is none."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
