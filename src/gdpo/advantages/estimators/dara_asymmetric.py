from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish
from gdpo.advantages.estimators.dara_symmetric import boosted
from gdpo.advantages.stages import BATCH, standardize, times, weighted_sum


def dara_asymmetric(
    rewards: Rewards,
    weights: Weights,
    *,
    max_boost: Number = 5.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Apply the boost of `dara_symmetric` only to samples above the group mean (DARA, asymmetric).

    $$ A = \mathrm{norm}_{\text{batch}}
       \Bigl(\sum_k w_k \bigl[z_k + (b_k - 1) \max(z_k, 0)\bigr]\Bigr). $$

    For a reward with a negative weight, the boost applies to samples below the mean. The weighted
    sum of a group need not have mean 0, so groups without signal get nonzero advantages.

    Args:
        max_boost: $b_{\max}$, the largest factor, at least 1 (GDPO).

    References:
        "DARA" 2026, https://arxiv.org/abs/2610.00574, and its published code. `dara_symmetric`
        lists the differences from that code.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> dara_asymmetric(r, [1, 1]).round(4)
        array([[-0.5568,  0.4523],
               [-1.0613,  1.1658]])
    """
    z, w, boost = boosted(rewards, weights, max_boost, noise_floor)
    better = times(z, z.xp.where(w * z.values > 0, boost, 1.0))
    a = standardize(weighted_sum(better, w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)
