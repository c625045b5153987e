from gdpo.advantages import stages as st
from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, floors, prepare
from gdpo.advantages.stages import BATCH, SAMPLES


def gdpo_leave_one_out(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO with the mean and standard deviation of the *other* samples in the group.

    $$ z_{ik} = \frac{r_{ik} - \mathrm{mean}_{j \ne i}(r_{jk})}{\mathrm{std}_{j \ne i}(r_{jk})},
       \qquad A = \mathrm{norm}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    If all others are equal, the difference is not divided and keeps the unit of the reward, as in
    NeMo-RL. If they are nearly equal, the quotient can be arbitrarily large: set `max_advantage`.
    The scores of a group need not sum to 0, so groups without signal get nonzero advantages.

    Use it to reproduce a NeMo-RL run: NeMo-RL's `gdpo` uses this formula by default. (With
    `use_leave_one_out_baseline=False`, it computes plain GDPO.) None of our measurements shows a
    clear advantage over `gdpo`.

    Difference from NeMo-RL: NeMo-RL subtracts squares, which adds rounding errors to the standard
    deviation.

    References:
        NeMo-RL, `nemo_rl/algorithms/advantage_estimator.py` (commit 7ea279a). No paper.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0], [1.0], [3.0]], [[1.0], [1.0], [1.0]]])
        >>> gdpo_leave_one_out(r, [1]).round(4)
        array([[-1.0343, -0.3291,  1.9276],
               [-0.1881, -0.1881, -0.1881]])
    """
    r, w = prepare(rewards, weights)
    xp, floor = r.xp, floors(noise_floor, r.values)
    c, n = st.centre(r, over=SAMPLES), st.present_in(r, over=SAMPLES)
    difference = st.times(c, st.without_oneself(n))
    std = st.spread_of_others(c)
    std = std if floor is None else xp.maximum(std, floor)
    z = st.divide(difference, xp.where(std > 0, std, 1.0))
    a = st.standardize(st.weighted_sum(z, w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)
