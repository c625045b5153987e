"""Estimators: a reward array and weights become one advantage per rollout.

What they are made of is in `stages`.

Every estimator holds to the same contract. NaN means that a reward does not apply to a rollout: it
is left out of every statistic and never spreads; a rollout without any reward gets 0. A group in
which no reward varies gets exactly 0. An infinite reward is a `DataError`. Groups of unequal size
are padded with NaN; a group of one gets 0.
"""

from gdpo.advantages.arrays import Advantages, Rewards, Weights, finish, prepare
from gdpo.advantages.stages import BATCH, SAMPLES, centre, scale, standardize, weighted_sum


def grpo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Advantage of each sample when the sum of the rewards is normalized in its group.

    With $s = \sum_k w_k r_k$ and mean and sample standard deviation over the samples of one prompt,

    $$ A = \frac{s - \bar s}{\mathrm{std}(s)}. $$

    Samples with different rewards but the same sum share one advantage, and the reward with the
    largest spread decides. Each reward is centred before the sum; without missing values that is
    the same number, and with them a missing reward counts as average.

    Differs from TRL and verl: no ε in the denominator (TRL 1e-4, verl 1e-6); a group without spread
    gives exactly 0 where they amplify rounding; a missing reward is left out where TRL adds it as
    0.

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

    Example:
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

    The one estimator here that keeps the unit of the rewards: rewards ten times larger give
    advantages ten times larger. Each reward is centred before the sum, so that a missing reward
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

    Example:
        >>> import numpy as np
        >>> grpo_no_std(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1])
        array([[-0.5,  0.5],
               [-1. ,  1. ]])
    """
    r, w = prepare(rewards, weights)
    return finish(weighted_sum(centre(r, over=SAMPLES), w), rewards)


def gdpo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Advantage of each sample when every reward is normalized in its group before the sum.

    With $z_k$ the reward $r_k$ standardized over the samples of its prompt,

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    The batch step keeps the size of the advantages independent of the number of rewards. With a
    single group in the batch it undoes the difference that it should preserve between groups.

    Differs from the paper and from TRL's `normalize_then_sum`: no ε (TRL adds 1e-4 to both standard
    deviations); a reward without spread gives exactly 0 where rounding noise is divided by ε. From
    verl: statistics of the batch step are over responses, not over tokens. From NeMo-RL: no
    leave-one-out baseline.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward, multiplied with the normalized reward: importance, not unit.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights that do not fit the rewards.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 4 to 7.

    Example:
        The same rewards as in `grpo`: two rewards count more than one.

        >>> import numpy as np
        >>> gdpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.5477,  0.5477],
               [-1.0954,  1.0954]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(standardize(r, over=SAMPLES), w)
    return finish(standardize(total, over=BATCH), rewards)
