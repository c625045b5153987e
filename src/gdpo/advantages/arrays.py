"""Converts a caller's array to `Rounded`, and results back to the caller's array library.

The library can be NumPy, torch, JAX or any other that array-api-compat supports.
"""

from collections.abc import Sequence
from functools import cache
from math import inf, isfinite, nan, prod
from sys import float_info
from typing import Any

import numpy as np
from array_api_compat import device, is_cupy_array, is_numpy_namespace, is_torch_array, to_device

from gdpo._shapes import Float
from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    PreparedWeights,
    Rounded,
    mean,
    namespace,
    rounding,
    standardize,
    used_rewards,
)
from gdpo.errors import ConfigError, DataError

_SMALL = 8192
"""Largest array size, in elements, for which NumPy in float64 is faster than torch."""


def prepare(
    rewards: Rewards, weights: Weights, *, reorder: bool = True
) -> tuple[Rounded, PreparedWeights]:
    """Check an estimator's input and convert it to the dtype of the statistics.

    With `reorder`, the samples of each prompt and reward become contiguous in memory, for fast
    statistics. Weights are returned as `[reward]`, or `[prompt, 1, reward]` for weights per prompt.
    Where a weight was NaN, the rewards are missing and the weight is 0. Infinite rewards and wrong
    axes raise a DataError, and wrong weights a ConfigError.
    """
    r = rounded(rewards, reorder=reorder)
    xp, (prompts, _, count) = namespace(r.values), r.values.shape
    if is_torch_array(weights):
        weights = weights.detach() if is_torch_array(r.values) else weights.tolist()
    w = xp.asarray(weights, dtype=r.values.dtype, device=device(r.values))
    own = w.ndim > 1  # each prompt has weights of its own
    w = w[:, 0, :] if w.shape == (prompts, 1, count) else w
    absent = xp.isnan(w)
    w = xp.where(absent, 0.0, w) if own else w
    shape = (prompts, count) if own else (count,)
    if tuple(w.shape) != shape:
        several = f"{prompts} prompts and " if own else ""
        raise ConfigError(
            f"weights have the shape {tuple(w.shape)}, but there are {several}{count} rewards: "
            "pass one weight per reward, or an array [prompt, reward]"
        )
    if not bool(xp.all(xp.isfinite(w))):
        flat = [float(weight) for weight in xp.reshape(w, (-1,))]
        first = [isfinite(weight) for weight in flat].index(False)
        raise ConfigError(
            f"weights must be finite numbers, but weight {first} of {len(flat)} is {flat[first]}: "
            "correct it. (In weights [prompt, reward], NaN is allowed and means that the reward "
            "does not apply to the prompt.)"
        )
    if not own:
        return r, w
    w, absent = w[:, None, :], absent[:, None, :]
    # Where all weights of a prompt are 0, no reward applies, so the sum is missing.
    complete = r.complete and not bool(xp.any(w == 0))
    values, error = xp.where(absent, xp.nan, r.values), xp.where(absent, 0.0, r.error)
    return Rounded(values, error, complete), w


def broadcast_weights(rewards: Rewards, weights: Weights) -> tuple[Rewards, Any]:
    """Return weights that broadcast with `[prompt, sample, reward]`, and rewards to match.

    One weight per reward is returned unchanged. Weights `[prompt, reward]` become `[prompt, 1,
    reward]` without NaN, and the rewards are NaN where a weight was NaN. Errors are those of
    `prepare`.
    """
    axes = getattr(weights, "ndim", None)
    if axes is None:
        nested = any(isinstance(each, Sequence) or getattr(each, "ndim", 0) for each in weights)
        axes = 2 if nested else 1
    if axes < 2:
        return rewards, weights
    r, w = prepare(rewards, weights)
    xp = namespace(rewards)
    where = {"dtype": _result_dtype(xp, rewards.dtype)[0], "device": device(rewards)}
    return xp.asarray(r.values, **where), xp.asarray(w, **where)


