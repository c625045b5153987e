"""Estimators that use the agreement of the rewards: they drop, shrink or decorrelate.

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
    r"""Divide the centered sum by how much the rewards of the group move together (CorrGRPO).

    $$ A = \frac{\sum_k w_k (r_k - \bar r_k)}{\sqrt{\sum_{k,l} \hat\rho_{kl} + \epsilon}}, $$

    with $\hat\rho$ the correlation of the weighted rewards in the group, without the constant ones.
    The double sum is the variance of $\sum_k \mathrm{sign}(w_k) z_k$ and is computed that way. With
    one reward this is `grpo_no_std`. With a reward that is repeated, it is `grpo_no_std` divided by
    the number of repeats. Each group's advantages are GRPO's times one number, in the unit of the
    rewards.

    If the rewards of a group oppose each other, the denominator vanishes. If their weights or
    standard deviations also differ, advantages reach hundreds, up to $\epsilon^{-1/2}$ times the
    centered sum. Set `max_advantage`.

    Differs from the paper: ε is inside the root, as in the published code. It is kept because the
    published numbers depend on it.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.
        weights: One weight per reward. It multiplies the raw reward, so it depends on the unit of
            the reward.
        epsilon: Keeps the denominator away from 0. Dimensionless, above 0.
        noise_floor: Standard deviation below which a reward counts for less in the correlation, in
            the unit of the reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.

    Returns:
        Advantages, `[prompt, sample]`, in the unit of the weighted rewards, with mean 0 in each
        group, and 0 where no reward applies.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If weights or options do not fit the rewards.

    References:
        "CorrGRPO" 2026, https://arxiv.org/abs/2609.36820, and its published code.

    Examples:
        The sum of two independent rewards is divided by √2.

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
    r"""Compute GDPO without the rollouts whose rewards pull in opposite directions (GD²PO, hard).

    A rollout is dropped if one of its $\mathrm{sign}(w_k) z_k$ is above $\delta$ and another below
    $-\delta$. With $\delta = 0$ the sign of noise counts too, even below a noise floor. The sums of
    the kept rollouts are multiplied by the share of their group that is kept, and standardized over
    the batch:

    $$ A = \mathrm{standardize}_{\text{kept}} \Bigl(\rho_g \sum_k w_k z_k\Bigr), \qquad
       A = 0 \text{ for what is dropped.} $$

    Two unrelated rewards of 0 and 1, each earned by half of the rollouts, conflict in half of all
    rollouts. The kept rollouts of a group need not sum to 0, so batch normalization moves groups
    without signal away from 0.

    Differs from the published code: any number of rewards, with weights; batch normalization
    counts rollouts, not tokens; no ε.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward. Dimensionless: it means importance. A negative weight turns
            the direction around.
        threshold: $\delta$, in standard deviations, 0 or more.
        noise_floor: Smallest standard deviation to divide each reward by, in the unit of the
            reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 over the kept rollouts, and 0 for
        the others.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If weights or options do not fit the rewards.

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
    r"""Compute GDPO without the rollouts whose rewards nearly cancel (GD²PO, signal to noise).

    A rollout is dropped if its rewards pull in opposite directions and

    $$ \frac{\bigl|\sum_k w_k z_k\bigr|}{\sum_k |w_k z_k|} < \tau. $$

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward. Dimensionless: it means importance. A negative weight turns
            the direction around.
        threshold: $\tau$, from 0 (GDPO) to 1 (`gd2po_hard`). The default of the published code is
            0.2; its scripts use 0.8.
        noise_floor: Smallest standard deviation to divide each reward by, in the unit of the
            reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 over the kept rollouts, and 0 for
        the others.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If weights or options do not fit the rewards.

    References:
        "GD²PO" 2026, https://arxiv.org/abs/2606.16771, and its published code. The differences from
        it are those of `gd2po_hard`.

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
    r"""Compute GDPO with weights that are corrected for the correlation of the rewards.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w'_k z_k\Bigr), \qquad
       w' = \bigl((1 - \lambda) C + \lambda I\bigr)^{-\alpha} w, $$

    with $C$ the correlation of the normalized rewards within groups, over the batch. The covariance
    of $\sum_k w_k z_k$ with $z_k$ is $(C w)_k$ and not $w_k$, so two rewards that agree count twice
    under GDPO. $\alpha = 1$ gives every reward an influence equal to its weight share, $\alpha = 0$
    is GDPO, and $\alpha = 1/2$ whitens the rewards (ZCA).

    Directions in which the rewards hardly differ are scaled up by at most $\lambda^{-\alpha}$. If
    rewards are strongly opposed, such a direction is noise.

    Differs from RDPO, which also whitens before the sum, but replaces the z-score by a quantile. No
    paper has this form.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward. Dimensionless: it means importance.
        power: $\alpha$, from 0 to 1.
        shrinkage: $\lambda$, from 1e-6 to 1. 1 is GDPO.
        noise_floor: Smallest standard deviation to divide each reward by, in the unit of the
            reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 and sample standard deviation 1
        over the rollouts that have a reward, and 0 for the others.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If weights or options do not fit the rewards.

    References:
        "RDPO" 2026, https://arxiv.org/abs/2605.13641.

    Examples:
        One reward is listed twice, another one once. With α = 1 both have the same influence.

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
    """Return where one reward pulls up and another pulls down by more than the threshold."""
    xp = z.xp
    pull = xp.sign(weights) * xp.where(xp.isnan(z.values), 0.0, z.values)
    enough = threshold + z.error  # a value within its rounding error has no sign
    return xp.any(pull > enough, axis=-1) & xp.any(pull < -enough, axis=-1)


def _standardized_kept(total: Rounded, keep: Any) -> Rounded:
    """Return the kept sums times the kept share of their group, standardized over the batch."""
    xp = total.xp
    kept = Rounded(xp.where(keep, total.values, xp.nan), xp.where(keep, total.error, 0.0))
    present = xp.where(xp.isnan(total.values), xp.nan, xp.astype(keep, total.values.dtype))
    share = mean(present, over=SAMPLES)
    return standardize(times(kept, xp.where(xp.isnan(share), 0.0, share)), over=BATCH)


def _decorrelated(z: Rounded, weights: Any, *, power: Number, shrinkage: Number) -> Any:
    """Return the corrected weights. A reward of weight 0 is left out of the correction."""
    xp = namespace(weights)
    used = weights != 0
    known = Rounded(xp.where(used, z.values, 0.0), z.error)
    c = correlation(known, shrinkage=shrinkage)
    return xp.where(used, decorrelated(weights, c, power=power), 0.0)
