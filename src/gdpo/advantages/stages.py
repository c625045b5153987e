"""The stages that every estimator is made of: centre, scale, standardize, times, weighted sum.

A stage takes and returns `Rounded`: values together with a bound on the rounding error beneath
them. What is not larger than that error is exactly zero, so that a group without signal gives
exactly 0 instead of amplified noise. NaN marks a missing value: a stage leaves it out of every
statistic and keeps it missing.

How a caller's array becomes `Rounded`, and a result becomes the caller's array again, is in
`arrays`.
"""

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device
from jaxtyping import Float

Axis = int | tuple[int, ...]

Number = float | int

Counts = Any
"""How often each value counts in a statistic, in the shape of the values; None: each once."""

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


def centre(x: Rounded, *, over: Axis, counts: Counts = None) -> Rounded:
    r"""Subtract the mean: $x_i - \bar x$, over the values that are there.

    Exactly 0 where nothing varies. The largest value is subtracted first, so that equal values
    give exactly 0 and a common shift costs no digits.

    Args:
        x: What to centre.
        over: The axes of the mean.
        counts: How often each value counts in the mean; left out: once.
    """
    xp = array_namespace(x.values)
    present = ~xp.isnan(x.values)
    count = _count(x.values, over, counts)
    top = xp.max(xp.where(present, x.values, -xp.inf), axis=over, keepdims=True)
    shifted = xp.where(present, x.values - top, 0.0)
    centred = shifted - _total(shifted, over, counts) / count
    largest = xp.max(xp.abs(shifted), axis=over, keepdims=True)
    rounding = xp.finfo(shifted.dtype).eps * largest
    error = x.error + _total(x.error, over, counts) / count + rounding
    result = _significant(centred, error, rounding, present)
    varies = spread(result, over=over, counts=counts) > 0
    values = xp.where(present & ~varies, 0.0, result.values)
    return Rounded(values, xp.where(varies, result.error, 0.0))


def scale(x: Rounded, *, over: Axis, counts: Counts = None, floor: Any = None) -> Rounded:
    """Divide values that are centred already by their `spread`, or by `floor` if that is larger.

    No spread: exactly 0. One value alone has no spread.

    Args:
        x: Centred values.
        over: The axes of the spread.
        counts: How often each value counts in the spread; left out: once.
        floor: A spread that is noise or too small to matter, in the unit of `x`: what varies less
            is divided by it, and so not blown up to unit size.
    """
    std = spread(x, over=over, counts=counts)
    if floor is not None:
        xp = array_namespace(std)
        std = xp.where(std > 0, xp.maximum(std, floor), 0.0)
    return divide(x, std)


def spread(x: Rounded, *, over: Axis, counts: Counts = None) -> Float[Any, "..."]:
    r"""Sample standard deviation $\sqrt{\sum_i x_i^2 / (n - 1)}$ of centred values.

    Returns:
        In the unit of `x`, with the axes `over` kept at length 1; exactly 0 for fewer than two
        values, and where it is no larger than the rounding error beneath it.
    """
    xp = array_namespace(x.values)
    present = ~xp.isnan(x.values)
    degrees = _count(x.values, over, counts, less=1)
    std = _root_mean_square(xp.where(present, x.values, 0.0), degrees, over, counts)
    noise = _root_mean_square(x.error, degrees, over, counts)
    return xp.where(std > _SAFETY * noise, std, 0.0)


def standardize(x: Rounded, *, over: Axis, counts: Counts = None, floor: Any = None) -> Rounded:
    r"""Mean 0 and spread 1: $z_i = (x_i - \bar x) / s$; exactly 0 where nothing varies."""
    return scale(centre(x, over=over, counts=counts), over=over, counts=counts, floor=floor)


def times(x: Rounded, factor: Any) -> Rounded:
    """Multiply with an exact factor of a shape that fits."""
    xp = array_namespace(x.values)
    return Rounded(x.values * factor, x.error * xp.abs(factor))


def divide(x: Rounded, divisor: Any) -> Rounded:
    """Divide by an exact spread of a shape that fits; a spread of 0 gives exactly 0."""
    xp = array_namespace(x.values)
    by = xp.where(divisor > 0, divisor, 1.0)
    values = xp.where((divisor > 0) | xp.isnan(x.values), x.values / by, 0.0)
    return Rounded(values, x.error / by)


def below(values: Any, bound: Any, *, size: Any) -> Any:
    """Where a sum is below the bound by more than rounding, for terms of this total size."""
    xp = array_namespace(values)
    return values + _SAFETY**2 * xp.finfo(values.dtype).eps * size < bound


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


