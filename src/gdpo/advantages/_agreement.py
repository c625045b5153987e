"""Defines estimators that adjust the advantages for agreement and conflict between the rewards.

All of these estimators have the options `noise_floor` and `max_advantage`. A reward whose standard
deviation is below its noise floor is divided by the floor instead, so that noise is not amplified
to the size of a signal. `max_advantage` clips large advantages.
"""

from typing import Any

from array_api_compat import device

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
    r"""Divide the centered sum by the correlation of the rewards in the group (CorrGRPO).

    $$ A = \frac{\sum_k w_k (r_k - \bar r_k)}{\sqrt{\sum_{k,l} \hat\rho_{kl} + \epsilon}}, $$

    where $\hat\rho$ is the correlation matrix of the weighted rewards in the group. Constant
    rewards are excluded from the matrix. The double sum equals the variance of
    $\sum_k \mathrm{sign}(w_k) z_k$, which is how the code computes it. For a single reward, the
    result equals `grpo_no_std`. If the same reward is listed several times, the result is
    `grpo_no_std` divided by the number of copies. Within a group, the advantages are proportional
    to GRPO's advantages, but they keep the unit of the rewards.

    If the rewards of a group oppose each other, the denominator approaches 0. If the rewards also
    differ in weight or standard deviation, advantages can reach several hundred, up to
    $\epsilon^{-1/2}$ times the centered sum. Set `max_advantage` to limit them.

    Difference from the paper: ε is inside the square root, as in the published code. The ε is kept
    because the published numbers depend on it.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN means that the reward does not apply.
        weights: One weight per reward, applied to the raw reward. A suitable value depends on the
            reward's unit.
        epsilon: Constant that keeps the denominator away from 0. Dimensionless; must be above 0.
        noise_floor: Standard deviation below which a reward counts less in the correlation, in the
            reward's unit. Must be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Advantages, `[prompt, sample]`, in the unit of the weighted rewards. The mean in each group
        is 0. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

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
    r"""Compute GDPO without the rollouts whose rewards conflict (GD²PO, hard).

    A rollout is dropped if one of its values $\mathrm{sign}(w_k) z_k$ is above $\delta$ and another
    is below $-\delta$. With $\delta = 0$, even noise below a noise floor can count as a conflict.
    The weighted sum of each kept rollout is multiplied by the share of its group that is kept. The
    results are then standardized over the batch:

    $$ A = \mathrm{standardize}_{\text{kept}} \Bigl(\rho_g \sum_k w_k z_k\Bigr), \qquad
       A = 0 \text{ for dropped rollouts.} $$

    If two independent rewards of 0 or 1 are each earned by half of the rollouts, they conflict in
    half of all rollouts. The kept advantages of a group need not sum to 0, so batch normalization
    shifts groups without signal away from 0.

    Differences from the published code: this version supports any number of rewards and weights,
    normalizes the batch over rollouts instead of tokens, and adds no ε.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward. Weights are dimensionless and express importance. With a
            negative weight, lower values of the reward are better.
        threshold: $\delta$, in standard deviations. Must be at least 0.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`, with mean 0 over the kept rollouts. All other
        rollouts get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

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
    r"""Compute GDPO without the rollouts whose rewards nearly cancel (GD²PO, signal-to-noise).

    A rollout is dropped if it has both a positive and a negative $\mathrm{sign}(w_k) z_k$, and

    $$ \frac{\bigl|\sum_k w_k z_k\bigr|}{\sum_k |w_k z_k|} < \tau. $$

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward. Weights are dimensionless and express importance. With a
            negative weight, lower values of the reward are better.
        threshold: $\tau$, from 0 (same as GDPO) to 1 (same as `gd2po_hard`). The published code
            also has the default 0.2, but its scripts use 0.8.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`, with mean 0 over the kept rollouts. All other
        rollouts get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

    References:
        "GD²PO" 2026, https://arxiv.org/abs/2606.16771, and its published code. See `gd2po_hard` for
        the differences from that code.

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
    r"""Compute GDPO with weights that are corrected for the correlation between the rewards.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w'_k z_k\Bigr), \qquad
       w' = \bigl((1 - \lambda) C + \lambda I\bigr)^{-\alpha} w, $$

    where $C$ is the correlation matrix of the group-normalized rewards, computed over the batch.
    The covariance of $\sum_k w_k z_k$ with $z_k$ is $(C w)_k$, not $w_k$, so two rewards that agree
    count twice in GDPO. With $\alpha = 1$, the influence of each reward equals its weight share.
    With $\alpha = 0$, the result is GDPO. With $\alpha = 1/2$, the rewards are whitened (ZCA).

    Directions in which the rewards hardly vary are amplified by a factor of at most
    $\lambda^{-\alpha}$. If rewards are strongly opposed, such a direction is mostly noise.

    RDPO also whitens the rewards before adding them, but uses quantiles instead of z-scores. We
    know of no paper that describes the version implemented here.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance.
        power: $\alpha$, from 0 to 1.
        shrinkage: $\lambda$, from 1e-6 to 1. With 1, the result is GDPO.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`. Over the rollouts that have a reward, the mean
        is 0 and the sample standard deviation is 1. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

    References:
        "RDPO" 2026, https://arxiv.org/abs/2605.13641.

    Examples:
        One reward is listed twice, and another is listed once. With α = 1, both rewards have the
        same influence.

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
    """Return a mask of the rollouts in which two rewards conflict by more than the threshold."""
    xp = z.xp
    pull = xp.sign(weights) * xp.where(xp.isnan(z.values), 0.0, z.values)
    enough = threshold + z.error  # a value within its rounding error counts as 0
    return xp.any(pull > enough, axis=-1) & xp.any(pull < -enough, axis=-1)


def _standardized_kept(total: Rounded, keep: Any) -> Rounded:
    """Multiply each kept sum by the kept share of its group, and standardize over the batch."""
    xp = total.xp
    kept = Rounded(xp.where(keep, total.values, xp.nan), xp.where(keep, total.error, 0.0))
    present = xp.where(xp.isnan(total.values), xp.nan, xp.astype(keep, total.values.dtype))
    share = mean(present, over=SAMPLES)
    return standardize(times(kept, xp.where(xp.isnan(share), 0.0, share)), over=BATCH)


def _decorrelated(z: Rounded, weights: Any, *, power: Number, shrinkage: Number) -> Any:
    """Return the corrected weights. Rewards with weight 0 are excluded from the correction."""
    xp = namespace(weights)
    used = weights != 0
    known = Rounded(xp.where(used, z.values, 0.0), z.error)
    c = correlation(known, shrinkage=shrinkage)
    if weights.ndim > 1:  # each prompt has the correlations of the rewards that it uses
        both = used & xp.matrix_transpose(used)
        itself = xp.eye(c.shape[-1], dtype=c.dtype, device=device(c))
        c = xp.where(both, c, itself)
    return xp.where(used, decorrelated(weights, c, power=power), 0.0)
