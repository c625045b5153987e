"""Estimators that weight normalized rewards by their mean or standard deviation over the batch.

All of them take `noise_floor` and `max_advantage`. If the standard deviation of a reward is below
its noise floor, the reward is divided by the floor instead, so that noise is not scaled up to the
size of a signal. `max_advantage` limits the size of an advantage.
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
    r"""Compute GDPO in which a reward loses weight near the top of its range (SA-MRPO).

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k (1 - s_k)^\gamma z_k\Bigr), \qquad
       s_k = \frac{\mathrm{mean}_{\text{batch}}(r_k) - \mathrm{low}_k}
                  {\mathrm{high}_k - \mathrm{low}_k}. $$

    $\gamma = 0$ is GDPO. The ranges must be ones that the rewards can reach. A learned reward has a
    weight near 0, so it may decay.

    Differs from the paper: no ε, and $s_k$ is clipped to $[0, 1]$.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward. Dimensionless: it means importance.
        low: The lowest value of each reward, in its unit.
        high: The highest value of each reward, in its unit.
        gamma: $\gamma$, 0 or more. A larger value takes weight away earlier.
        noise_floor: Smallest standard deviation to divide each reward by, in the unit of the
            reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 and sample standard deviation 1
        over the rollouts that have a reward, and 0 for the others.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If weights, bounds or options do not fit the rewards.

    References:
        "SA-MRPO" 2026, https://arxiv.org/abs/2608.16072.

    Examples:
        The first reward is at 3/4 of its range, the second at 1/2.

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
    r"""Compute GDPO with weights times the coefficient of variation of each reward (SAW).

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k \omega_k z_k\Bigr), \qquad
       \omega_k = K \frac{\mathrm{CV}_k}{\sum_l \mathrm{CV}_l}, \qquad
       \mathrm{CV}_k = \frac{\mathrm{std}_{\text{batch}}(r_k)}
                            {\mathrm{mean}_{\text{batch}}(r_k) - \mathrm{low}_k}. $$

    A rarely earned reward gets more weight, and a reward that is nearly always earned gets less.
    The weights depend on `low`, the lowest value of each reward.

    Differs from the published code: any number of rewards, with weights; batch normalization
    counts rollouts, not tokens; no ε of 1e-8; a constant reward has $\mathrm{CV} = 0$.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward. Dimensionless: it means importance.
        low: The lowest value of each reward, in its unit.
        noise_floor: Smallest standard deviation to divide each reward by, in the unit of the
            reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 and sample standard deviation 1
        over the rollouts that have a reward, and 0 for the others.

    Raises:
        DataError: If a reward is infinite or has a mean below its `low`, or the rewards do not have
            three axes.
        ConfigError: If weights, bounds or options do not fit the rewards.

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
    used = xp.where(w != 0, cv, 0.0)
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
            "estimator needs the range of every reward. Give one number per reward"
        )
    return array


def _declared_range(low: PerReward, high: PerReward, like: Rewards) -> tuple[Any, Any]:
    xp = namespace(like)
    bottom, top = _declared(low, like, "low"), _declared(high, like, "high")
    if not bool(xp.all(top > bottom)):
        raise ConfigError(
            f"high must be above low for every reward, got low {[float(v) for v in bottom]} and "
            f"high {[float(v) for v in top]}: correct one of them"
        )
    return bottom, top - bottom


def _above(means: Any, low: Any, weights: Any, error: Any) -> Any:
    """Return how far each reward's mean is above its lowest value, 0 if only by rounding."""
    xp = namespace(means)
    above = means - low
    size = xp.abs(means) + xp.abs(low)
    rounding = error + rounding_of(size, float(xp.finfo(means.dtype).eps))
    below = xp.reshape((above < -rounding) & (weights != 0), (-1,))
    if bool(xp.any(below)):
        k = int(xp.nonzero(below)[0][0])
        raise DataError(
            f"reward {k} has a mean below its declared lowest value {float(low[k])}: correct "
            "`low`, or fix the reward function"
        )
    return xp.where(above > rounding, above, 0.0)
