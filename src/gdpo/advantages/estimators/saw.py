from gdpo.advantages import stages as st
from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import above_low, finish, prepare, z_scores
from gdpo.advantages.stages import BATCH


def saw(
    rewards: Rewards,
    weights: Weights,
    *,
    low: PerReward,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO with weights multiplied by each reward's coefficient of variation (SAW).

    $$ A = \mathrm{norm}_{\text{batch}} \Bigl(\sum_k w_k \omega_k z_k\Bigr), \qquad
       \omega_k = K \frac{\mathrm{CV}_k}{\sum_l \mathrm{CV}_l}, \qquad
       \mathrm{CV}_k = \frac{\mathrm{std}_{\text{batch}}(r_k)}
                            {\mathrm{mean}_{\text{batch}}(r_k) - \mathrm{low}_k}. $$

    Use it for a rare reward that matters: a rarely earned reward gets more weight, and one that is
    nearly always earned, or stays in the middle of its range, gets less. Rare noise is amplified
    too, and so is jitter near `low`.

    Differences from the published code: any number of rewards and weights, and normalization over
    rollouts instead of tokens. A constant reward has $\mathrm{CV} = 0$.

    Args:
        low: Lowest possible value of each reward, in the reward's unit. The weights depend on it. A
            reward whose mean is below it raises a `DataError`.

    References:
        "SAW" 2026, https://arxiv.org/abs/2606.07705, and its published code (`gdpo-h`).

    Examples:
        The second reward is earned half as often as the first.

        >>> import numpy as np
        >>> r = np.array([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])
        >>> saw(r, [1, 1], low=[0, 0]).round(4)
        array([[ 0.    ,  1.4142, -0.7071, -0.7071]])
    """
    r, w = prepare(rewards, weights)
    xp = r.xp
    above = above_low(r, w, low)
    std = st.spread(st.centre(r, over=BATCH), over=BATCH)
    cv = xp.where(std > 0, std / xp.where(above > 0, above, 1.0), 0.0)
    used = xp.where(st.used_rewards(w), cv, 0.0)
    largest = xp.max(used)
    relative = used / xp.where(largest > 0, largest, 1.0)
    z = z_scores(r, noise_floor)
    a = st.standardize(st.weighted_sum(st.times(z, relative), w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)
