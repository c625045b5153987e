"""Estimators that normalize each reward separately and then add: GDPO and its variants.

All of them take `noise_floor` and `max_advantage`. If the standard deviation of a reward is below
its noise floor, the reward is divided by the floor instead, so that noise is not scaled up to the
size of a signal. `max_advantage` limits the size of an advantage.
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
    r"""Normalize each reward in its group, add with weights, normalize over the batch (GDPO).

    With $z_k$ the reward $r_k$ standardized over the samples of its prompt,

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    Batch normalization keeps the size of the advantages independent of the number of rewards. With
    a single group in the batch it removes the differences in size between groups.

    With `token_counts`, the mean and standard deviation over the batch count each rollout once per
    token, as verl does. The mean over rollouts is then not 0, and rollouts of groups without signal
    get advantages other than 0.

    Differs from the paper and from TRL's `normalize_then_sum`: no ε (TRL adds 1e-4 to both standard
    deviations), so a constant reward gives exactly 0 and not a rounding error divided by ε. In
    verl, a group of one keeps its raw reward, and one missing reward makes the batch NaN. NeMo-RL
    uses a leave-one-out baseline by default (`gdpo_leave_one_out`).

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward, multiplied with the normalized reward. Dimensionless: it
            means importance.
        noise_floor: Smallest standard deviation to divide each reward by, in the unit of the
            reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.
        token_counts: Number of tokens of each response, `[prompt, sample]`, 0 or more. None: each
            rollout counts once, as in the paper.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 and sample standard deviation 1
        over the rollouts that have a reward, and 0 for the others.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If weights or options do not fit the rewards.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 4 to 7. Token weights: verl
        0.9.1, `verl/trainer/ppo/core_algos.py`.

    Examples:
        The rewards of the example of `grpo`: earning both rewards counts twice as much as one.

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
    r"""Compute GDPO with the mean and standard deviation of the *other* samples of the group.

    $$ z_{ik} = \frac{r_{ik} - \mathrm{mean}_{j \ne i}(r_{jk})}{\mathrm{std}_{j \ne i}(r_{jk})},
       \qquad A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    NeMo-RL's `gdpo` computes this by default. If all other samples are equal, there is no standard
    deviation to divide by, and the sample keeps its difference in the unit of the reward, as in
    NeMo-RL. If the others are nearly equal, the quotient has no bound. The scores of a group need
    not sum to 0.

    Differs from NeMo-RL: no ε of 1e-6; no rounding errors in the standard deviation, which NeMo-RL
    computes as a difference of squares; a missing reward is left out and does not make the batch
    NaN.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward, multiplied with the normalized reward.
        noise_floor: Smallest standard deviation to divide each reward by, in the unit of the
            reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless except in the case above, with mean 0 and
        sample standard deviation 1 over the rollouts that have a reward, and 0 for the others.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If weights or options do not fit the rewards.

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
    r"""Center each reward in its group, divide by its *batch* standard deviation, add with weights.

    $$ A = \sum_k w_k \frac{c_k}{\mathrm{std}_{\text{batch}}(c_k)}, \qquad c_k = r_k - \bar r_k. $$

    Every reward gets the same standard deviation over the batch, even if it rarely varies: a reward
    that varies in a share $\pi$ of the groups is $1/\sqrt\pi$ times as large as under GDPO. A group
    that hardly varies is not scaled up, unlike in estimators that divide each group by its own
    standard deviation. Batch normalization is not needed. We know of no paper that has it.

    Differs from TRL's `scale_rewards="batch"`, which divides the sum of the rewards by one batch
    standard deviation (`grpo_batch_std`).

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward, multiplied with the normalized reward. Dimensionless: it
            means importance.
        noise_floor: Smallest standard deviation to divide each reward by, in the unit of the
            reward, 0 or more. None: no floor.
        max_advantage: Largest absolute value of an advantage, above 0. None: no limit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 in each group, and 0 where no
        reward applies.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If weights or options do not fit the rewards.

    Examples:
        The first reward varies in only one group, and has the same standard deviation over the
        batch as the second.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> per_reward_batch_std(r, [1, 1]).round(4)
        array([[-0.866 ,  0.866 ],
               [-2.0908,  2.0908]])
    """
    r, w = prepare(rewards, weights)
    z = scale(centre(r, over=SAMPLES), over=BATCH, floor=floors(noise_floor, r.values))
    return finish(weighted_sum(z, w), rewards, max_advantage=max_advantage)
