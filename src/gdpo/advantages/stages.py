"""Provides the building blocks of all estimators: centre, scale, standardize, times, weighted sum.

A stage takes and returns `Rounded` arrays, which store values and a bound on their rounding error.
A value within this bound becomes exactly 0, so that a group without signal gives no amplified
noise. Stages exclude missing values (NaN) from every statistic and return them as NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

from array_api_compat import array_namespace, device

from gdpo._shapes import Bool, Float
from gdpo.advantages._types import Number

Axis = int | tuple[int, ...]

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


def centre(x: Rounded, *, over: Axis) -> Rounded:
    r"""Subtract the mean of the available values: $x_i - \bar x$.

    One value is subtracted first, so that identical values give exactly 0 and a common offset costs
    no precision.
    """
    values, std = centred(x, over=over)
    return times(values, namespace(std).astype(std > 0, std.dtype))


def scale(x: Rounded, *, over: Axis, floor: Any = None) -> Rounded:
    """Divide centered values by the larger of their `spread` and `floor`. A spread of 0 gives 0.

    The floor is in the unit of `x`.
    """
    return divide(x, spread(x, over=over), floor)


def spread(x: Rounded, *, over: Axis) -> Float[Any, "..."]:
    r"""Return the sample standard deviation $\sqrt{\sum_i x_i^2 / (n - 1)}$ of centered values.

    Returns:
        The standard deviation in the unit of `x`, with the axes `over` kept at length 1. Exactly 0
        for fewer than two values or a spread within the rounding error.
    """
    xp = namespace(x.values)
    counted = _counted(x, over)
    present = counted.present
    values = x.values if present is None else xp.where(present, x.values, 0.0)
    size = counted.total(xp.abs(values)) / counted.count
    return _deviation(values, counted, size, error=x.error)[0]


def standardize(x: Rounded, *, over: Axis, counts: Counts = None, floor: Any = None) -> Rounded:
    r"""Scale to mean 0 and spread 1: $z_i = (x_i - \bar x) / s$, or exactly 0 if $s = 0$.

    With `counts`, each value counts as many times as its count. `floor` is that of `scale`.
    """
    return divide(*centred(x, over=over, counts=counts), floor)


def times(x: Rounded, factor: Any) -> Rounded:
    """Multiply by an exact factor of a broadcastable shape."""
    xp = x.xp
    return Rounded(x.values * factor, x.error * xp.abs(factor), x.complete)


def divide(x: Rounded, divisor: Any, floor: Any = None) -> Rounded:
    """Divide by an exact spread of a broadcastable shape, or by `floor` if that is larger.

    A spread of 0 gives exactly 0, even with a floor.
    """
    xp = namespace(divisor)
    divisor = xp.where(divisor > 0, divisor, xp.inf)
    if floor is not None:
        divisor = xp.maximum(divisor, floor)
    return Rounded(x.values / divisor, x.error / divisor, x.complete)


def below(values: Any, bound: Any, *, size: Any) -> Any:
    """Return a mask of the values that are below the bound by more than rounding error."""
    xp = namespace(values)
    return values + _SAFETY * (rounding(xp, values.dtype) * size) < bound


def weighted_sum(x: Rounded, weights: PreparedWeights) -> Rounded:
    r"""Return the sum over the rewards that apply: $\sum_k w_k x_k$.

    A reward with weight 0 is ignored. If no reward applies, the sum is missing.
    """
    xp = namespace(x.values)
    values, errors = x.values, xp.abs(weights) * x.error
    applies = None if x.complete else ~xp.isnan(values) & (weights != 0)
    if applies is not None:
        values, errors = xp.where(applies, values, 0.0), xp.where(applies, errors, 0.0)
    terms = weights * values
    noise = rounding(xp, terms.dtype) * xp.sum(xp.abs(terms), axis=-1)
    error = xp.sum(errors, axis=-1) + noise
    total = xp.sum(terms, axis=-1)
    total = xp.where(xp.abs(total) > noise, total, 0.0)
    if applies is None:
        return Rounded(total, error, complete=True)
    present = xp.any(applies, axis=-1)
    return Rounded(xp.where(present, total, xp.nan), xp.where(present, error, 0.0))


@cache
def rounding(xp: Any, dtype: Any) -> float:
    """Return the relative rounding error of a few operations."""
    return _SAFETY * float(xp.finfo(dtype).eps)


def soft_minimum(x: Rounded, weights: PreparedWeights, *, sharpness: Number) -> Rounded:
    r"""Return the smooth minimum over the rewards that apply.

    $$ -\frac{1}{\kappa} \log \frac{\sum_k w_k e^{-\kappa x_k}}{\sum_k w_k} $$

    It approaches the weighted mean for $\kappa \to 0$ and the minimum for $\kappa \to \infty$. If
    all values are 0, it is exactly 0. Weights must not be negative.
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
    noise = rounding(xp, size.dtype) * (size + 1 / sharpness)
    error = xp.where(size > 0, xp.max(xp.where(applies, x.error, 0.0), axis=-1) + noise, 0.0)
    return Rounded(xp.where(present, values, xp.nan), xp.where(present, error, 0.0))


