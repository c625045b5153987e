"""The stages that every estimator is made of: centre, scale, standardize, weighted sum.

A stage takes and returns `Rounded`: values together with a bound on the rounding error beneath
them. What is not larger than that error is exactly zero, so that a group without signal gives
exactly 0 instead of amplified noise. NaN marks a missing value: a stage leaves it out of every
statistic and keeps it missing.

How a caller's array becomes `Rounded`, and a result becomes the caller's array again, is in
`arrays`.
"""

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace
from jaxtyping import Float

Axis = int | tuple[int, ...]

SAMPLES = 1
"""The axis of the samples of one prompt: statistics over it are a group's."""

BATCH = (0, 1)
"""The axes of prompts and samples: statistics over them are the whole batch's."""

_SAFETY = 8
"""How often its first-order rounding error a value must exceed to count as different from zero.

A few operations lie between a user's numbers and the comparison, and each adds half a unit in the
last place."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """An array, and a bound on the rounding error of each of its values."""

    values: Any
    """NaN: missing."""
    error: Any
    """Same shape and unit as `values`; 0 where the value is missing or exact."""


def centre(x: Rounded, *, over: Axis) -> Rounded:
    r"""Subtract the mean: $x_i - \bar x$, over the values that are there.

    Exactly 0 where nothing varies. The largest value is subtracted first, so that equal values
    give exactly 0 and a common shift costs no digits.
    """
    xp = array_namespace(x.values)
    present = ~xp.isnan(x.values)
    count = _count(x.values, over)
    top = xp.max(xp.where(present, x.values, -xp.inf), axis=over, keepdims=True)
    shifted = xp.where(present, x.values - top, 0.0)
    centred = shifted - xp.sum(shifted, axis=over, keepdims=True) / count
    largest = xp.max(xp.abs(shifted), axis=over, keepdims=True)
    rounding = xp.finfo(shifted.dtype).eps * largest
    error = x.error + xp.sum(x.error, axis=over, keepdims=True) / count + rounding
    result = _significant(centred, error, rounding, present)
    varies = spread(result, over=over) > 0
    values = xp.where(present & ~varies, 0.0, result.values)
    return Rounded(values, xp.where(varies, result.error, 0.0))


def scale(x: Rounded, *, over: Axis) -> Rounded:
    """Divide values that are centred already by their `spread`.

    No spread: exactly 0. One value alone has no spread.
    """
    xp = array_namespace(x.values)
    present = ~xp.isnan(x.values)
    std = spread(x, over=over)
    divisor = xp.where(std > 0, std, 1.0)
    values = xp.where(present & (std > 0), x.values / divisor, 0.0)
    return Rounded(xp.where(present, values, xp.nan), x.error / divisor)


def spread(x: Rounded, *, over: Axis) -> Float[Any, "..."]:
    r"""Sample standard deviation $\sqrt{\sum_i x_i^2 / (n - 1)}$ of centred values.

    Returns:
        In the unit of `x`, with the axes `over` kept at length 1; exactly 0 for fewer than two
        values, and where it is no larger than the rounding error beneath it.
    """
    xp = array_namespace(x.values)
    present = ~xp.isnan(x.values)
    degrees = _count(x.values, over, less=1)
    std = _root_mean_square(xp.where(present, x.values, 0.0), degrees, over)
    noise = _root_mean_square(x.error, degrees, over)
    return xp.where(std > _SAFETY * noise, std, 0.0)


def standardize(x: Rounded, *, over: Axis) -> Rounded:
    r"""Mean 0 and spread 1: $z_i = (x_i - \bar x) / s$; exactly 0 where nothing varies."""
    return scale(centre(x, over=over), over=over)


def weighted_sum(x: Rounded, weights: Float[Any, " reward"]) -> Rounded:
    r"""Sum over the rewards that apply: $\sum_k w_k x_k$.

    A reward with weight 0 is as good as absent. Where no reward applies, the sum is missing.
    """
    xp = array_namespace(x.values)
    applies = ~xp.isnan(x.values) & (weights != 0)
    terms = weights * xp.where(applies, x.values, 0.0)
    rounding = xp.finfo(terms.dtype).eps * xp.sum(xp.abs(terms), axis=-1)
    error = xp.sum(xp.abs(weights) * x.error, axis=-1) + rounding
    return _significant(xp.sum(terms, axis=-1), error, rounding, xp.any(applies, axis=-1))


def _significant(values: Any, error: Any, rounding: Any, present: Any) -> Rounded:
    """Zero what the last operation's rounding alone explains; NaN what is missing."""
    xp = array_namespace(values)
    values = xp.where(xp.abs(values) <= _SAFETY * rounding, 0.0, values)
    return Rounded(xp.where(present, values, xp.nan), xp.where(present, error, 0.0))


def _root_mean_square(values: Any, degrees: Any, over: Axis) -> Any:
    """Of the ratios to the largest value: squares of tiny or huge numbers would leave the range."""
    xp = array_namespace(values)
    largest = xp.max(xp.abs(values), axis=over, keepdims=True)
    ratios = values / xp.where(largest > 0, largest, 1.0)
    return largest * xp.sqrt(xp.sum(ratios * ratios, axis=over, keepdims=True) / degrees)


def _count(values: Any, over: Axis, *, less: int = 0) -> Any:
    """Number of values that are there, less some, but at least 1: a divisor of the same dtype."""
    xp = array_namespace(values)
    present = xp.astype(~xp.isnan(values), values.dtype)
    count = xp.sum(present, axis=over, keepdims=True) - less
    return xp.where(count > 0, count, 1.0)
