"""Defines estimators that normalize each reward separately before adding them (GDPO, variants).

All of these estimators have the options `noise_floor` and `max_advantage`. A reward whose standard
deviation is below its noise floor is divided by the floor instead, so that noise is not amplified
to the size of a signal. `max_advantage` clips large advantages.
"""

from math import inf
from typing import Any

from array_api_compat import device
from jaxtyping import Real

from gdpo.advantages.arrays import (
    Advantages,
    Number,
    PerReward,
    Rewards,
    Weights,
    finish,
    floors,
    number,
    per_rollout,
    prepare,
)
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    Rounded,
    centre,
    divide,
    namespace,
    present_in,
    scale,
    spread_of_others,
    standardize,
    times,
    weighted_sum,
)
from gdpo.errors import ConfigError


def gdpo(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
    token_counts: Real[Any, "prompt sample"] | None = None,
    scale: Number | None = None,
) -> Advantages:
    r"""Normalize each reward per group, and the weighted sum over the batch (GDPO).

    Let $z_k$ be the reward $r_k$ standardized over the samples of its prompt. Then

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    Batch normalization keeps the size of the advantages independent of the number of rewards. If
    each batch contains a single group, batch normalization removes the differences in scale between
    groups. `scale` replaces batch normalization in that case (see `RunningScale`).

    With `token_counts`, the mean and standard deviation over the batch weight each rollout by its
    number of tokens, as in verl. The plain mean over rollouts is then generally not 0, and rollouts
    in groups without signal get nonzero advantages.

    Unlike the paper and TRL's `normalize_then_sum`, this function adds no ε (TRL adds 1e-4 to both
    standard deviations). A constant reward therefore gives exactly 0 instead of a rounding error
    divided by ε. In verl, a group with one sample keeps its raw reward, and one missing reward
    turns the whole batch into NaN. NeMo-RL uses a leave-one-out baseline by default (see
    `gdpo_leave_one_out`).

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.
        token_counts: Number of tokens in each response, `[prompt, sample]`. Must be at least 0.
            None: each rollout counts once, as in the paper.
        scale: Divide the weighted sum by this number instead of normalizing it over the batch. Must
            be at least 0 (0: all advantages are 0), and excludes `token_counts`. None: normalize
            over the batch.

    Returns:
        Dimensionless advantages, `[prompt, sample]`. Over the rollouts that have a reward, the mean
        is 0 and, without `scale`, the sample standard deviation is 1. Rollouts without a reward get
        0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length, or if both
            `scale` and `token_counts` are given.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 4 to 7. The token weights
        follow verl 0.9.1, `verl/trainer/ppo/core_algos.py`.

    Examples:
        With the rewards from the `grpo` example, earning both rewards counts twice as much as
        earning one.

        >>> import numpy as np
        >>> gdpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.5477,  0.5477],
               [-1.0954,  1.0954]])
    """
    total = normalized_sum(rewards, weights, noise_floor=noise_floor)
    if scale is not None:
        a = _over_scale(total, scale, token_counts)
    elif token_counts is not None:
        counts = per_rollout(token_counts, total.values[..., None], name="token_counts")
        a = standardize(total, over=BATCH, counts=counts)
    else:
        a = standardize(total, over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)


def normalized_sum(rewards: Rewards, weights: Weights, *, noise_floor: PerReward = None) -> Rounded:
    r"""Return the sum $\sum_k w_k z_k$ that `gdpo` normalizes, `[prompt, sample]`.

    In each group, the sum adds up to 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or `noise_floor` has an invalid value or the wrong length.
    """
    r, w = prepare(rewards, weights)
    return weighted_sum(standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values)), w)


def _over_scale(total: Rounded, scale: Number, token_counts: Any) -> Rounded:
    if token_counts is not None:
        raise ConfigError(
            "scale and token_counts exclude each other: a mean weighted by tokens is not 0 in each "
            "group, so one number cannot replace it. Remove one of them"
        )
    if not 0 <= number("scale", scale) < inf:
        raise ConfigError(f"scale must be a finite number of at least 0, got {scale}")
    values = total.values
    return divide(total, total.xp.asarray(scale, dtype=values.dtype, device=device(values)))


def gdpo_leave_one_out(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO with the mean and standard deviation of the *other* samples in the group.

    $$ z_{ik} = \frac{r_{ik} - \mathrm{mean}_{j \ne i}(r_{jk})}{\mathrm{std}_{j \ne i}(r_{jk})},
       \qquad A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    NeMo-RL's `gdpo` uses this formula by default. If all other samples have the same reward, their
    standard deviation is 0. The difference is then not divided and stays in the unit of the reward,
    as in NeMo-RL. If the other samples are nearly equal, the quotient can become arbitrarily large.
    The scores of a group need not sum to 0.

    Differences from NeMo-RL: this version does not add an ε of 1e-6. The standard deviation is free
    of the rounding errors in NeMo-RL, which subtracts squares. A missing reward is excluded instead
    of turning the whole batch into NaN.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless except in the case described above. Over the
        rollouts that have a reward, the mean is 0 and the sample standard deviation is 1. Rollouts
        without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

    References:
        NeMo-RL, `nemo_rl/algorithms/advantage_estimator.py` (commit 7ea279a).

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0], [1.0], [3.0]], [[1.0], [1.0], [1.0]]])
        >>> gdpo_leave_one_out(r, [1]).round(4)
        array([[-1.0343, -0.3291,  1.9276],
               [-0.1881, -0.1881, -0.1881]])
    """
    r, w = prepare(rewards, weights)
    c, n = centre(r, over=SAMPLES), present_in(r, over=SAMPLES)
    xp = namespace(n)
    difference = times(c, n / xp.where(n > 1, n - 1, 1.0))
    std = spread_of_others(c)
    floor = floors(noise_floor, r.values)
    std = std if floor is None else xp.maximum(std, floor)
    z = divide(difference, xp.where(std > 0, std, 1.0))
    return finish(standardize(weighted_sum(z, w), over=BATCH), rewards, max_advantage=max_advantage)


def per_reward_batch_std(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Center each reward per group, divide it by its *batch* std, and take the weighted sum.

    $$ A = \sum_k w_k \frac{c_k}{\mathrm{std}_{\text{batch}}(c_k)}, \qquad c_k = r_k - \bar r_k. $$

    Every reward gets the same standard deviation over the batch, even if it rarely varies. A reward
    that varies in a share $\pi$ of the groups is $1/\sqrt\pi$ times as large as with GDPO. A group
    that hardly varies is not scaled up, unlike in estimators that divide each group by its own
    standard deviation. Batch normalization is not needed. We know of no paper that describes this
    estimator.

    In contrast, TRL's `scale_rewards="batch"` divides the sum of the rewards by one batch standard
    deviation (see `grpo_batch_std`).

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`, with mean 0 in each group. Rollouts without a
        reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

    Examples:
        The first reward varies in only one group. After scaling, both rewards have the same
        standard deviation over the batch.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> per_reward_batch_std(r, [1, 1]).round(4)
        array([[-0.866 ,  0.866 ],
               [-2.0908,  2.0908]])
    """
    r, w = prepare(rewards, weights)
    z = scale(centre(r, over=SAMPLES), over=BATCH, floor=floors(noise_floor, r.values))
    return finish(weighted_sum(z, w), rewards, max_advantage=max_advantage)
