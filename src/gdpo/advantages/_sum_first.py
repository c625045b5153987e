"""Estimators that add the rewards and then normalize the sum: GRPO and its relatives.

The reward with the largest standard deviation dominates, and different rewards with the same sum
get the same advantage. Each reward is centered before the sum. Without missing values that changes
nothing; with them, a missing reward counts as average.
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
    r"""Add the rewards with weights and normalize the sum in its group (GRPO).

    With $s = \sum_k w_k r_k$, and mean and sample standard deviation over the samples of a prompt,

    $$ A = \frac{s - \bar s}{\mathrm{std}(s)}. $$

    Samples with different rewards but the same sum get the same advantage, and the reward with the
    largest standard deviation dominates. A missing reward counts as average.

    Differs from TRL and verl: no ε in the denominator (TRL 1e-4, verl 1e-6), so a zero-variance
    group gives exactly 0 and not amplified rounding errors. TRL also adds a missing reward as 0.
    NeMo-RL's `grpo` uses the mean and standard deviation of the other samples by default.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does
            not apply.
        weights: One weight per reward, multiplied with the raw reward, so it depends on its unit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 in each group, and 0 where no
        reward applies.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If the weights do not fit the rewards.

    References:
        Shao et al. 2024, "DeepSeekMath", https://arxiv.org/abs/2402.03300; several rewards: Liu et
        al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 1, 2 and 7.

    Examples:
        In each group one sample earns something: one reward in the first group, both rewards in the
        second. GRPO gives the same advantages.

        >>> import numpy as np
        >>> grpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [-0.7071,  0.7071]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    return finish(scale(total, over=SAMPLES), rewards)


def grpo_no_std(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Add the rewards with weights and subtract the group's mean (Dr. GRPO).

    $$ A = s - \bar s, \qquad s = \sum_k w_k r_k. $$

    The advantages keep the unit of the rewards: rewards ten times as large give advantages ten
    times as large, as with `rloo` and `corr_grpo`. A missing reward counts as average.

    Differs from TRL's `scale_rewards="none"`: a missing reward is left out instead of added as 0.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.
        weights: One weight per reward, multiplied with the raw reward, so it depends on its unit.

    Returns:
        Advantages, `[prompt, sample]`, in the unit of the weighted rewards, with mean 0 in each
        group, and 0 where no reward applies.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If the weights do not fit the rewards.

    References:
        Liu et al. 2025, "Understanding R1-Zero-Like Training", https://arxiv.org/abs/2503.20783;
        with several rewards: "GRPO w/o std" of https://arxiv.org/abs/2601.05242, section 3.1.

    Examples:
        >>> import numpy as np
        >>> grpo_no_std(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1])
        array([[-0.5,  0.5],
               [-1. ,  1. ]])
    """
    r, w = prepare(rewards, weights)
    return finish(weighted_sum(centre(r, over=SAMPLES), w), rewards)


def rloo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Subtract from each sample's sum the mean of the *other* samples of its group (RLOO).

    $$ A_i = s_i - \frac{1}{n-1} \sum_{j \ne i} s_j = \frac{n}{n-1} (s_i - \bar s),
       \qquad s = \sum_k w_k r_k, $$

    with $n$ the number of samples of the group that have a reward. The baseline is unbiased because
    it does not contain the sample itself. The result is `grpo_no_std` times $n/(n-1)$.

    Differs from TRL's `RLOOTrainer`: a missing reward is left out instead of added as 0.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.
        weights: One weight per reward, multiplied with the raw reward, so it depends on its unit.

    Returns:
        Advantages, `[prompt, sample]`, in the unit of the weighted rewards, with mean 0 in each
        group, and 0 where no reward applies.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If the weights do not fit the rewards.

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
    r"""Subtract the group's mean from the sum and divide by the batch's standard deviation.

    $$ A = \frac{s - \bar s}{\mathrm{std}_{\text{batch}}(s)}, \qquad s = \sum_k w_k r_k. $$

    Groups keep their relative size, so a group that hardly varies is not scaled up. The standard
    deviation is that of the sums and includes differences between groups, as in TRL's
    `scale_rewards="batch"` and in Lite-PPO. REINFORCE++ with a baseline divides by the standard
    deviation of the centered sums instead, which scales all advantages by another common factor.

    Differs from TRL: no ε, and a missing reward is left out instead of added as 0.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.
        weights: One weight per reward, multiplied with the raw reward, so it depends on its unit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with mean 0 in each group, and 0 where no
        reward applies.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If the weights do not fit the rewards.

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
    r"""Compute GRPO, then apply GDPO's batch normalization. A control for experiments.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\frac{s - \bar s}{\mathrm{std}(s)}\Bigr),
       \qquad s = \sum_k w_k r_k. $$

    The difference between `gdpo` and this estimator comes from normalizing each reward. The
    difference between this estimator and `grpo` comes from batch normalization, which multiplies
    the batch by one number. No paper reports it.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.
        weights: One weight per reward, multiplied with the raw reward, so it depends on its unit.

    Returns:
        Advantages, `[prompt, sample]`, dimensionless, with sample standard deviation 1 over the
        rollouts that have a reward, and 0 for the others.

    Raises:
        DataError: If a reward is infinite, or the rewards do not have three axes.
        ConfigError: If the weights do not fit the rewards.

    References:
        Batch normalization: https://arxiv.org/abs/2601.05242, Eq. 6. The published code of GDPO
        contains an unused estimator of this kind.

    Examples:
        >>> import numpy as np
        >>> grpo_batch_norm(np.array([[[0.0], [1.0]], [[2.0], [2.0]]]), [1]).round(4)
        array([[-1.2247,  1.2247],
               [ 0.    ,  0.    ]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    return finish(standardize(scale(total, over=SAMPLES), over=BATCH), rewards)
