"""Defines estimators that add the rewards and then normalize the sum: GRPO and its variants.

The reward with the largest standard deviation dominates, and samples with different rewards but the
same sum get the same advantage. Each reward is centered before the sum, so that a missing reward
counts as average. If no reward is missing, this centering does not change the result.
"""

from gdpo.advantages.arrays import Advantages, Rewards, Weights, finish, prepare
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    centre,
    divide,
    namespace,
    present_in,
    raw_spread,
    scale,
    standardize,
    times,
    weighted_sum,
)


def grpo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Take the weighted sum of the rewards and normalize it per group (GRPO).

    Let $s = \sum_k w_k r_k$. The mean and the sample standard deviation are computed over the
    samples of a prompt:

    $$ A = \frac{s - \bar s}{\mathrm{std}(s)}. $$

    Samples with different rewards but the same sum get the same advantage, and the reward with the
    largest standard deviation dominates. A missing reward counts as average.

    Unlike TRL and verl, this function adds no ε to the denominator (TRL adds 1e-4, verl 1e-6), so a
    zero-variance group gives exactly 0 instead of amplified rounding errors. TRL also counts a
    missing reward as 0. By default, NeMo-RL's `grpo` uses the mean and standard deviation of the
    other samples.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the raw reward. A suitable value depends on the
            reward's unit.

    Returns:
        Dimensionless advantages, `[prompt, sample]`, with mean 0 in each group. Rollouts without a
        reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` has an invalid value or the wrong length.

    References:
        Shao et al. 2024, "DeepSeekMath", https://arxiv.org/abs/2402.03300. For several rewards: Liu
        et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 1, 2 and 7.

    Examples:
        In the first group, one sample earns one reward. In the second group, one sample earns both
        rewards. GRPO gives these two samples the same advantage.

        >>> import numpy as np
        >>> grpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [-0.7071,  0.7071]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    return finish(scale(total, over=SAMPLES), rewards)


def grpo_no_std(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Apply Dr. GRPO: take the weighted sum of the rewards and subtract the group mean.

    $$ A = s - \bar s, \qquad s = \sum_k w_k r_k. $$

    The advantages keep the unit of the rewards, as in `rloo` and `corr_grpo`. If the rewards are
    ten times as large, so are the advantages. A missing reward counts as average.

    Unlike TRL's `scale_rewards="none"`, this function does not count a missing reward as 0.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN means that the reward does not apply.
        weights: One weight per reward, applied to the raw reward. A suitable value depends on the
            reward's unit.

    Returns:
        Advantages, `[prompt, sample]`, in the unit of the weighted rewards. The mean in each group
        is 0. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` has an invalid value or the wrong length.

    References:
        Liu et al. 2025, "Understanding R1-Zero-Like Training", https://arxiv.org/abs/2503.20783.
        For several rewards: "GRPO w/o std" in https://arxiv.org/abs/2601.05242, section 3.1.

    Examples:
        >>> import numpy as np
        >>> grpo_no_std(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1])
        array([[-0.5,  0.5],
               [-1. ,  1. ]])
    """
    r, w = prepare(rewards, weights)
    return finish(weighted_sum(centre(r, over=SAMPLES), w), rewards)


def rloo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Subtract the mean of the *other* samples in the group from each sample's sum (RLOO).

    $$ A_i = s_i - \frac{1}{n-1} \sum_{j \ne i} s_j = \frac{n}{n-1} (s_i - \bar s),
       \qquad s = \sum_k w_k r_k, $$

    where $n$ is the number of samples in the group that have a reward. The baseline is unbiased
    because it excludes the sample itself. The result equals `grpo_no_std` times $n/(n-1)$.

    Unlike TRL's `RLOOTrainer`, this function does not count a missing reward as 0.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN means that the reward does not apply.
        weights: One weight per reward, applied to the raw reward. A suitable value depends on the
            reward's unit.

    Returns:
        Advantages, `[prompt, sample]`, in the unit of the weighted rewards. The mean in each group
        is 0. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` has an invalid value or the wrong length.

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
    r"""Subtract the group mean from the sum and divide by the batch standard deviation.

    $$ A = \frac{s - \bar s}{\mathrm{std}_{\text{batch}}(s)}, \qquad s = \sum_k w_k r_k. $$

    Groups keep their relative scale, so a group that hardly varies is not scaled up. The standard
    deviation is computed over the uncentered sums, so it includes differences between groups, as in
    TRL's `scale_rewards="batch"` and in Lite-PPO. REINFORCE++ with a baseline divides by the
    standard deviation of the centered sums instead, which scales all advantages by a different
    common factor.

    Unlike TRL, this function adds no ε and does not count a missing reward as 0.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN means that the reward does not apply.
        weights: One weight per reward, applied to the raw reward. A suitable value depends on the
            reward's unit.

    Returns:
        Dimensionless advantages, `[prompt, sample]`, with mean 0 in each group. Rollouts without a
        reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` has an invalid value or the wrong length.

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
    std = raw_spread(weighted_sum(centre(r, over=BATCH), w), over=BATCH)
    return finish(divide(total, std), rewards)


def grpo_batch_norm(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Compute GRPO and then apply GDPO's batch normalization, as a control in experiments.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\frac{s - \bar s}{\mathrm{std}(s)}\Bigr),
       \qquad s = \sum_k w_k r_k. $$

    The difference between `gdpo` and this estimator comes from normalizing each reward separately.
    The difference between this estimator and `grpo` comes from batch normalization, which
    multiplies the whole batch by one factor. We know of no paper that uses this estimator.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN means that the reward does not apply.
        weights: One weight per reward, applied to the raw reward. A suitable value depends on the
            reward's unit.

    Returns:
        Dimensionless advantages, `[prompt, sample]`. Over the rollouts that have a reward, the
        sample standard deviation is 1. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` has an invalid value or the wrong length.

    References:
        For the batch normalization: https://arxiv.org/abs/2601.05242, Eq. 6. The published GDPO
        code contains an unused estimator of this kind.

    Examples:
        >>> import numpy as np
        >>> grpo_batch_norm(np.array([[[0.0], [1.0]], [[2.0], [2.0]]]), [1]).round(4)
        array([[-1.2247,  1.2247],
               [ 0.    ,  0.    ]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    return finish(standardize(scale(total, over=SAMPLES), over=BATCH), rewards)