def soft_minimum(x: Rounded, weights: Float[Any, " reward"], *, sharpness: Number) -> Rounded:
    r"""Smooth minimum over the rewards that apply.

    $$ -\frac{1}{\kappa} \log \frac{\sum_k w_k e^{-\kappa x_k}}{\sum_k w_k} $$

    The weighted mean as $\kappa \to 0$, the minimum as $\kappa \to \infty$; exactly 0 where all are
    0. The weights must not be negative.
    """
    xp = array_namespace(x.values)
    applies = ~xp.isnan(x.values) & (weights != 0)
    present = xp.any(applies, axis=-1)
    exponents = xp.where(applies, -sharpness * x.values, -xp.inf)
    largest = xp.where(present, xp.max(exponents, axis=-1), 0.0)
    shares = xp.where(applies, weights, 0.0)
    terms = shares * xp.exp(exponents - largest[..., None])
    # The same sum over the same axis: equal terms give a ratio of exactly 1.
    whole = xp.where(present, xp.sum(shares, axis=-1), 1.0)
    ratio = xp.where(present, xp.sum(terms, axis=-1) / whole, 1.0)
    values = -(largest + xp.log(ratio)) / sharpness
    size = xp.max(xp.where(applies, xp.abs(x.values), 0.0), axis=-1)
    rounding = xp.finfo(values.dtype).eps * (size + 1 / sharpness)
    error = xp.where(size > 0, xp.max(x.error, axis=-1) + rounding, 0.0)
    return Rounded(xp.where(present, values, xp.nan), xp.where(present, error, 0.0))


def present_in(x: Rounded, *, over: Axis) -> Float[Any, "..."]:
    """Number of values that are there, at least 1, with the axes `over` kept at length 1."""
    return _count(x.values, over, None)


def mean(x: Float[Any, "..."], *, over: Axis) -> Float[Any, "..."]:
    """Mean of the values that are there, with the axes `over` kept at length 1; NaN if none is."""
    xp = array_namespace(x)
    present = ~xp.isnan(x)
    total = xp.sum(xp.where(present, x, 0.0), axis=over, keepdims=True)
    return xp.where(
        xp.any(present, axis=over, keepdims=True), total / _count(x, over, None), xp.nan
    )


def correlation(z: Rounded, *, shrinkage: Number = 0.0) -> Float[Any, "reward reward"]:
    r"""Correlation of standardized rewards over the batch: $\sum z_k z_l / (|z_k| |z_l|)$.

    A missing value counts as average. A reward without spread correlates with nothing but itself.

    Args:
        z: Standardized in each group.
        shrinkage: $\lambda$ of $(1 - \lambda) C + \lambda I$, which has no eigenvalue below it.
    """
    xp = array_namespace(z.values)
    columns = xp.reshape(xp.where(xp.isnan(z.values), 0.0, z.values), (-1, z.values.shape[-1]))
    length = xp.sqrt(xp.sum(columns * columns, axis=0))
    unit = columns / xp.where(length > 0, length, 1.0)
    itself = xp.eye(columns.shape[-1], dtype=columns.dtype, device=device(columns))
    return xp.where(itself > 0, 1.0, (1 - shrinkage) * xp.matmul(unit.T, unit))


def decorrelated(
    weights: Float[Any, " reward"], correlations: Float[Any, "reward reward"], *, power: Number
) -> Float[Any, " reward"]:
    r"""Weights that undo correlation: $w' = C^{-\alpha} w$, for a positive definite $C$."""
    xp = array_namespace(correlations)
    values, vectors = xp.linalg.eigh(correlations)
    rotated = xp.matmul(weights, vectors)
    return xp.matmul(vectors, values**-power * rotated)


def leave_one_out(x: Rounded) -> Rounded:
    """For each sample, the others of its group: `[prompt, left out, sample, reward]`."""
    xp = array_namespace(x.values)
    size = x.values.shape[SAMPLES]
    left_out = xp.eye(size, dtype=x.values.dtype, device=device(x.values))[None, :, :, None] > 0
    values, error = x.values[:, None, :, :], x.error[:, None, :, :]
    return Rounded(xp.where(left_out, xp.nan, values), xp.where(left_out, 0.0, error))


def _significant(values: Any, error: Any, rounding: Any, present: Any) -> Rounded:
    """Zero what the last operation's rounding alone explains; NaN what is missing."""
    xp = array_namespace(values)
    values = xp.where(xp.abs(values) <= _SAFETY * rounding, 0.0, values)
    return Rounded(xp.where(present, values, xp.nan), xp.where(present, error, 0.0))


def _root_mean_square(values: Any, degrees: Any, over: Axis, counts: Counts) -> Any:
    """Of the ratios to the largest value: squares of tiny or huge numbers would leave the range."""
    xp = array_namespace(values)
    largest = xp.max(xp.abs(values), axis=over, keepdims=True)
    ratios = values / xp.where(largest > 0, largest, 1.0)
    return largest * xp.sqrt(_total(ratios * ratios, over, counts) / degrees)


def _total(values: Any, over: Axis, counts: Counts) -> Any:
    xp = array_namespace(values)
    return xp.sum(values if counts is None else counts * values, axis=over, keepdims=True)


def _count(values: Any, over: Axis, counts: Counts, *, less: int = 0) -> Any:
    """Number of values that are there, less some, but at least 1: a divisor of the same dtype."""
    xp = array_namespace(values)
    present = xp.astype(~xp.isnan(values), values.dtype)
    count = _total(present, over, counts) - less
    return xp.where(count > 0, count, 1.0)
