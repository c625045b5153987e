"""Estimators that look at whether the rewards of a rollout agree: drop, discount, decorrelate.

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
    positive,
    prepare,
)
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    Rounded,
    below,
    centre,
    correlation,
    decorrelated,
    divide,
    mean,
    namespace,
    scale,
    spread,
    standardize,
    times,
    weighted_sum,
)


def corr_grpo(
    rewards: Rewards,
    weights: Weights,
    *,
    epsilon: Number = 1e-6,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""CorrGRPO: the centred sum, divided by how much the rewards of the group move together.

    $$ A = \frac{\sum_k w_k (r_k - \bar r_k)}{\sqrt{\sum_{k,l} \hat\rho_{kl} + \epsilon}}, $$

    with $\hat\rho$ the correlation of the weighted rewards in the group; rewards without spread are
    left out of it. The double sum is the variance of $\sum_k \mathrm{sign}(w_k) z_k$, which is how
    it is computed. With one reward, or with the same one repeated, this is `grpo_no_std`, divided
    by the number of repeats. Each group's advantages are GRPO's times one number, in the unit of
    the rewards.

    Rewards that oppose each other make the denominator vanish: where their weights or spreads
    differ, advantages of hundreds, up to $\epsilon^{-1/2}$ times the centred sum. Set
    `max_advantage`. The ε stays because the published numbers depend on it; it stands inside the
    root, as in the published code (the paper has it outside).

    Args:
        rewards: `[prompt, sample, reward]`, raw; NaN: does not apply.
        weights: One per reward, multiplied with the raw reward.
        epsilon: What keeps the denominator from 0; dimensionless, above 0.
        noise_floor: Resolution of each reward, in its unit; one with a smaller spread counts for
            less in the correlation.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, in the unit of the weighted rewards, zero mean in each group; 0 where no
        reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        "CorrGRPO" 2026, https://arxiv.org/abs/2609.36820, and its published code.

    Examples:
        Two independent rewards: divided by √2.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> corr_grpo(r, [1, 1]).round(4)
        array([[-0.7071,  0.    ,  0.    ,  0.7071]])
    """
    positive("epsilon", epsilon)
    r, w = prepare(rewards, weights)
    xp = r.xp
    c = centre(r, over=SAMPLES)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    together = spread(weighted_sum(z, xp.sign(w)), over=SAMPLES)
    a = divide(weighted_sum(c, w), xp.sqrt(together * together + epsilon))
    return finish(a, rewards, max_advantage=max_advantage)


