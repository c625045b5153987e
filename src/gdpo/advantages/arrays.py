"""The edge of the estimators: a caller's array becomes `Rounded`, and the result goes back.

The array library is the caller's (NumPy, torch, JAX, anything that array-api-compat knows).
"""

from collections.abc import Sequence
from functools import cache
from math import inf, isfinite, nan, prod
from typing import Any, TypeAlias

from array_api_compat import device, is_numpy_namespace, is_torch_array
from jaxtyping import Float, Real

from gdpo.advantages.stages import SAMPLES, Number, Rounded, mean, namespace, rounding_of
from gdpo.errors import ConfigError, DataError

Rewards: TypeAlias = Real[Any, "prompt sample reward"]
"""Raw rewards, each in its own unit. NaN: the reward does not apply to this rollout, or there is no
such rollout."""

Weights: TypeAlias = Real[Any, " reward"] | Sequence[float | int]
"""Importance of each reward. Dimensionless; 0 leaves a reward out."""

PerReward: TypeAlias = Real[Any, " reward"] | Sequence[float | int] | None
"""An option with one number per reward, each in the unit of its reward. NaN: not given; None:
none is."""

Advantages: TypeAlias = Float[Any, "prompt sample"]
"""What the policy gradient of each rollout is multiplied with."""


_SMALL = 8192
"""Numbers up to which a tensor is computed faster by NumPy, in float64, than by torch."""


def prepare(rewards: Rewards, weights: Weights) -> tuple[Rounded, Float[Any, " reward"]]:
    """Check an estimator's input and bring it into the dtype of the statistics.

    Returns:
        The rewards with their own rounding error, and the weights as an array beside them.

    Raises:
        DataError: Not three axes, or an infinite reward.
        ConfigError: A weight too many or too few, or one that is not finite.
    """
    r = rounded(rewards)
    xp = r.xp
    if is_torch_array(weights):
        weights = weights.detach() if is_torch_array(r.values) else weights.tolist()
    weights_array = xp.asarray(weights, dtype=r.values.dtype, device=device(r.values))
    _check_weights(weights_array, rewards.shape[-1])
    return r, weights_array


def rounded(rewards: Rewards) -> Rounded:
    """The rewards in the dtype of the statistics, with the rounding error that they carry.

    NumPy computes in float64, whatever comes in. Other libraries compute in the dtype of the
    rewards, in float32 at least (not every device has float64), and for whole numbers in their own
    default. A small tensor in the machine's memory becomes a NumPy array: torch takes longer to
    call than such a batch takes to compute.

    Raises:
        DataError: Not three axes, an empty one, or an infinite reward.
    """
    xp = namespace(rewards)
    if rewards.ndim != 3:
        raise DataError(
            f"rewards must have the axes [prompt, sample, reward], got the shape "
            f"{tuple(rewards.shape)}"
        )
    if 0 in rewards.shape:
        raise DataError(
            f"rewards have the shape {tuple(rewards.shape)} [prompt, sample, reward]: there is "
            "nothing to compare"
        )
    dtype, eps = _precision(xp, rewards.dtype)
    values = _rewards_apart(_in_its_precision(rewards, dtype))
    xp = namespace(values)
    size = xp.abs(values)
    typical = xp.sum(size, axis=SAMPLES, keepdims=True) / rewards.shape[SAMPLES]
    if isfinite(float(xp.max(typical))):  # neither NaN nor infinity
        return Rounded(values, rounding_of(typical, eps), complete=True)
    check_finite(values)
    if not bool(xp.any(xp.isnan(values))):
        raise DataError(f"rewards are too large for statistics in {values.dtype}: scale them down")
    typical = mean(size, over=SAMPLES)
    return Rounded(values, rounding_of(xp.where(xp.isnan(typical), 0.0, typical), eps))


def _in_its_precision(rewards: Any, dtype: Any) -> Any:
    """The rewards in the dtype of the statistics; a small tensor as NumPy's float64."""
    if not is_torch_array(rewards):
        return namespace(rewards).astype(rewards, dtype, copy=False)
    if rewards.device.type == "cpu" and prod(rewards.shape) <= _SMALL:
        return rewards.detach().double().numpy()
    return rewards.detach().to(dtype)


def _rewards_apart(rewards: Any) -> Any:
    """The same array, with the samples of one prompt and reward side by side in memory."""
    xp = namespace(rewards)
    prompts, samples, count = rewards.shape
    turned = xp.reshape(xp.permute_dims(rewards, (2, 0, 1)), (-1,))
    return xp.permute_dims(xp.reshape(turned, (count, prompts, samples)), (1, 2, 0))


def finish(
    advantages: Rounded, rewards: Rewards, *, max_advantage: Number | None = None
) -> Advantages:
    """The values in the caller's library, device and dtype; 0 where no reward applies.

    Args:
        advantages: `[prompt, sample]`.
        rewards: What the estimator was given.
        max_advantage: Larger ones, of either sign, are cut down to it.

    Raises:
        ConfigError: A `max_advantage` that is not positive.
        DataError: The advantages leave the range of the caller's dtype.
    """
    values = advantages.values
    xp = namespace(values)
    if not advantages.complete:
        values = xp.where(xp.isnan(values), 0.0, values)
    if max_advantage is not None:
        positive("max_advantage", max_advantage)
        values = xp.clip(values, -max_advantage, max_advantage)
    dtype, largest = _result_dtype(namespace(rewards), rewards.dtype)
    if not float(xp.max(xp.abs(values))) <= largest:  # neither infinity nor NaN is
        raise DataError(
            f"the advantages leave the range of {dtype}: use smaller rewards or weights"
        )
    return namespace(rewards).asarray(values, dtype=dtype)


