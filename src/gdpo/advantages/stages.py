"""Provides the building blocks of all estimators: centre, scale, standardize, times, weighted sum.

A stage takes and returns `Rounded` arrays, which store values and a bound on their rounding error.
A value within this bound is set to exactly 0, so a group without signal gives exactly 0 instead of
amplified noise. NaN marks a missing value. Stages exclude missing values from every statistic and
return them as NaN.

The `arrays` module converts between a caller's array and `Rounded`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any

from array_api_compat import array_namespace, device
from jaxtyping import Bool, Float

Axis = int | tuple[int, ...]

Number = float | int

PreparedWeights = Float[Any, "*prompts reward"]
"""Weights that broadcast over the samples: `[reward]`, or `[prompt, 1, reward]`."""

Counts = Any
"""How many times each value counts in a statistic, as an array of the same shape. None: each value
counts once."""

SAMPLES = 1
"""Axis of a prompt's samples. Statistics over this axis are per group."""

BATCH = (0, 1)
"""Axes of the prompts and samples. Statistics over these axes are per batch."""

_SAFETY = 8
"""Multiple of the first-order rounding error that a value must exceed to count as nonzero.

Several operations are applied to a user's values before the comparison, and each operation adds up
to half a unit in the last place."""


_MARGIN = 4
"""Multiple of the rounding noise that the spread of a group must exceed to count.

Dividing by a spread just above the rounding noise would give scores that are mostly error. The sum
of the rewards would inherit this error, and batch normalization would then treat the other rewards
as noise too."""


_namespaces: dict[type, Any] = {}


def namespace(array: Any) -> Any:
    """Return the array-api-compat namespace of an array. The result is cached by type."""
    found = _namespaces.get(type(array))
    if found is None:
        found = _namespaces[type(array)] = array_namespace(array)
    return found


@dataclass(frozen=True, slots=True)
class Rounded:
    """Stores an array and a bound on the rounding error of its values."""

    values: Any
    """The values. NaN: missing."""
    error: Any
    """Bound on the rounding error, in the unit of `values`, in a shape that broadcasts to `values`.
    0 means that the values are exact. If one bound covers a whole group, stages ignore the bound at
    missing values.
    """
    complete: bool = False
    """True: no value is missing. False: some values may be missing."""

    @property
    def xp(self) -> Any:
        """Return the array library of the values."""
        return namespace(self.values)


def centre(x: Rounded, *, over: Axis, counts: Counts = None) -> Rounded:
    r"""Subtract the mean of the available values: $x_i - \bar x$.

    The result is exactly 0 if the values do not vary. One of the values is subtracted first, so
    that identical values give exactly 0 and a common offset causes no loss of precision.

    Args:
        x: Values to center.
        over: Axes over which the mean is computed.
        counts: How many times each value counts in the mean. None: each value counts once.
    """
    xp = x.xp
    centred, divisor = _centred(x, over, counts)
    return times(centred, xp.astype(xp.isfinite(divisor), centred.values.dtype))


def scale(x: Rounded, *, over: Axis, counts: Counts = None, floor: Any = None) -> Rounded:
    """Divide centered values by their `spread`, or by `floor` if that is larger.

    If the spread is 0, the result is exactly 0. The spread of a single value is 0.

    Args:
        x: Centered values.
        over: Axes over which the spread is computed.
        counts: How many times each value counts in the spread. None: each value counts once.
        floor: Smallest divisor, in the unit of `x`, so that noise is not scaled up to unit size.
            None: no floor.
    """
    xp = x.xp
    std = spread(x, over=over, counts=counts)
    return _over(x, xp.where(std > 0, std, xp.inf), floor)


def spread(x: Rounded, *, over: Axis, counts: Counts = None) -> Float[Any, "..."]:
    r"""Return the sample standard deviation $\sqrt{\sum_i x_i^2 / (n - 1)}$ of centered values.

    Returns:
        The standard deviation in the unit of `x`, with the axes `over` kept at length 1. The result
        is exactly 0 for fewer than two values, and for a spread that does not exceed the rounding
        error.
    """
    xp = x.xp
    present = _present(x, xp)
    values = _filled(x.values, present, xp)
    size = _total(xp.abs(values), over, counts, xp) / _count(x.values, present, over, counts)
    degrees = _count(x.values, present, over, counts, less=1)
    std = _root_mean_square(values, size, degrees, over, counts, xp)
    return xp.where(std > _bar(_typical(x.error, over, xp), over), std, 0.0)


