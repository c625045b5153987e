from gdpo.advantages._types import Advantages, Rewards, Weights
from gdpo.advantages.arrays import finish, prepare
from gdpo.advantages.stages import BATCH, SAMPLES, centre, centred, divide, weighted_sum


def grpo_batch_std(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Subtract the group mean from the sum and divide by the batch standard deviation (Lite-PPO).

    $$ A = \frac{s - \bar s}{\mathrm{std}_{\text{batch}}(s)}. $$

    Groups keep their relative scale, so a group that hardly varies is not scaled up. The standard
    deviation is computed over the uncentered sums, so it grows with differences between prompts,
    which give no learning signal.

    Use it if a group that hardly varies should get small advantages, and the learning rate should
    not depend on the rewards' common unit. Rewards have the same influence as under `grpo_no_std`.

    In TRL, this is `scale_rewards="batch"`. REINFORCE++ with a baseline divides by the standard
    deviation of the centered sums instead, which differs by a common factor.

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
    _, std = centred(weighted_sum(centre(r, over=BATCH), w), over=BATCH)
    return finish(divide(total, std), rewards)