def gd2po_hard(
    rewards: Rewards,
    weights: Weights,
    *,
    threshold: Number = 0.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""GD²PO, hard filter: GDPO without the rollouts whose rewards pull in opposite directions.

    A rollout is dropped if one of its $\mathrm{sign}(w_k) z_k$ is above $\delta$ and another below
    $-\delta$. With $\delta = 0$ the sign of mere noise counts as well, whatever its noise floor.
    The sums of the others are multiplied with the share of their group that is kept, and
    standardized over the batch:

    $$ A = \mathrm{standardize}_{\text{kept}} \Bigl(\rho_g \sum_k w_k z_k\Bigr), \qquad
       A = 0 \text{ for what is dropped.} $$

    Two rewards of 0 and 1 that have nothing to do with each other conflict in half of all rollouts
    at a rate of 1/2. What is kept need not sum to 0 in its group, and the batch step then moves
    groups without signal away from 0.

    Differs from the published code: any number of rewards, with weights; the batch step counts
    rollouts, not tokens; no ε.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit. The sign counts for the direction.
        threshold: $\delta$, in standard deviations; 0 or more.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean over the rollouts that are kept; 0 for the
        others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        "GD²PO" 2026, https://arxiv.org/abs/2606.16771, and its published code.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> gd2po_hard(r, [1, 1]).round(4)
        array([[-0.7071,  0.    ,  0.    ,  0.7071]])
    """
    in_range("threshold", threshold, 0, float("inf"))
    r, w = prepare(rewards, weights)
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    opposed = _opposed(z, w, threshold)
    a = _standardized_kept(weighted_sum(z, w), ~opposed)
    return finish(a, rewards, max_advantage=max_advantage)


def gd2po_snr(
    rewards: Rewards,
    weights: Weights,
    *,
    threshold: Number = 0.2,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""GD²PO, signal-to-noise filter: `gd2po_hard` that drops only where the pulls nearly cancel.

    A rollout is dropped if its rewards pull in opposite directions and

    $$ \frac{\bigl|\sum_k w_k z_k\bigr|}{\sum_k |w_k z_k|} < \tau. $$

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit. The sign counts for the direction.
        threshold: $\tau$, from 0 (GDPO) to 1 (`gd2po_hard`). The published code has 0.2 as its
            default and 0.8 in its scripts.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean over the rollouts that are kept; 0 for the
        others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        "GD²PO" 2026, https://arxiv.org/abs/2606.16771, and its published code. What differs from
        it: `gd2po_hard`.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> gd2po_snr(r, [1, 0.5]).round(4)
        array([[-1.1619, -0.3873,  0.3873,  1.1619]])
    """
    in_range("threshold", threshold, 0, 1)
    r, w = prepare(rewards, weights)
    xp = r.xp
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    total = weighted_sum(z, w)
    force = xp.sum(xp.abs(w) * xp.where(xp.isnan(z.values), 0.0, xp.abs(z.values)), axis=-1)
    cancels = below(xp.abs(total.values), threshold * force, size=force)
    a = _standardized_kept(total, ~(_opposed(z, w, 0.0) & cancels))
    return finish(a, rewards, max_advantage=max_advantage)


def gdpo_decorrelated(
    rewards: Rewards,
    weights: Weights,
    *,
    power: Number = 0.5,
    shrinkage: Number = 0.1,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""GDPO in which rewards that move together are not counted twice.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w'_k z_k\Bigr), \qquad
       w' = \bigl((1 - \lambda) C + \lambda I\bigr)^{-\alpha} w, $$

    with $C$ the correlation of the normalized rewards within groups, over the whole batch. The
    covariance of $\sum_k w_k z_k$ with $z_k$ is $(C w)_k$ and not $w_k$: two rewards that agree
    support each other. $\alpha = 1$ gives every reward the influence that its weight asks for,
    $\alpha = 0$ is GDPO, and $\alpha = 1/2$ whitens (ZCA), which is halfway. Not in a paper in this
    form; whitening in front of the sum is part of RDPO.

    Directions in which rewards hardly differ are scaled up, by at most $\lambda^{-\alpha}$: with
    strongly negative correlation that is noise.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit.
        power: $\alpha$, from 0 to 1.
        shrinkage: $\lambda$, above 0 and at most 1; 1 is GDPO.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        "RDPO" 2026, https://arxiv.org/abs/2605.13641.

    Examples:
        The same reward twice, and another one: with α = 1 both count alike.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
        >>> gdpo_decorrelated(r, [1, 1, 1], power=1, shrinkage=0.001).round(2)
        array([[-0.  ,  1.22,  0.  , -1.22]])
    """
    in_range("power", power, 0, 1)
    in_range("shrinkage", shrinkage, 1e-6, 1)
    r, w = prepare(rewards, weights)
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    total = weighted_sum(z, _decorrelated(z, w, power=power, shrinkage=shrinkage))
    return finish(standardize(total, over=BATCH), rewards, max_advantage=max_advantage)


def _opposed(z: Rounded, weights: Any, threshold: Number) -> Any:
    """Rollouts with one reward that pulls up by more than the threshold and one that pulls down."""
    xp = z.xp
    pull = xp.sign(weights) * xp.where(xp.isnan(z.values), 0.0, z.values)
    enough = threshold + z.error  # what is no larger than its rounding error has no sign
    return xp.any(pull > enough, axis=-1) & xp.any(pull < -enough, axis=-1)


def _standardized_kept(total: Rounded, keep: Any) -> Rounded:
    """Over what is kept, after each group was multiplied with its share of it."""
    xp = total.xp
    kept = Rounded(xp.where(keep, total.values, xp.nan), xp.where(keep, total.error, 0.0))
    present = xp.where(xp.isnan(total.values), xp.nan, xp.astype(keep, total.values.dtype))
    share = mean(present, over=SAMPLES)
    return standardize(times(kept, xp.where(xp.isnan(share), 0.0, share)), over=BATCH)


def _decorrelated(z: Rounded, weights: Any, *, power: Number, shrinkage: Number) -> Any:
    """A reward of weight 0 is absent: it neither gets a weight nor takes from the others."""
    xp = namespace(weights)
    used = weights != 0
    known = Rounded(xp.where(used, z.values, 0.0), z.error)
    c = correlation(known, shrinkage=shrinkage)
    return xp.where(used, decorrelated(weights, c, power=power), 0.0)
