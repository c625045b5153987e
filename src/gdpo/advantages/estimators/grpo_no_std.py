from gdpo.advantages._types import Advantages, Rewards, Weights
from gdpo.advantages.arrays import finish, prepare
from gdpo.advantages.stages import SAMPLES, centre, weighted_sum


def grpo_no_std(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Take the weighted sum of the rewards and subtract the group mean (Dr. GRPO).

    $$ A = s - \bar s. $$

    The advantages keep the unit of the weighted rewards, and grow in proportion to them.

    Use it for rewards in the same unit, if a difference of 0.1 should count a tenth as much as a
    difference of 1. As a control, it shows the effect of dividing by a standard deviation. The
    reward with the largest standard deviation dominates, as under `grpo`. The GDPO paper reports
    0 % correctly formatted tool calls for it, and 76 % for GRPO (Table 2).

    In TRL, this is `scale_rewards="none"`, and in verl `norm_adv_by_std_in_grpo=False`.

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
