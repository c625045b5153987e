from gdpo.advantages._types import Advantages, Rewards, Weights
from gdpo.advantages.arrays import finish, prepare
from gdpo.advantages.stages import SAMPLES, centre, scale, weighted_sum


def grpo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Take the weighted sum of the rewards and normalize it per group (GRPO).

    $$ A = \frac{s - \bar s}{\mathrm{std}_{\text{group}}(s)}, \qquad s = \sum_k w_k r_k. $$

    The reward with the largest standard deviation dominates, and samples with different rewards but
    the same sum get the same advantage. A missing reward counts as average, because each reward is
    centered before the sum.

    Use it as the baseline, and for rewards in the same unit with known weights. Noise with a small
    standard deviation has little influence. A reward opposed by another with twice its standard
    deviation is pushed down.

    By default, NeMo-RL's `grpo` uses the mean and standard deviation of the other samples.

    References:
        Shao et al. 2024, "DeepSeekMath", https://arxiv.org/abs/2402.03300. For several rewards: Liu
        et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 1, 2 and 7.

    Examples:
        A sample that earns one reward and a sample that earns both get the same advantage.

        >>> import numpy as np
        >>> grpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [-0.7071,  0.7071]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    return finish(scale(total, over=SAMPLES), rewards)
