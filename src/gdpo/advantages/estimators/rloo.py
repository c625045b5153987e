from gdpo.advantages._types import Advantages, Rewards, Weights
from gdpo.advantages.arrays import finish, prepare
from gdpo.advantages.stages import SAMPLES, centre, present_in, times, weighted_sum, without_oneself


def rloo(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Subtract the mean of the *other* samples in the group from each sample's sum (RLOO).

    $$ A_i = s_i - \frac{1}{n-1} \sum_{j \ne i} s_j = \frac{n}{n-1} (s_i - \bar s), $$

    where $n$ is the number of samples in the group that have a reward. The baseline is unbiased
    because it excludes the sample itself. The result equals `grpo_no_std` times $n/(n-1)$, and
    keeps the unit of the weighted rewards.

    In TRL, this is the `RLOOTrainer`. In NeMo-RL, it is `grpo` with
    `use_leave_one_out_baseline=True` (the default) and `normalize_rewards=False`.

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
    return finish(times(total, without_oneself(n)), rewards)