def raw_spread(x: Rounded, *, over: Axis) -> Float[Any, "..."]:
    """Return the sample standard deviation of raw values, or 0 where `standardize` gives 0.

    Calling `centre` and then `spread` gives the same value, but with twice the bound on the
    rounding error, because centering adds an error as large as the values' own error.
    """
    xp = x.xp
    _, divisor = _centred(x, over, None)
    return xp.where(xp.isfinite(divisor), divisor, 0.0)


def standardize(x: Rounded, *, over: Axis, counts: Counts = None, floor: Any = None) -> Rounded:
    r"""Scale to mean 0 and spread 1: $z_i = (x_i - \bar x) / s$, or exactly 0 if $s = 0$."""
    centred, divisor = _centred(x, over, counts)
    return _over(centred, divisor, floor)


def times(x: Rounded, factor: Any) -> Rounded:
    """Multiply by an exact factor of a broadcastable shape."""
    xp = x.xp
    return Rounded(x.values * factor, x.error * xp.abs(factor), x.complete)


def divide(x: Rounded, divisor: Any) -> Rounded:
    """Divide by an exact spread of a broadcastable shape. A spread of 0 gives exactly 0."""
    xp = x.xp
    return _over(x, xp.where(divisor > 0, divisor, xp.inf))


def below(values: Any, bound: Any, *, size: Any) -> Any:
    """Return a mask of the values that are below the bound by more than rounding error."""
    xp = namespace(values)
    return values + _SAFETY * rounding_of(size, _eps(xp, values.dtype)) < bound


def weighted_sum(x: Rounded, weights: PreparedWeights) -> Rounded:
    r"""Return the sum over the rewards that apply: $\sum_k w_k x_k$.

    A reward with weight 0 is ignored. If no reward applies, the sum is missing.
    """
    xp = x.xp
    applies = None if x.complete else ~xp.isnan(x.values) & (weights != 0)
    terms = weights * _filled(x.values, applies, xp)
    rounding = rounding_of(xp.sum(xp.abs(terms), axis=-1), _eps(xp, terms.dtype))
    error = xp.sum(_filled(xp.abs(weights) * x.error, applies, xp), axis=-1) + rounding
    total = xp.sum(terms, axis=-1)
    values = xp.where(xp.abs(total) > rounding, total, 0.0)
    if applies is None:
        return Rounded(values, error, complete=True)
    present = xp.any(applies, axis=-1)
    return Rounded(xp.where(present, values, xp.nan), xp.where(present, error, 0.0))


def rounding_of(size: Any, eps: float) -> Any:
    """Return the rounding error of a few operations on values of this size, in their unit.

    Args:
        size: Size of the values.
        eps: Relative rounding error of one operation.
    """
    return _SAFETY * eps * size


def soft_minimum(x: Rounded, weights: PreparedWeights, *, sharpness: Number) -> Rounded:
    r"""Return the smooth minimum over the rewards that apply.

    $$ -\frac{1}{\kappa} \log \frac{\sum_k w_k e^{-\kappa x_k}}{\sum_k w_k} $$

    The result approaches the weighted mean for $\kappa \to 0$ and the minimum for
    $\kappa \to \infty$. If all values are 0, the result is exactly 0. The weights must not be
    negative.
    """
    xp = x.xp
    applies = ~xp.isnan(x.values) & (weights != 0)
    present = xp.any(applies, axis=-1)
    exponents = xp.where(applies, -sharpness * x.values, -xp.inf)
    largest = xp.where(present, xp.max(exponents, axis=-1), 0.0)
    shares = xp.where(applies, weights, 0.0)
    terms = shares * xp.exp(exponents - largest[..., None])
    # Both sums are over the same axis, so that equal terms give a ratio of exactly 1.
    whole = xp.where(present, xp.sum(shares, axis=-1), 1.0)
    ratio = xp.where(present, xp.sum(terms, axis=-1) / whole, 1.0)
    values = -(largest + xp.log(ratio)) / sharpness
    size = xp.max(xp.where(applies, xp.abs(x.values), 0.0), axis=-1)
    rounding = rounding_of(size + 1 / sharpness, _eps(xp, size.dtype))
    error = xp.where(size > 0, xp.max(xp.where(applies, x.error, 0.0), axis=-1) + rounding, 0.0)
    return Rounded(xp.where(present, values, xp.nan), xp.where(present, error, 0.0))


def present_in(x: Rounded, *, over: Axis) -> Float[Any, "..."]:
    """Return the number of available values, at least 1, with the axes `over` kept at length 1."""
    xp = x.xp
    return _count(x.values, ~xp.isnan(x.values), over, None)


