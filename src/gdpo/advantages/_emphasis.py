"""Estimators that weight normalized rewards by their mean or standard deviation over the batch.

All of these estimators have the options `noise_floor` and `max_advantage`. A reward whose standard
deviation is below its noise floor is divided by the floor instead, so that noise is not amplified
to the size of a signal. `max_advantage` clips large advantages.
"""

from typing import Any

from gdpo.advantages.arrays import (
    Advantages,
    Number,
    PerReward,
    Rewards,
    Weights,
    finish,
    floors,
    in_range,
    per_reward,
    prepare,
)
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    centre,
    mean,
    namespace,
    rounding_of,
    spread,
    standardize,
    times,
    used_rewards,
    weighted_sum,
)
from gdpo.errors import ConfigError, DataError


def sa_mrpo(
    rewards: Rewards,
    weights: Weights,
    *,
    low: PerReward,
    high: PerReward,
    gamma: Number = 0.5,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO with less weight for rewards whose mean is near their maximum (SA-MRPO).

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k (1 - s_k)^\gamma z_k\Bigr), \qquad
       s_k = \frac{\mathrm{mean}_{\text{batch}}(r_k) - \mathrm{low}_k}
                  {\mathrm{high}_k - \mathrm{low}_k}. $$

    With $\gamma = 0$, the result is GDPO. Declare ranges that the rewards can actually reach. A
    reward that the policy has learned gets a weight near 0, so its value may decline again.

    Differences from the paper: no ε is added, and $s_k$ is clipped to $[0, 1]$.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance.
        low: Lowest possible value of each reward, in the reward's unit.
        high: Highest possible value of each reward, in the reward's unit.
        gamma: $\gamma$, at least 0. With a larger value, a reward loses weight earlier.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`. Over the rollouts that have a reward, the mean
        is 0 and the sample standard deviation is 1. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights`, a bound or an option has an invalid value or the wrong length.

    References:
        "SA-MRPO" 2026, https://arxiv.org/abs/2608.16072.

    Examples:
        The mean of the first reward is at 3/4 of its range, and the mean of the second is at 1/2.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> sa_mrpo(r, [1, 1], low=[0, 0], high=[1, 1]).round(4)
        array([[-1.2659,  0.8013, -0.3367,  0.8013]])
    """
    in_range("gamma", gamma, 0, float("inf"))
    r, w = prepare(rewards, weights)
    xp = r.xp
    bottom, width = _declared_range(low, high, r.values)
    saturation = (mean(r.values, over=BATCH) - bottom) / width
    room = xp.where(xp.isnan(saturation), 1.0, 1 - xp.clip(saturation, 0.0, 1.0))
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    total = weighted_sum(times(z, room**gamma), w)
    return finish(standardize(total, over=BATCH), rewards, max_advantage=max_advantage)


def saw(
    rewards: Rewards,
    weights: Weights,
    *,
    low: PerReward,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO with weights multiplied by each reward's coefficient of variation (SAW).

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k \omega_k z_k\Bigr), \qquad
       \omega_k = K \frac{\mathrm{CV}_k}{\sum_l \mathrm{CV}_l}, \qquad
       \mathrm{CV}_k = \frac{\mathrm{std}_{\text{batch}}(r_k)}
                            {\mathrm{mean}_{\text{batch}}(r_k) - \mathrm{low}_k}. $$

    A rarely earned reward gets more weight, and a reward that is nearly always earned gets less.
    The weights depend on `low`, the lowest possible value of each reward.

    Differences from the published code: this version supports any number of rewards and weights,
    normalizes the batch over rollouts instead of tokens, and does not add an ε of 1e-8. A constant
    reward has $\mathrm{CV} = 0$.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance.
        low: Lowest possible value of each reward, in the reward's unit.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`. Over the rollouts that have a reward, the mean
        is 0 and the sample standard deviation is 1. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite, a reward's mean is below its `low`, or the reward array
            does not have three axes.
        ConfigError: If `weights`, a bound or an option has an invalid value or the wrong length.

    References:
        "SAW" 2026, https://arxiv.org/abs/2606.07705, and its published code (`gdpo-h`).

    Examples:
        The second reward is earned half as often as the first.

        >>> import numpy as np
        >>> r = np.array([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])
        >>> saw(r, [1, 1], low=[0, 0]).round(4)
        array([[ 0.    ,  1.4142, -0.7071, -0.7071]])
    """
    r, w = prepare(rewards, weights)
    xp = r.xp
    bottom = _declared(low, r.values, "low")
    error = xp.max(r.error, axis=BATCH, keepdims=True)
    above = _above(mean(r.values, over=BATCH), bottom, w, error)
    std = spread(centre(r, over=BATCH), over=BATCH)
    cv = xp.where(std > 0, std / xp.where(above > 0, above, 1.0), 0.0)
    used = xp.where(used_rewards(w), cv, 0.0)
    largest = xp.max(used)
    relative = used / xp.where(largest > 0, largest, 1.0)
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    total = weighted_sum(times(z, relative), w)
    return finish(standardize(total, over=BATCH), rewards, max_advantage=max_advantage)


def _declared(values: PerReward, like: Rewards, name: str) -> Any:
    xp = namespace(like)
    array = per_reward(values, like, name=name)
    if bool(xp.any(xp.isnan(array))):
        raise ConfigError(
            f"{name} is missing for reward {int(xp.nonzero(xp.isnan(array))[0][0])}: this "
            "estimator needs the range of every reward. Set one number per reward"
        )
    return array


def _declared_range(low: PerReward, high: PerReward, like: Rewards) -> tuple[Any, Any]:
    xp = namespace(like)
    bottom, top = _declared(low, like, "low"), _declared(high, like, "high")
    if not bool(xp.all(top > bottom)):
        raise ConfigError(
            f"high must be above low for every reward, got low {[float(v) for v in bottom]} and "
            f"high {[float(v) for v in top]}: change one of them"
        )
    return bottom, top - bottom


def _above(means: Any, low: Any, weights: Any, error: Any) -> Any:
    """Return each reward's mean minus its lowest possible value. Rounding errors count as 0."""
    xp = namespace(means)
    above = means - low
    size = xp.abs(means) + xp.abs(low)
    rounding = error + rounding_of(size, float(xp.finfo(means.dtype).eps))
    below = xp.reshape((above < -rounding) & used_rewards(weights), (-1,))
    if bool(xp.any(below)):
        k = int(xp.nonzero(below)[0][0])
        raise DataError(
            f"reward {k} has a mean below its declared lowest value {float(low[k])}: correct "
            "`low`, or fix the reward function"
        )
    return xp.where(above > rounding, above, 0.0)
