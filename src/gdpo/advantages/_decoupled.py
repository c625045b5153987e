"""Estimators that normalize each reward by itself and then add up: GDPO and its variants.

All of them take `noise_floor`, the resolution of each reward: a spread below it is divided by the
floor instead of itself, so that noise is not blown up to unit size; and `max_advantage`, a cap on
the size of an advantage.
"""

from typing import Any

from jaxtyping import Real

from gdpo.advantages.arrays import (
    Advantages,
    Number,
    PerReward,
    Rewards,
    Weights,
    finish,
    floors,
    per_rollout,
    prepare,
)
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
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


def gdpo(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
    token_counts: Real[Any, "prompt sample"] | None = None,
) -> Advantages:
    r"""Advantage of each sample when every reward is normalized in its group before the sum.

    With $z_k$ the reward $r_k$ standardized over the samples of its prompt,

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    The batch step keeps the size of the advantages independent of the number of rewards. With a
    single group in the batch it undoes the difference that it should preserve between groups.

    With `token_counts`, mean and standard deviation of the batch step count each rollout as often
    as it has tokens, as verl does (token-weighted whitening). Their mean over rollouts is then not
    0, and rollouts of groups without signal get an advantage other than 0.

    Differs from the paper and from TRL's `normalize_then_sum`: no ε (TRL adds 1e-4 to both standard
    deviations); a reward without spread gives exactly 0 where rounding noise is divided by ε. From
    verl: a group of one gets 0 there only if its reward is 0, and one missing reward makes the
    batch NaN. From NeMo-RL: no leave-one-out baseline (`gdpo_leave_one_out`).

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward, multiplied with the normalized reward: importance, not unit.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.
        token_counts: Tokens of each completion, `[prompt, sample]`, to weight the batch step with;
            left out: each rollout counts once, as in the paper.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 4 to 7; token weights: verl
        0.9.1, `verl/trainer/ppo/core_algos.py`.

    Examples:
        The same rewards as in `grpo`: two rewards count more than one.

        >>> import numpy as np
        >>> gdpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.5477,  0.5477],
               [-1.0954,  1.0954]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values)), w)
    tokens = (
        None if token_counts is None else per_rollout(token_counts, r.values, name="token_counts")
    )
    a = standardize(total, over=BATCH, counts=tokens)
    return finish(a, rewards, max_advantage=max_advantage)


def gdpo_leave_one_out(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""GDPO with the mean and standard deviation of the *other* samples of the group (NeMo-RL).

    $$ z_{ik} = \frac{r_{ik} - \mathrm{mean}_{j \ne i}(r_{jk})}{\mathrm{std}_{j \ne i}(r_{jk})},
       \qquad A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    This is what NeMo-RL's `gdpo` computes by default. A sample that differs from others that are
    all alike has no standard deviation to be divided by and keeps its difference in the unit of the
    reward, as there; just short of that, the quotient has no bound. The scores of a group need not
    sum to 0.

    Differs from NeMo-RL: no ε of 1e-6, no rounding noise in the standard deviation (computed there
    as a difference of squares), a missing reward is left out instead of making the batch NaN.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward, multiplied with the normalized reward.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless but for the case above, zero mean and unit sample standard
        deviation over the rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

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
    r"""Advantage of each sample: every reward centred in its group, divided by its *batch* spread.

    $$ A = \sum_k w_k \frac{c_k}{\mathrm{std}_{\text{batch}}(c_k)}, \qquad c_k = r_k - \bar r_k. $$

    Every reward gets the same spread over the batch, however rarely it varies: a reward that varies
    in a share $\pi$ of the groups is scaled up by $1/\sqrt\pi$ against GDPO. A group with a tiny
    spread is not blown up, as it is where each group is divided by its own. No batch step is
    needed. Not in any paper that we know of.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward, multiplied with the normalized reward: importance, not unit.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean in each group; 0 where no reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    Examples:
        The first reward varies in one group only, and counts for as much as the second.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> per_reward_batch_std(r, [1, 1]).round(4)
        array([[-0.866 ,  0.866 ],
               [-2.0908,  2.0908]])
    """
    r, w = prepare(rewards, weights)
    z = scale(centre(r, over=SAMPLES), over=BATCH, floor=floors(noise_floor, r.values))
    return finish(weighted_sum(z, w), rewards, max_advantage=max_advantage)