def mean(x: Float[Any, "..."], *, over: Axis) -> Float[Any, "..."]:
    """Return the mean of the available values, or NaN, with the axes `over` kept at length 1."""
    xp = namespace(x)
    present = ~xp.isnan(x)
    total = xp.sum(xp.where(present, x, 0.0), axis=over, keepdims=True)
    return xp.where(
        xp.any(present, axis=over, keepdims=True), total / _count(x, present, over, None), xp.nan
    )


def correlation(z: Rounded, *, shrinkage: Number = 0.0) -> Float[Any, "reward reward"]:
    r"""Return the correlation of standardized rewards, $\sum z_k z_l / (|z_k| |z_l|)$.

    The sum is over the batch. A missing value counts as average. A constant reward is correlated
    only with itself.

    Args:
        z: Rewards standardized in each group.
        shrinkage: $\lambda$ in $(1 - \lambda) C + \lambda I$, from 0 to 1. A positive value bounds
            the eigenvalues from below.
    """
    xp = z.xp
    columns = xp.reshape(xp.where(xp.isnan(z.values), 0.0, z.values), (-1, z.values.shape[-1]))
    length = xp.sqrt(xp.sum(columns * columns, axis=0))
    unit = columns / xp.where(length > 0, length, 1.0)
    itself = xp.eye(columns.shape[-1], dtype=columns.dtype, device=device(columns))
    return xp.where(itself > 0, 1.0, (1 - shrinkage) * xp.matmul(unit.T, unit))


def decorrelated(
    weights: PreparedWeights, correlations: Float[Any, "*each reward reward"], *, power: Number
) -> PreparedWeights:
    r"""Return $w' = C^{-\alpha} w$, for a positive definite $C$ (or one for each prompt)."""
    xp = namespace(correlations)
    values, vectors = xp.linalg.eigh(correlations)
    powered = xp.matmul(vectors * values[..., None, :] ** -power, xp.matrix_transpose(vectors))
    return xp.matmul(weights, powered)


def used_rewards(weights: PreparedWeights) -> Bool[Any, " reward"]:
    """Return a mask `[reward]` of the rewards whose weight is not 0 for every prompt."""
    xp = namespace(weights)
    return xp.any(xp.reshape(weights, (-1, weights.shape[-1])) != 0, axis=0)


def spread_of_others(x: Rounded) -> Float[Any, "prompt sample reward"]:
    """Return, for each centered sample, the `spread` of the other samples in its group."""
    xp = x.xp
    error = xp.max(x.error, axis=SAMPLES, keepdims=True)
    each = [  # one reward at a time, because the moments need more than ten times its memory
        _spread_of_others(x.values[:, :, k], error[:, :, k]) for k in range(x.values.shape[-1])
    ]
    return xp.permute_dims(xp.stack(each), (1, 2, 0))


def _spread_of_others(x: Any, error: Any) -> Float[Any, "prompt sample"]:
    """Return the spread of the other samples in the group, for one reward.

    The moments of the samples before and after each sample are merged. Subtracting the sample from
    a sum over the group would leave rounding errors if one sample is much larger than the others.
    """
    xp = namespace(x)
    present = ~xp.isnan(x)
    values = _filled(x, present, xp)
    unit = _total(xp.abs(values), SAMPLES, None, xp) / _count(x, present, SAMPLES, None)
    unit = unit + _tiniest(xp, unit.dtype)
    each = _Moments(xp.astype(present, x.dtype), values / unit, xp.zeros_like(values))
    flip = partial(xp.flip, axis=SAMPLES)
    others = _before(each).with_others(_before(each.changed(flip)).changed(flip))
    std = unit * xp.sqrt(others.squares / xp.where(others.count > 1, others.count - 1, 1.0))
    return xp.where(std > _bar(2 * error, SAMPLES), std, 0.0)  # error of values and mean


@dataclass(frozen=True, slots=True)
class _Moments:
    """Stores the count, mean and sum of squares of values. All are 0 if there are no values."""

    count: Any
    mean: Any
    squares: Any
    """Sum of the squared distances from the mean."""

    def with_others(self, others: "_Moments") -> "_Moments":
        """Return the combined moments (Chan et al. 1979). Exact if all values are identical."""
        xp = namespace(self.mean)
        count = self.count + others.count
        share = others.count / xp.where(count > 0, count, 1.0)
        apart = others.mean - self.mean
        between = self.count * share * apart * apart
        return _Moments(count, self.mean + share * apart, self.squares + others.squares + between)

    def later(self, steps: int) -> "_Moments":
        """Return the moments shifted by this many samples, with zeros at the first positions."""
        xp = namespace(self.mean)
        return self.changed(
            lambda part: xp.concat([xp.zeros_like(part[:, :steps]), part[:, :-steps]], axis=SAMPLES)
        )

    def changed(self, change: Callable[[Any], Any]) -> "_Moments":
        """Return the moments with the same change applied to all three arrays."""
        return _Moments(change(self.count), change(self.mean), change(self.squares))


