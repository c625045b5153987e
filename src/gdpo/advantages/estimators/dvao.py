from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, floors, prepare
from gdpo.advantages.stages import SAMPLES, centre, divide, scale, spread, times, weighted_sum


def dvao(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Weight each normalized reward by its share of the group's standard deviation (DVAO).

    $$ A = \sum_k \tilde w_k z_k, \qquad
       \tilde w_k = \frac{w_k \sigma_k}{\sum_l |w_l| \sigma_l},
       \qquad\text{so that}\quad A = \frac{\sum_k w_k (r_k - \bar r_k)}{\sum_l |w_l| \sigma_l}. $$

    The numerator is GRPO's. The denominator is the largest standard deviation that the sum could
    have. So within a group, the advantages are proportional to GRPO's and never larger. A weight in
    effect multiplies the raw reward.

    Use it if GRPO's direction is right and groups with conflicting rewards should count less. A
    rare reward has even less influence than under GRPO.

    Differences from the paper: the sample instead of the population standard deviation, and the
    absolute value of a negative weight in the denominator. The formula is taken from secondary
    sources.

    References:
        Jiang et al. 2026, "DVAO", https://arxiv.org/abs/2605.25604.

    Examples:
        >>> import numpy as np
        >>> dvao(np.array([[[0.0, 0.0], [0.0, 3.0]], [[0.0, 3.0], [1.0, 0.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [ 0.3536, -0.3536]])
    """
    r, w = prepare(rewards, weights)
    c = centre(r, over=SAMPLES)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    std = spread(c, over=SAMPLES)
    bound = r.xp.sum(r.xp.abs(w) * std, axis=-1)
    a = divide(weighted_sum(times(z, std), w), bound)
    return finish(a, rewards, max_advantage=max_advantage)