def present_in(x: Rounded, *, over: Axis) -> Float[Any, "..."]:
    """Return the number of available values, at least 1, with the axes `over` kept at length 1."""
    return _counted(Rounded(x.values, x.error), over).count


def without_oneself(count: Float[Any, "..."]) -> Float[Any, "..."]:
    """Return n / (n - 1), which turns a difference from the mean into one from the others' mean."""
    return count / namespace(count).where(count > 1, count - 1, 1.0)


def mean(x: Float[Any, "..."], *, over: Axis) -> Float[Any, "..."]:
    """Return the mean of the available values, or NaN, with the axes `over` kept at length 1."""
    xp = namespace(x)
    present, total, count = _counted(Rounded(x, 0.0), over)[:3]
    some = xp.any(present, axis=over, keepdims=True)
    return xp.where(some, total(xp.where(present, x, 0.0)) / count, xp.nan)


def correlation(z: Rounded, *, shrinkage: Number = 0.0) -> Float[Any, "reward reward"]:
    r"""Return the correlation of standardized rewards, $\sum z_k z_l / (|z_k| |z_l|)$.

    The sum is over the batch. A missing value counts as average. A constant reward is correlated
    only with itself. `shrinkage` is $\lambda$ in $(1 - \lambda) C + \lambda I$, which bounds the
    eigenvalues from below.
    """
    xp = z.xp
    columns = xp.reshape(xp.where(xp.isnan(z.values), 0.0, z.values), (-1, z.values.shape[-1]))
    length = xp.sqrt(xp.sum(columns * columns, axis=0))
    unit = columns / xp.where(length > 0, length, 1.0)
    itself = xp.eye(columns.shape[-1], dtype=columns.dtype, device=device(columns))
    return xp.where(itself > 0, 1.0, (1 - shrinkage) * xp.matmul(unit.T, unit))


def decorrelated(
    z: Rounded, weights: PreparedWeights, *, power: Number, shrinkage: Number
) -> PreparedWeights:
    r"""Return the weights $w' = C^{-\alpha} w$, with the `correlation` $C$ of the rewards.

    A weight of 0 stays 0, and its reward is left out of $C$. With weights per prompt, each prompt
    has the correlations of its rewards.
    """
    xp, used = z.xp, weights != 0
    c = correlation(Rounded(xp.where(used, z.values, 0.0), z.error), shrinkage=shrinkage)
    if weights.ndim > 1:
        itself = xp.eye(c.shape[-1], dtype=c.dtype, device=device(c))
        c = xp.where(used & xp.matrix_transpose(used), c, itself)
    values, vectors = xp.linalg.eigh(c)
    powered = xp.matmul(vectors * values[..., None, :] ** -power, xp.matrix_transpose(vectors))
    return xp.where(used, xp.matmul(weights, powered), 0.0)


def standardize_kept(total: Rounded, keep: Any) -> Rounded:
    """Multiply each kept sum by the kept share of its group, and standardize over the batch."""
    xp, values = total.xp, total.values
    kept = Rounded(xp.where(keep, values, xp.nan), xp.where(keep, total.error, 0.0))
    share = mean(xp.where(xp.isnan(values), xp.nan, xp.astype(keep, values.dtype)), over=SAMPLES)
    return standardize(times(kept, xp.where(xp.isnan(share), 0.0, share)), over=BATCH)


def used_rewards(weights: PreparedWeights) -> Bool[Any, " reward"]:
    """Return a mask `[reward]` of the rewards whose weight is not 0 for every prompt."""
    xp = namespace(weights)
    return xp.any(xp.reshape(weights, (-1, weights.shape[-1])) != 0, axis=0)


