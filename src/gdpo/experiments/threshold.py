"""Computes the start, end and best of a reward curve, and when it reached a threshold."""

import numpy as np
from jaxtyping import Float

WINDOW = 5
"""Steps in the running mean that is compared with the threshold."""

REACHED = 0.8
"""Share of a reward's range whose first crossing is timed."""

_TENTH = 0.1
"""Share of the steps that count as the start and as the end."""

_ROUNDING = 2.0**-42
"""Relative rounding error that the mean of a few steps may have: 2¹⁰ units in the last place."""


def tenth(steps: int) -> int:
    """Return a tenth of the number of steps, rounded, at least 1."""
    return max(1, round(_TENTH * steps))


def start(values: Float[np.ndarray, " step"]) -> float:
    """Return the mean of the first tenth of the steps, in their unit; NaN is ignored."""
    return float(_mean(values[: tenth(len(values))]))


def final(values: Float[np.ndarray, " step"]) -> float:
    """Return the mean of the last tenth of the steps, in their unit; NaN is ignored.

    For a run that failed, it is the last tenth of the steps that the run took. Returns NaN if there
    is no step, or no step with a value.
    """
    return float(_mean(values[-tenth(len(values)) :]))


def best(values: Float[np.ndarray, " step"]) -> float:
    """Return the highest mean of 5 steps in a row, in the unit of the values; NaN without a step.

    With fewer than 5 steps it is their mean. The highest of many noisy means is biased upwards, and
    more so in longer runs: compare it only between runs of equal length.
    """
    means = running_mean(values, window=max(1, min(WINDOW, len(values))))
    return float(np.nanmax(means)) if np.any(~np.isnan(means)) else np.nan


def running_mean(
    values: Float[np.ndarray, " step"], *, window: int = WINDOW
) -> Float[np.ndarray, " place"]:
    """Return the mean of each `window` steps in a row, in the unit of the values.

    NaN steps are ignored. A mean is NaN if all of its steps are.

    Returns:
        One mean for each step from the `window`-th on; empty if there are fewer steps.
    """
    if len(values) < window:
        return np.empty(0)
    return _mean(np.lib.stride_tricks.sliding_window_view(values, window))


def first_reached(
    values: Float[np.ndarray, " step"], threshold: float, *, window: int = WINDOW
) -> int | None:
    """Return the first step at which the mean of the last `window` steps reaches the threshold.

    A mean that is below the threshold only by a rounding error counts as reaching it.

    Args:
        values: One value for each step.
        threshold: The value to reach, in the same unit.
        window: Steps in the running mean. The threshold cannot be reached before step `window`.

    Returns:
        The step, counted from 1. None: not reached within these steps.

    Examples:
        >>> first_reached(np.array([0.0] * 10 + [1.0] * 10), 0.8)
        14
    """
    means = running_mean(values, window=window)
    allowed = _ROUNDING * np.nanmax(np.abs([threshold, *values]))
    at = np.flatnonzero(means >= threshold - allowed)
    return int(at[0]) + window if len(at) else None


def _mean(values: Float[np.ndarray, "*place step"]) -> Float[np.ndarray, "*place"]:
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0.0).sum(-1) / known.sum(-1)
