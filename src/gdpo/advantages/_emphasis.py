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
    Rounded,
    centre,
    divide,
    mean,
    namespace,
    rounding_of,
    scale,
    spread,
    standardize,
    times,
    weighted_sum,
)
from gdpo.errors import ConfigError, DataError


def dvao(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""DVAO: normalized rewards, each weighted with its share of the group's spread.

    $$ A = \sum_k \tilde w_k z_k, \qquad
       \tilde w_k = \frac{w_k \sigma_k}{\sum_l |w_l| \sigma_l},
       \qquad\text{so that}\quad A = \frac{\sum_k w_k (r_k - \bar r_k)}{\sum_l |w_l| \sigma_l}, $$

    with $\sigma_k$ the sample standard deviation of $r_k$ in the group. The numerator is GRPO's,
    the denominator the largest standard deviation that the sum could have: the direction is GRPO's,
    only the size differs, and it is never larger.

    Differs from the paper: sample instead of population standard deviation, no ε of 1e-8; a
    negative weight enters the denominator with its size. The formula is taken from secondary
    sources.

    Args:
        rewards: `[prompt, sample, reward]`, raw; NaN: does not apply.
        weights: One per reward, multiplied with the raw reward in effect.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean in each group; 0 where no reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        Jiang et al. 2026, "DVAO", https://arxiv.org/abs/2605.25604.

    Example:
        >>> import numpy as np
        >>> dvao(np.array([[[0.0, 0.0], [0.0, 3.0]], [[0.0, 3.0], [1.0, 0.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [ 0.3536, -0.3536]])
    """
    r, w = prepare(rewards, weights)
    xp = namespace(r.values)
    c = centre(r, over=SAMPLES)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    std = spread(c, over=SAMPLES)
    total = weighted_sum(times(z, std), w)
    bound = xp.sum(xp.abs(w) * std, axis=-1)
    return finish(divide(total, bound), rewards, max_advantage=max_advantage)


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

    Example:
        The first reward is at 3/4 of its range, the second at 1/2.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> sa_mrpo(r, [1, 1], low=[0, 0], high=[1, 1]).round(4)
        array([[-1.2659,  0.8013, -0.3367,  0.8013]])
    """
    in_range("gamma", gamma, 0, float("inf"))
    r, w = prepare(rewards, weights)
    xp = namespace(r.values)
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

    Example:
        The second reward is earned half as often as the first.

        >>> import numpy as np
        >>> r = np.array([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])
        >>> saw(r, [1, 1], low=[0, 0]).round(4)
        array([[ 0.    ,  1.4142, -0.7071, -0.7071]])
    """
    r, w = prepare(rewards, weights)
    xp = namespace(r.values)
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


def dara_symmetric(
    rewards: Rewards,
    weights: Weights,
    *,
    max_boost: Number = 5.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""DARA, symmetric: GDPO in which a reward that varies in few groups is scaled up.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k b_k z_k\Bigr), \qquad
       b_k = \min\Bigl(b_{\max}, \sqrt{\max_l \pi_l / \pi_k}\Bigr), $$

    with $\pi_k$ the share of groups in which reward $k$ varies. Normalized rewards have an energy
    proportional to $\pi_k$ in the batch; the boost makes them equal. It amplifies a rare reward
    that is noise as well.

    Differs from the published code: any number of rewards, with weights; the batch step counts
    rollouts; no ε. The paper's text is known to us through its code's description only.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit.
        max_boost: $b_{\max}$, 1 or more; 1 is GDPO.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        "DARA" 2026, https://arxiv.org/abs/2610.00574, and its published code.

    Example:
        The first reward varies in one of two groups: there it counts √2 times.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> dara_symmetric(r, [1, 1]).round(4)
        array([[-0.4687,  0.4687],
               [-1.1315,  1.1315]])
    """
    in_range("max_boost", max_boost, 1, float("inf"))
    r, w = prepare(rewards, weights)
    c = centre(r, over=SAMPLES)
    boost = _boost(c, w, max_boost)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    a = standardize(weighted_sum(times(z, boost), w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)


def dara_asymmetric(
    rewards: Rewards,
    weights: Weights,
    *,
    max_boost: Number = 5.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""DARA, asymmetric: the boost of `dara_symmetric` for samples better than their group only.

    $$ A = \mathrm{standardize}_{\text{batch}}
       \Bigl(\sum_k w_k \bigl[z_k + (b_k - 1) \max(z_k, 0)\bigr]\Bigr). $$

    For a negative weight, better means below the mean. The sum is not 0 in each group, and the
    batch step then moves groups without signal away from 0.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit.
        max_boost: $b_{\max}$, 1 or more; 1 is GDPO.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        "DARA" 2026, https://arxiv.org/abs/2610.00574, and its published code. What differs from it:
        `dara_symmetric`.

    Example:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> dara_asymmetric(r, [1, 1]).round(4)
        array([[-0.5568,  0.4523],
               [-1.0613,  1.1658]])
    """
    in_range("max_boost", max_boost, 1, float("inf"))
    r, w = prepare(rewards, weights)
    xp = namespace(r.values)
    c = centre(r, over=SAMPLES)
    boost = _boost(c, w, max_boost)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    boosted = times(z, xp.where(w * z.values > 0, boost, 1.0))
    a = standardize(weighted_sum(boosted, w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)


def _boost(c: Rounded, weights: Any, max_boost: Number) -> Any:
    xp = namespace(c.values)
    varies = (spread(c, over=SAMPLES) > 0) & (weights != 0)
    live = xp.sum(xp.astype(varies, c.values.dtype), axis=BATCH)
    ratio = xp.sqrt(xp.max(live) / xp.where(live > 0, live, 1.0))
    return xp.clip(ratio, 1.0, max_boost)


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