def check_finite(rewards: Rewards, names: Sequence[str] | None = None) -> None:
    """Raise a DataError that names the first infinite reward and its place. NaN is allowed."""
    xp = namespace(rewards)
    infinite = xp.isinf(rewards)
    if not bool(xp.any(infinite)):
        return
    prompt, sample, reward = (int(index[0]) for index in xp.nonzero(infinite))
    name = f"reward {reward}" if names is None else f"reward {names[reward]!r}"
    raise DataError(
        f"{name} is {float(rewards[prompt, sample, reward])} at prompt {prompt}, sample {sample}. "
        f"Rewards must be finite, or NaN where a reward does not apply: bound the reward function"
    )


def per_reward(values: PerReward, beside: Rewards, *, name: str) -> Float[Any, " reward"]:
    """An option with one number per reward, as an array beside the rewards; None: all NaN.

    Raises:
        ConfigError: A number too many or too few, or an infinite one.
    """
    xp = namespace(beside)
    count = beside.shape[-1]
    if isinstance(values, list | tuple):
        values = [number(name, value) for value in values]
    array = xp.asarray(
        [nan] * count if values is None else values,
        dtype=beside.dtype,
        device=device(beside),
    )
    if array.shape != (count,):
        raise ConfigError(
            f"{name} needs one number per reward: {count} rewards, but {name} of shape "
            f"{tuple(array.shape)}"
        )
    if bool(xp.any(xp.isinf(array))):
        raise ConfigError(f"{name} must hold finite numbers, got {[float(v) for v in array]}")
    return array


def floors(noise_floor: PerReward, beside: Rewards) -> Float[Any, " reward"] | None:
    """The noise floor of each reward, 0 where none is given; None if there is none at all.

    Raises:
        ConfigError: A number too many or too few, a negative or an infinite one.
    """
    if noise_floor is None:
        return None
    xp = namespace(beside)
    array = per_reward(noise_floor, beside, name="noise_floor")
    if bool(xp.any(array < 0)):
        raise ConfigError(f"noise_floor must not be negative, got {[float(v) for v in array]}")
    return xp.where(xp.isnan(array), 0.0, array)


def per_rollout(
    counts: Real[Any, "prompt sample"], beside: Rewards, *, name: str
) -> Float[Any, "prompt sample"]:
    """An option with one count per rollout, as an array beside the rewards.

    Raises:
        ConfigError: It has another shape than the rollouts, or a value below 0, infinite or NaN.
    """
    xp = namespace(beside)
    array = xp.asarray(counts, dtype=beside.dtype, device=device(beside))
    shape = tuple(beside.shape[:2])
    if tuple(array.shape) != shape:
        raise ConfigError(
            f"{name} must have the shape {shape} [prompt, sample], got {tuple(array.shape)}"
        )
    if not bool(xp.all(xp.isfinite(array) & (array >= 0))):
        raise ConfigError(f"{name} must be counts, 0 or more, without NaN")
    return array


def number(name: str, value: Any) -> Number:
    """This option as it is; a ConfigError unless it is a number (true and false are none)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    return value


def positive(name: str, value: Number) -> None:
    """Raise a ConfigError unless this option is a finite number above 0."""
    if not 0 < number(name, value) < inf:
        raise ConfigError(f"{name} must be a finite number above 0, got {value}")


def in_range(name: str, value: Number, low: Number, high: Number) -> None:
    """Raise a ConfigError unless this option is in `[low, high]`."""
    if not low <= number(name, value) <= high:
        raise ConfigError(f"{name} must be from {low:g} to {high:g}, got {value}")


def _check_weights(weights: Float[Any, " reward"], count: int) -> None:
    xp = namespace(weights)
    if weights.shape != (count,):
        raise ConfigError(
            f"one weight per reward is needed: {count} rewards, but weights of shape "
            f"{tuple(weights.shape)}"
        )
    if not isfinite(float(xp.sum(xp.abs(weights)))):
        raise ConfigError(f"weights must be finite numbers, got {[float(w) for w in weights]}")


@cache
def _result_dtype(xp: Any, dtype: Any) -> tuple[Any, float]:
    """The dtype of the advantages of rewards of this dtype, and its largest number."""
    if not xp.isdtype(dtype, "real floating"):
        dtype, _ = _precision(xp, dtype)
    return dtype, float(xp.finfo(dtype).max)


@cache
def _precision(xp: Any, dtype: Any) -> tuple[Any, float]:
    """The dtype to compute in, and the relative rounding error that the input carries.

    A float32 array keeps its own rounding error in float64. Half precision does not count as an
    error: rewards are rarely the result of arithmetic in it, and 0.9 and 1.0 are eight of its units
    apart.
    """
    if not xp.isdtype(dtype, "real floating"):
        dtype = xp.asarray(0.0).dtype  # the library's own choice: JAX may have no float64
        return dtype, float(xp.finfo(dtype).eps)
    single, own = float(xp.finfo(xp.float32).eps), float(xp.finfo(dtype).eps)
    at_least_single = dtype if own <= single else xp.float32
    return (xp.float64 if is_numpy_namespace(xp) else at_least_single), min(own, single)
