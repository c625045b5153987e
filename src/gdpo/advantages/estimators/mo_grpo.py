from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, prepare, z_scores
from gdpo.advantages.stages import weighted_sum


def mo_grpo(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Normalize each reward per group and take the weighted sum (MO-GRPO).

    $$ A = \sum_k w_k z_k. $$

    This is GDPO without batch normalization: the two differ by one factor per batch. The size of
    the advantages grows with the number of rewards and does not depend on other groups.

    Use it for rewards in different units if a batch has few groups. A learning rate does not carry
    over to a different number of rewards. The GDPO paper reports that training without batch
    normalization sometimes fails (App. A).

    The paper has no weights and does not define the result for zero-variance groups. The formula
    is taken from secondary sources.

    References:
        Ichihara et al. 2025, "MO-GRPO", https://arxiv.org/abs/2509.22047.

    Examples:
        >>> import numpy as np
        >>> mo_grpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [-1.4142,  1.4142]])
    """
    r, w = prepare(rewards, weights)
    z = z_scores(r, noise_floor)
    return finish(weighted_sum(z, w), rewards, max_advantage=max_advantage)
