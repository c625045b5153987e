"""Estimators that add the rewards up and then normalize the sum: GRPO and its relatives.

The reward with the largest spread decides, and different rewards with the same sum share one
advantage. Each reward is centred before the sum; without missing values that is the same number,
and with them a missing reward counts as average.
"""

from gdpo.advantages.arrays import Advantages, Rewards, Weights, finish, prepare
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    centre,
    divide,
    namespace,
    present_in,
    scale,
    spread,
    standardize,
    times,
    weighted_sum,
)


def grpo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Advantage of each sample when the sum of the rewards is normalized in its group.

    With $s = \sum_k w_k r_k$ and mean and sample standard deviation over the samples of one prompt,

    $$ A = \frac{s - \bar s}{\mathrm{std}(s)}. $$

    Samples with different rewards but the same sum share one advantage, and the reward with the
    largest spread decides. Each reward is centred before the sum; without missing values that is
    the same number, and with them a missing reward counts as average.

    Differs from TRL and verl: no ε in the denominator (TRL 1e-4, verl 1e-6); a group without spread
    gives exactly 0 where they amplify rounding; a missing reward is left out where TRL adds it as
    0. From NeMo-RL: its `grpo` takes mean and standard deviation of the other samples by default.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward, multiplied with the raw reward.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean in each group; 0 where no reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights that do not fit the rewards.

    References:
        Shao et al. 2024, "DeepSeekMath", https://arxiv.org/abs/2402.03300; several rewards: Liu et
        al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 1, 2 and 7.

    Examples:
        Two samples, two rewards; one sample gets both rewards or only one of them: the advantage is
        the same.

        >>> import numpy as np
        >>> grpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [-0.7071,  0.7071]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    return finish(scale(total, over=SAMPLES), rewards)


def grpo_no_std(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Advantage of each sample when only the group's mean is subtracted (Dr. GRPO).

    $$ A = s - \bar s, \qquad s = \sum_k w_k r_k. $$

    It keeps the unit of the rewards: rewards ten times larger give advantages ten times larger, as
    with `rloo` and `corr_grpo`. Each reward is centred before the sum, so that a missing reward
    counts as average.

    Args:
        rewards: `[prompt, sample, reward]`, raw; NaN: does not apply.
        weights: One per reward, multiplied with the raw reward.

    Returns:
        `[prompt, sample]`, in the unit of the weighted rewards, zero mean in each group; 0 where no
        reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights that do not fit the rewards.

    References:
        Liu et al. 2025, "Understanding R1-Zero-Like Training", https://arxiv.org/abs/2503.20783; in
        the multi-reward
        setting: "GRPO w/o std" of https://arxiv.org/abs/2601.05242, section 3.1.

    Examples:
        >>> import numpy as np
        >>> grpo_no_std(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1])
        array([[-0.5,  0.5],
               [-1. ,  1. ]])
    """
    r, w = prepare(rewards, weights)
    return finish(weighted_sum(centre(r, over=SAMPLES), w), rewards)


def rloo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Advantage of each sample over the mean of the *other* samples of its group.

    $$ A_i = s_i - \frac{1}{n-1} \sum_{j \ne i} s_j = \frac{n}{n-1} (s_i - \bar s),
       \qquad s = \sum_k w_k r_k, $$

    with $n$ the samples of the group that have a reward. An unbiased baseline: it does not contain
    the sample that it judges. Otherwise `grpo_no_std`, larger by $n/(n-1)$.

    Differs from TRL, where it is a trainer of its own (`RLOOTrainer`): a missing reward is left out
    instead of added as 0.

    Args:
        rewards: `[prompt, sample, reward]`, raw; NaN: does not apply.
        weights: One per reward, multiplied with the raw reward.

    Returns:
        `[prompt, sample]`, in the unit of the weighted rewards, zero mean in each group; 0 where no
        reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights that do not fit the rewards.

    References:
        Ahmadian et al. 2024, "Back to Basics", https://arxiv.org/abs/2402.14740; Kool et al. 2019.

    Examples:
        >>> import numpy as np
        >>> rloo(np.array([[[0.0], [0.0], [1.0]]]), [1])
        array([[-0.5, -0.5,  1. ]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    n = present_in(total, over=SAMPLES)
    xp = namespace(n)
    return finish(times(total, n / xp.where(n > 1, n - 1, 1.0)), rewards)


def grpo_batch_std(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Advantage of each sample: group mean subtracted, batch standard deviation divided by.

    $$ A = \frac{s - \bar s}{\mathrm{std}_{\text{batch}}(s)}, \qquad s = \sum_k w_k r_k. $$

    Groups keep their relative size, so that a group with little spread is not blown up. The
    standard deviation is that of the sums themselves, differences between groups included, as in
    TRL's `scale_rewards="batch"` and Lite-PPO. REINFORCE++ with a baseline divides by that of the
    centred sums instead: one number for the whole batch, which scales all advantages alike.

    Differs from TRL: no ε, a missing reward is left out instead of added as 0.

    Args:
        rewards: `[prompt, sample, reward]`, raw; NaN: does not apply.
        weights: One per reward, multiplied with the raw reward.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean in each group; 0 where no reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights that do not fit the rewards.

    References:
        Liu et al. 2025, "Part I: Tricks or Traps?", https://arxiv.org/abs/2508.08221 (Lite-PPO); Hu
        2025, "REINFORCE++", https://arxiv.org/abs/2501.03262.

    Examples:
        >>> import numpy as np
        >>> grpo_batch_std(np.array([[[0.0], [1.0]], [[3.0], [5.0]]]), [1]).round(4)
        array([[-0.2255,  0.2255],
               [-0.451 ,  0.451 ]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    std = spread(weighted_sum(centre(r, over=BATCH), w), over=BATCH)
    return finish(divide(total, std), rewards)


def grpo_batch_norm(rewards: Rewards, weights: Weights) -> Advantages:
    r"""GRPO, followed by GDPO's batch step: the control that tells the two parts of GDPO apart.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\frac{s - \bar s}{\mathrm{std}(s)}\Bigr),
       \qquad s = \sum_k w_k r_k. $$

    What GDPO gains over this comes from normalizing each reward; what this gains over `grpo` comes
    from the batch step, which only rescales the batch. No paper reports it.

    Args:
        rewards: `[prompt, sample, reward]`, raw; NaN: does not apply.
        weights: One per reward, multiplied with the raw reward.

    Returns:
        `[prompt, sample]`, dimensionless, unit sample standard deviation over the rollouts that
        have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights that do not fit the rewards.

    References:
        The batch step: https://arxiv.org/abs/2601.05242, Eq. 6. The published code of GDPO holds an
        estimator of this kind that it does not use.

    Examples:
        >>> import numpy as np
        >>> grpo_batch_norm(np.array([[[0.0], [1.0]], [[2.0], [2.0]]]), [1]).round(4)
        array([[-1.2247,  1.2247],
               [ 0.    ,  0.    ]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    return finish(standardize(scale(total, over=SAMPLES), over=BATCH), rewards)