def rounded(rewards: Rewards, *, reorder: bool = True) -> Rounded:
    """Return the rewards in the dtype of the statistics, with their rounding error.

    Statistics of NumPy arrays are computed in float64. Other libraries use the dtype of the
    rewards, but at least float32. Integer rewards are converted to the library's default dtype, and
    a small torch tensor in CPU memory to NumPy, because torch's overhead would exceed the
    computation.
    """
    xp = namespace(rewards)
    if rewards.ndim != 3 or 0 in rewards.shape:
        raise wrong_axes(rewards, "prompt", "sample", "reward")
    dtype, noise = precision(xp, rewards.dtype)
    if not is_torch_array(rewards):
        values = xp.astype(rewards, dtype, copy=False)
    elif rewards.device.type == "cpu" and prod(rewards.shape) <= _SMALL:
        values = rewards.detach().double().numpy()
    else:
        values = rewards.detach().to(dtype)
    xp = namespace(values)
    if reorder:
        prompts, samples, count = values.shape
        turned = xp.reshape(xp.permute_dims(values, (2, 0, 1)), (-1,))
        values = xp.permute_dims(xp.reshape(turned, (count, prompts, samples)), (1, 2, 0))
    size = xp.abs(values)
    typical = xp.sum(size, axis=SAMPLES, keepdims=True) / rewards.shape[SAMPLES]
    if isfinite(float(xp.max(typical))):  # neither NaN nor infinity
        return Rounded(values, noise * typical, complete=True)
    check_finite(values)
    if not bool(xp.any(xp.isnan(values))):
        raise DataError(f"rewards are too large for statistics in {values.dtype}: scale them down")
    typical = mean(size, over=SAMPLES)
    return Rounded(values, noise * xp.where(xp.isnan(typical), 0.0, typical))


def wrong_axes(rewards: Any, *axes: str) -> DataError:
    """Return the error for rewards without these axes, or with an empty one."""
    return DataError(
        f"rewards have the shape {tuple(rewards.shape)}: pass an array with the axes "
        f"[{', '.join(axes)}], with at least one rollout and one reward"
    )


def finish(
    advantages: Rounded, rewards: Rewards, *, max_advantage: Number | None = None
) -> Advantages:
    """Convert advantages to the caller's library, device and dtype, with 0 where no reward applies.

    Raises:
        ConfigError: If `max_advantage` is not a finite number above 0.
        DataError: If an advantage is outside the range of the caller's dtype.
    """
    values = advantages.values
    xp = namespace(values)
    if not advantages.complete:
        values = xp.where(xp.isnan(values), 0.0, values)
    if max_advantage is not None:
        positive("max_advantage", max_advantage)
        values = xp.clip(values, -max_advantage, max_advantage)
    dtype, largest = _result_dtype(namespace(rewards), rewards.dtype)
    if not float(xp.max(xp.abs(values))) <= largest:  # also rejects infinity and NaN
        raise DataError(
            f"the advantages are outside the range of {dtype}: use smaller rewards or weights"
        )
    return namespace(rewards).asarray(values, dtype=dtype)


def as_numpy(array: Any) -> Any:
    """Return a NumPy array of the same precision, but at least single precision."""
    xp = namespace(array)
    if xp.isdtype(array.dtype, "real floating") and xp.finfo(array.dtype).bits < 32:
        array = xp.astype(array, xp.float32)
    if is_torch_array(array):
        array = array.detach()
    if is_torch_array(array) or is_cupy_array(array):
        array = to_device(array, "cpu")
    return np.asarray(array)


