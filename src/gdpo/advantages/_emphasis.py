"""Estimators that weight normalized rewards by what the batch shows: spread, saturation, rarity.

All of them take `noise_floor`, the resolution of each reward: a spread below it is divided by the
floor instead of itself, so that noise is not blown up to unit size; and `max_advantage`, a cap on
the size of an advantage.
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
    r"""SA-MRPO: GDPO in which a reward loses weight as it nears the top of its range.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k (1 - s_k)^\gamma z_k\Bigr), \qquad
       s_k = \frac{\mathrm{mean}_{\text{batch}}(r_k) - \mathrm{low}_k}
                  {\mathrm{high}_k - \mathrm{low}_k}. $$

    $\gamma = 0$ is GDPO. Needs bounds that the rewards can reach. Nothing holds a saturated reward
    where it is: with its weight near 0 it may decay.

    Differs from the paper: no ε; $s_k$ is held to $[0, 1]$.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit.
        low: The lowest value of each reward, in its unit.
        high: The highest value of each reward, in its unit.
        gamma: $\gamma$, 0 or more.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights, bounds or options that do not fit the rewards.

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
    r"""SAW: GDPO in which a reward counts by its coefficient of variation over the batch.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k \omega_k z_k\Bigr), \qquad
       \omega_k = K \frac{\mathrm{CV}_k}{\sum_l \mathrm{CV}_l}, \qquad
       \mathrm{CV}_k = \frac{\mathrm{std}_{\text{batch}}(r_k)}
                            {\mathrm{mean}_{\text{batch}}(r_k) - \mathrm{low}_k}. $$

    A reward that is rarely earned counts for more, one that is nearly always earned for less; the
    numbers depend on where a reward's range begins.

    Differs from the published code: any number of rewards, with weights; the batch step counts
    rollouts, not tokens; no ε of 1e-8; a reward that does not vary has $\mathrm{CV} = 0$.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit.
        low: The lowest value of each reward, in its unit.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes; a mean below `low`.
        ConfigError: Weights, bounds or options that do not fit the rewards.

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


def _declared(values: PerReward, beside: Rewards, name: str) -> Any:
    xp = namespace(beside)
    array = per_reward(values, beside, name=name)
    if bool(xp.any(xp.isnan(array))):
        raise ConfigError(
            f"this estimator needs the range of every reward, but {name} is not given for reward "
            f"{int(xp.nonzero(xp.isnan(array))[0][0])}"
        )
    return array


def _declared_range(low: PerReward, high: PerReward, beside: Rewards) -> tuple[Any, Any]:
    xp = namespace(beside)
    bottom, top = _declared(low, beside, "low"), _declared(high, beside, "high")
    if not bool(xp.all(top > bottom)):
        raise ConfigError("high must be above low for every reward")
    return bottom, top - bottom


def _above(means: Any, low: Any, weights: Any, error: Any) -> Any:
    """How far each reward's mean lies above its lowest value; rounding does not take it below."""
    xp = namespace(means)
    above = means - low
    size = xp.abs(means) + xp.abs(low)
    rounding = error + rounding_of(size, float(xp.finfo(means.dtype).eps))
    below = xp.reshape((above < -rounding) & (weights != 0), (-1,))
    if bool(xp.any(below)):
        k = int(xp.nonzero(below)[0][0])
        raise DataError(
            f"reward {k} has a mean below its declared lowest value {float(low[k])}: correct `low`"
        )
    return xp.where(above > rounding, above, 0.0)
