from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, floors, prepare
from gdpo.advantages.stages import BATCH, SAMPLES, centre, scale, weighted_sum


def per_reward_batch_std(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Center each reward per group, divide it by its *batch* std, and take the weighted sum.

    $$ A = \sum_k w_k \frac{c_k}{\mathrm{std}_{\text{batch}}(c_k)}, \qquad c_k = r_k - \bar r_k. $$

    Every reward gets the same standard deviation over the batch, even if it rarely varies. A reward
    that varies in a share $\pi$ of the groups is $1/\sqrt\pi$ times as large as with GDPO. A group
    that hardly varies is not scaled up.

    Use it for a rare reward that matters. Rare noise is amplified too, and the advantages of a rare
    reward are large. `noise_floor` is compared with the standard deviation over the batch.

    We know of no paper that describes this estimator. TRL's `scale_rewards="batch"` divides the sum
    of the rewards by one batch standard deviation instead (`grpo_batch_std`).

    Examples:
        The first reward varies in only one group, so it counts more there.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> per_reward_batch_std(r, [1, 1]).round(4)
        array([[-0.866 ,  0.866 ],
               [-2.0908,  2.0908]])
    """
    r, w = prepare(rewards, weights)
    z = scale(centre(r, over=SAMPLES), over=BATCH, floor=floors(noise_floor, r.values))
    return finish(weighted_sum(z, w), rewards, max_advantage=max_advantage)