def check_finite(rewards: Any, names: Sequence[str] | None = None) -> None:
    """Raise a DataError with the reward and the rollout if a reward is infinite. NaN is allowed.

    The axes are `[prompt, sample, reward]` or `[prompt, sample, turn, reward]`.
    """
    xp = namespace(rewards)
    infinite = xp.isinf(rewards)
    if not bool(xp.any(infinite)):
        return
    place = tuple(int(index[0]) for index in xp.nonzero(infinite))
    name = place[-1] if names is None else repr(names[place[-1]])
    where = zip(("prompt", "sample", "turn"), place[:-1], strict=False)
    of_rollout = " to the rollout" if len(place) > 3 else ""
    raise DataError(
        f"reward {name} is {float(rewards[place])} at "
        f"{', '.join(f'{axis} {index}' for axis, index in where)}. Return a finite number, or NaN "
        f"where the reward does not apply{of_rollout}"
    )


def per_reward(values: PerReward, like: Rewards, *, name: str) -> Float[Any, " reward"]:
    """Return an option with one number per reward as an array. None becomes all NaN."""
    xp = namespace(like)
    count = like.shape[-1]
    if isinstance(values, list | tuple):
        values = [number(name, value) for value in values]
    array = xp.asarray(
        [nan] * count if values is None else values, dtype=like.dtype, device=device(like)
    )
    if array.shape != (count,):
        raise ConfigError(
            f"{name} has the shape {tuple(array.shape)}, but there are {count} rewards: pass one "
            "number per reward"
        )
    if bool(xp.any(xp.isinf(array))):
        raise ConfigError(f"{name} must be finite numbers, got {[float(v) for v in array]}")
    return array


def declared(values: PerReward, like: Rewards, *, name: str) -> Float[Any, " reward"]:
    """Return an option that needs one number for every reward, such as a range."""
    xp, array = namespace(like), per_reward(values, like, name=name)
    if bool(xp.any(xp.isnan(array))):
        raise ConfigError(
            f"{name} is missing for reward {int(xp.nonzero(xp.isnan(array))[0][0])}: this "
            "estimator needs the range of every reward. Set one number per reward"
        )
    return array


def above_low(r: Rounded, weights: PreparedWeights, low: PerReward) -> Float[Any, "..."]:
    """Return each reward's batch mean minus its lowest possible value, at least 0."""
    xp, bottom = r.xp, declared(low, r.values, name="low")
    means = mean(r.values, over=BATCH)
    above = means - bottom
    error = xp.max(r.error, axis=BATCH, keepdims=True)
    noise = error + rounding(xp, means.dtype) * (xp.abs(means) + xp.abs(bottom))
    below = xp.reshape((above < -noise) & used_rewards(weights), (-1,))
    if bool(xp.any(below)):
        k = int(xp.nonzero(below)[0][0])
        raise DataError(
            f"reward {k} has a mean below its declared lowest value {float(bottom[k])}: correct "
            "`low`, or fix the reward function"
        )
    return xp.where(above > noise, above, 0.0)


def floors(noise_floor: PerReward, like: Rewards) -> Float[Any, " reward"] | None:
    """Return the noise floor of each reward, 0 for one without. None: no floors."""
    if noise_floor is None:
        return None
    xp = namespace(like)
    array = per_reward(noise_floor, like, name="noise_floor")
    if bool(xp.any(array < 0)):
        raise ConfigError(f"noise_floor must be 0 or more, got {[float(v) for v in array]}")
    return xp.where(xp.isnan(array), 0.0, array)


def z_scores(r: Rounded, noise_floor: PerReward) -> Rounded:
    """Return the scores $z_k$: each reward standardized within its group, with this noise floor."""
    floor = None if noise_floor is None else floors(noise_floor, r.values)
    return standardize(r, over=SAMPLES, floor=floor)


def per_rollout(counts: Any, like: Rewards, *, name: str) -> Float[Any, "prompt sample"]:
    """Return an option with one non-negative count per rollout as an array."""
    xp = namespace(like)
    array = xp.asarray(counts, dtype=like.dtype, device=device(like))
    shape = tuple(like.shape[:2])
    if tuple(array.shape) != shape:
        raise ConfigError(
            f"{name} must have the shape {shape} [prompt, sample], got {tuple(array.shape)}"
        )
    if not bool(xp.all(xp.isfinite(array) & (array >= 0))):
        raise ConfigError(f"{name} must be finite, non-negative numbers")
    return array