def _before(each: _Moments) -> _Moments:
    """Return, for each sample, the moments of all samples before it, by repeated doubling."""
    found, steps = each.later(1), 1
    while steps < each.mean.shape[SAMPLES]:
        found = found.later(steps).with_others(found)
        steps *= 2
    return found


def _centred(x: Rounded, over: Axis, counts: Counts) -> tuple[Rounded, Any]:
    """Return the centered values and the divisor: the spread, or infinity for pure noise."""
    xp = x.xp
    present = _present(x, xp)
    count = _count(x.values, present, over, counts)
    values = _filled(x.values - _one_of(x.values, present, over, xp), present, xp)
    mean = _total(values, over, counts, xp) / count
    values = _filled(values - mean, present, xp)
    distance = xp.abs(values)
    size = _total(distance, over, counts, xp) / count
    rounding = rounding_of(xp.abs(mean) + size, _eps(xp, size.dtype))
    values = xp.where(distance > rounding, values, 0.0)
    del distance  # an array as large as the batch, no longer needed
    degrees = _count(x.values, present, over, counts, less=1)
    std = _root_mean_square(values, size, degrees, over, counts, xp)
    noise = _typical(x.error, over, xp) + rounding
    divisor = xp.where(std > _bar(noise, over), std, xp.inf)
    return Rounded(_filled(values, present, xp, xp.nan), x.error + noise, x.complete), divisor


def _over(x: Rounded, divisor: Any, floor: Any = None) -> Rounded:
    """Return the quotient. An infinite divisor means no spread, so the result is exactly 0."""
    if floor is not None:
        divisor = namespace(divisor).maximum(divisor, floor)
    return Rounded(x.values / divisor, x.error / divisor, x.complete)


def _present(x: Rounded, xp: Any) -> Any:
    """Return a mask of the available values. None: all values are available."""
    return None if x.complete else ~xp.isnan(x.values)


def _filled(values: Any, present: Any, xp: Any, gap: Number = 0.0) -> Any:
    """Return the values, with missing values replaced by `gap`."""
    return values if present is None else xp.where(present, values, gap)


def _one_of(values: Any, present: Any, over: Axis, xp: Any) -> Any:
    """Return one available value: the first, or the largest if the first is missing."""
    axes = (over,) if isinstance(over, int) else over
    start = tuple(slice(0, 1) if i in axes else slice(None) for i in range(values.ndim))
    if present is None:
        return values[start]
    largest = xp.max(xp.where(present, values, -xp.inf), axis=over, keepdims=True)
    return xp.where(present[start], values[start], largest)


def _root_mean_square(
    values: Any, size: Any, degrees: Any, over: Axis, counts: Counts, xp: Any
) -> Any:
    """Return the root mean square, computed on ratios to the mean size to avoid overflow."""
    unit = size + _tiniest(xp, size.dtype)
    ratios = values / unit
    return unit * xp.sqrt(_total(ratios * ratios, over, counts, xp) / degrees)


def _bar(noise: Any, over: Axis) -> Any:
    """Return the threshold for a spread. A spread over the batch needs no margin."""
    return noise if over == BATCH else _MARGIN * noise


def _typical(error: Any, over: Axis, xp: Any) -> Any:
    """Return an upper bound on the root mean square of the errors, computed without squaring."""
    axes = (over,) if isinstance(over, int) else over
    if all(error.shape[axis] == 1 for axis in axes):
        return error
    mean = xp.mean(error, axis=over, keepdims=True)
    return xp.sqrt(mean) * xp.sqrt(xp.max(error, axis=over, keepdims=True))


def _total(values: Any, over: Axis, counts: Counts, xp: Any) -> Any:
    return xp.sum(values if counts is None else counts * values, axis=over, keepdims=True)


def _count(values: Any, present: Any, over: Axis, counts: Counts, *, less: int = 0) -> Any:
    """Return the number of available values minus `less`, at least 1, as a divisor."""
    axes = (over,) if isinstance(over, int) else over
    if present is None and counts is None:
        return max(1, prod(values.shape[axis] for axis in axes) - less)
    xp = namespace(values)
    there = xp.ones_like(values) if present is None else xp.astype(present, values.dtype)
    count = _total(there, over, counts, xp) - less
    return xp.where(count > 0, count, 1.0)


@cache
def _eps(xp: Any, dtype: Any) -> float:
    return float(xp.finfo(dtype).eps)


@cache
def _tiniest(xp: Any, dtype: Any) -> float:
    return float(xp.finfo(dtype).smallest_normal)