def spread_of_others(x: Rounded) -> Float[Any, "prompt sample reward"]:
    """Return the `spread` of the other samples in the group of each centered sample."""
    # The moments of the samples before and after each sample are merged. Subtracting the sample
    # from a sum would leave rounding errors if it is much larger than the others.
    xp, found = x.xp, list[Any]()
    largest = xp.max(x.error, axis=SAMPLES, keepdims=True)
    flip = partial(xp.flip, axis=SAMPLES)
    for k in range(x.values.shape[-1]):  # because the moments need more than ten times its memory
        reward, error = x.values[:, :, k], largest[:, :, k]
        present, total, count = _counted(Rounded(reward, error), SAMPLES)[:3]
        values = xp.where(present, reward, 0.0)
        unit = total(xp.abs(values)) / count + _tiniest(xp, values.dtype)
        each = _Moments(xp.astype(present, values.dtype), values / unit, xp.zeros_like(values))
        others = _before(each).with_others(_before(each.changed(flip)).changed(flip))
        std = unit * xp.sqrt(others.squares / xp.where(others.count > 1, others.count - 1, 1.0))
        found.append(xp.where(std > _MARGIN * 2 * error, std, 0.0))  # error of values and mean
    return xp.permute_dims(xp.stack(found), (1, 2, 0))


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
        return _Moments(change(self.count), change(self.mean), change(self.squares))


def _before(each: _Moments) -> _Moments:
    found, steps = each.later(1), 1
    while steps < each.mean.shape[SAMPLES]:
        found = found.later(steps).with_others(found)
        steps *= 2
    return found


class _Counted(NamedTuple):
    present: Any
    """Mask of the available values. None: all are available."""
    total: Callable[[Any], Any]
    count: Any
    """Number of available values, at least 1."""
    degrees: Any
    """Number of available values minus 1, at least 1."""
    axes: tuple[int, ...]


def _counted(x: Rounded, over: Axis, counts: Counts = None) -> _Counted:
    """Count the available values. With `counts`, sums repeat each value that many times."""
    xp = namespace(x.values)
    axes = (over,) if isinstance(over, int) else over
    plain = partial(xp.sum, axis=over, keepdims=True)
    total = plain if counts is None else lambda values: plain(counts * values)
    present = None if x.complete else ~xp.isnan(x.values)
    if present is None and counts is None:
        n = prod(map(x.values.shape.__getitem__, axes))
        return _Counted(present, total, n, max(1, n - 1), axes)
    there = xp.ones_like(x.values) if present is None else xp.astype(present, x.values.dtype)
    n = total(there)
    count, degrees = xp.where(n > 0, n, 1.0), xp.where(n - 1 > 0, n - 1, 1.0)
    return _Counted(present, total, count, degrees, axes)


def centred(x: Rounded, *, over: Axis, counts: Counts = None) -> tuple[Rounded, Any]:
    """Return the values minus their mean, and their sample standard deviation.

    The standard deviation is 0 where `standardize` gives 0. `spread` of `centre` gives the same
    value with twice the bound on the rounding error, because centering adds as large an error.
    """
    xp = namespace(x.values)
    present, total, count, _, axes = counted = _counted(x, over, counts)
    first = [slice(None)] * x.values.ndim
    for axis in axes:
        first[axis] = slice(1)
    one = x.values[tuple(first)]
    if present is None:
        values = x.values - one
        mean = total(values) / count
        values = values - mean
    else:  # the largest value stands for the first, if that is missing
        largest = xp.max(xp.where(present, x.values, -xp.inf), axis=over, keepdims=True)
        values = x.values - xp.where(present[tuple(first)], one, largest)
        mean = total(xp.where(present, values, 0.0)) / count
        values = xp.where(present, values - mean, 0.0)
    distance = xp.abs(values)
    size = total(distance) / count
    noise = rounding(xp, size.dtype) * (xp.abs(mean) + size)
    values = xp.where(distance > noise, values, 0.0)
    del distance  # an array as large as the batch, no longer needed
    std, noise = _deviation(values, counted, size, error=x.error, rounded=noise)
    if present is not None:
        values = xp.where(present, values, xp.nan)
    return Rounded(values, x.error + noise, x.complete), std


def _deviation(
    values: Any, over: _Counted, size: Any, *, error: Any, rounded: Any = 0.0
) -> tuple[Any, Any]:
    """Return the spread of centered values, or 0 within the noise, and the noise.

    Squares are of ratios to the mean size, so that they do not overflow. The noise bounds the root
    mean square of the errors, plus the rounding of centering. Over the batch, the spread needs no
    margin.
    """
    xp = namespace(values)
    unit = size + _tiniest(xp, size.dtype)
    ratios = values / unit
    std = unit * xp.sqrt(over.total(ratios * ratios) / over.degrees)
    if prod(map(error.shape.__getitem__, over.axes)) > 1:
        mean = xp.mean(error, axis=over.axes, keepdims=True)
        error = xp.sqrt(mean) * xp.sqrt(xp.max(error, axis=over.axes, keepdims=True))
    noise = error + rounded
    return xp.where(std > (noise if over.axes == BATCH else _MARGIN * noise), std, 0.0), noise


@cache
def _tiniest(xp: Any, dtype: Any) -> float:
    return float(xp.finfo(dtype).smallest_normal)
