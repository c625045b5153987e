"""Computes the final and best value of a reward curve, and when it reached a threshold."""

from typing import TypeAlias

import numpy as np

from gdpo._shapes import Float
from gdpo.lab.experiments.statistics import ROUNDING

WINDOW = 5
"""Number of steps in the running mean that is compared with the threshold."""

REACHED = 0.8
"""Default threshold for every reward, as a share of the reward's range."""

Curve: TypeAlias = Float[np.ndarray, " step"]
"""The mean of a reward at each step of a run."""


def final(values: Curve) -> float:
    """Return the mean over the last tenth of the steps, ignoring NaN, or NaN if it has no value.

    For a failed run, only the steps that it took are counted.
    """
    return float(_mean(values[-max(1, round(0.1 * len(values))) :]))


def best(values: Curve) -> float:
    """Return the highest mean of 5 consecutive steps, or NaN if no step has a value.

    With fewer than 5 steps, it is the mean of all. The maximum of noisy means is biased upwards,
    and more so in longer runs: compare only runs of equal length.
    """
    means = running_mean(values, window=max(1, min(WINDOW, len(values))))
    return float(np.nanmax(means)) if np.any(~np.isnan(means)) else np.nan


def running_mean(values: Curve, *, window: int = WINDOW) -> Float[np.ndarray, " place"]:
    """Return the means over `window` consecutive steps. Empty if there are fewer steps.

    NaN is ignored. A mean is NaN if its whole window is NaN.
    """
    if len(values) < window:
        return np.empty(0)
    return _mean(np.lib.stride_tricks.sliding_window_view(values, window))


def first_reached(values: Curve, threshold: float, *, window: int = WINDOW) -> int | None:
    """Return the first step at which the mean of the last `window` steps reaches the threshold.

    Steps count from 1. None: not reached. A mean that is too low only by a rounding error reaches
    it.

    Examples:
        >>> first_reached(np.array([0.0] * 10 + [1.0] * 10), 0.8)
        14
    """
    means = running_mean(values, window=window)
    allowed = ROUNDING * np.nanmax(np.abs([threshold, *values]))
    at = np.flatnonzero(means >= threshold - allowed)
    return int(at[0]) + window if len(at) else None


def _mean(values: Float[np.ndarray, "*place step"]) -> Float[np.ndarray, "*place"]:
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0.0).sum(-1) / known.sum(-1)