def turn_counts(turns: Any, rewards: Any) -> Float[Any, "prompt sample"]:
    """Return the number of turns of each rollout as an array of the rewards' library.

    Raise a ConfigError if they are not integers from 0 to the length of the turn axis of the
    rewards, `[prompt, sample, turn, reward]`.
    """
    xp, longest = namespace(rewards), rewards.shape[2]
    dtype, _ = precision(xp, rewards.dtype)  # half precision cannot count to 257
    like = xp.astype(rewards[:, :, 0, :], dtype)
    try:
        counts = xp.asarray(turns, dtype=dtype, device=device(rewards))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"turns must be an array [prompt, sample] of numbers ({error}): pass the number of "
            "turns that each rollout took"
        ) from error
    counts = per_rollout(counts, like, name="turns")
    wrong = (counts != xp.floor(counts)) | (counts > longest)
    if bool(xp.any(wrong)):
        raise ConfigError(
            f"turns must be integers from 0 to {longest}, the length of the turn axis of the "
            f"rewards, got {float(counts[wrong][0]):g}: pass the number of turns that each rollout "
            "took"
        )
    return counts


def fixed_scale(scale: Number, like: Any, *, token_counts: Any) -> Any:
    """Return the divisor that replaces `gdpo`'s normalization over the batch.

    Raises:
        ConfigError: If the scale is negative or infinite, or there are token counts as well.
    """
    if token_counts is not None:
        raise ConfigError(
            "scale and token_counts cannot be combined: a mean weighted by tokens is not 0 in each "
            "group, so one number cannot replace the normalization. Remove one of them"
        )
    if not 0 <= number("scale", scale) < inf:
        raise ConfigError(f"scale must be a finite, non-negative number, got {scale}")
    return namespace(like).asarray(scale, dtype=like.dtype, device=device(like))


def number(name: str, value: Any) -> Number:
    """Return an option's value. Raise a ConfigError if the value is a bool or not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    if isinstance(value, int) and abs(value) > float_info.max:
        raise ConfigError(f"{name} must be at most {float_info.max:g}, got a larger integer")
    return value


def positive(name: str, value: Any) -> None:
    """Raise a ConfigError if an option's value is not a finite number above 0."""
    if not 0 < number(name, value) < inf:
        raise ConfigError(f"{name} must be a finite number above 0, got {value}")


def in_range(name: str, value: Any, low: Number, high: Number) -> None:
    """Raise a ConfigError if an option's value is not in `[low, high]`."""
    if not low <= number(name, value) <= high:
        raise ConfigError(f"{name} must be between {low:g} and {high:g}, got {value}")


@cache
def _result_dtype(xp: Any, dtype: Any) -> tuple[Any, float]:
    if not xp.isdtype(dtype, "real floating"):
        dtype, _ = precision(xp, dtype)
    return dtype, float(xp.finfo(dtype).max)


@cache
def precision(xp: Any, dtype: Any) -> tuple[Any, float]:
    """Return the dtype to compute in, and the relative `rounding` error of the input.

    A float32 array has the rounding error of float32 even if the statistics use float64. Half
    precision is treated as float32: rewards are rarely computed in it, and the bound for bfloat16
    would not distinguish 0.9 from 1.0.
    """
    if not xp.isdtype(dtype, "real floating"):
        dtype = xp.asarray(0.0).dtype  # the library's own choice: JAX may have no float64
        return dtype, rounding(xp, dtype)
    single, own = rounding(xp, xp.float32), rounding(xp, dtype)
    at_least_single = dtype if own <= single else xp.float32
    return (xp.float64 if is_numpy_namespace(xp) else at_least_single), min(own, single)
