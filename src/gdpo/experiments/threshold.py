"""What one curve comes to: its start, its end, its best, and when it crossed a threshold."""

import numpy as np
from jaxtyping import Float

WINDOW = 5
"""Steps of the running mean that has to cross a threshold."""

REACHED = 0.8
"""Share of a reward's range whose first crossing is timed."""

_TENTH = 0.1
"""Share of the steps that count as the start, and as the end."""

_ROUNDING = 2.0**-42
"""Relative error allowed to a mean of few steps: 2¹⁰ units in the last place."""


def tenth(steps: int) -> int:
    """How many steps a tenth of them is, rounded; at least 1."""
    return max(1, round(_TENTH * steps))


def start(values: Float[np.ndarray, " step"]) -> float:
    """Mean over the first tenth of the steps, in the unit of the values. NaN steps are left out."""
    return float(_mean(values[: tenth(len(values))]))


def final(values: Float[np.ndarray, " step"]) -> float:
    """Mean over the last tenth of the steps, in the unit of the values. NaN steps are left out.

    The tenth is one of the steps that there are: of a run that failed, of what it came to.
    NaN: there is no step in it, or no step with a value.
    """
    return float(_mean(values[-tenth(len(values)) :]))


def best(values: Float[np.ndarray, " step"]) -> float:
    """The highest mean of 5 steps in a row, in the unit of the values; NaN: there is no step.

    Of fewer than 5 steps, their mean. One lucky step makes no best, but the highest of many noisy
    means is above what can be kept up all the same: compare it between runs of equal length only.
    """
    means = running_mean(values, window=max(1, min(WINDOW, len(values))))
    return float(np.nanmax(means)) if np.any(~np.isnan(means)) else np.nan


def running_mean(
    values: Float[np.ndarray, " step"], *, window: int = WINDOW
) -> Float[np.ndarray, " place"]:
    """Mean of each `window` steps in a row, in the unit of the values.

    NaN steps are left out of it; it is NaN where all of its steps are.

    Returns:
        One for each step from the `window`-th on; none where there are fewer steps.
    """
    if len(values) < window:
        return np.empty(0)
    return _mean(np.lib.stride_tricks.sliding_window_view(values, window))


def first_reached(
    values: Float[np.ndarray, " step"], threshold: float, *, window: int = WINDOW
) -> int | None:
    """The first step at which the mean of the last `window` steps is at or above the threshold.

    A mean that falls short by no more than rounding is at it.

    Args:
        values: Of each step.
        threshold: In their unit.
        window: Steps of the running mean. The first of them cannot have reached anything.

    Returns:
        The step, the first being 1; None: not within these steps.

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
