from gdpo.advantages import stages as st
from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, in_range, prepare, z_scores
from gdpo.advantages.stages import BATCH


def gdpo_decorrelated(
    rewards: Rewards,
    weights: Weights,
    *,
    power: Number = 0.5,
    shrinkage: Number = 0.1,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO with weights that are corrected for the correlation between the rewards.

    $$ A = \mathrm{norm}_{\text{batch}} \Bigl(\sum_k w'_k z_k\Bigr), \qquad
       w' = \bigl((1 - \lambda) C + \lambda I\bigr)^{-\alpha} w, $$

    where $C$ is the correlation matrix of the normalized rewards over the batch. The covariance of
    $\sum_k w_k z_k$ with $z_k$ is $(C w)_k$, not $w_k$, so two rewards that agree count twice in
    GDPO. With $\alpha = 1$, the influence of each reward equals its weight share. With
    $\alpha = 1/2$, the rewards are whitened (ZCA).

    Use it for three or more rewards if some agree, such as two judges. With two rewards of equal
    weight, the result equals GDPO's. Directions in which the rewards hardly vary are amplified by a
    factor of at most $\lambda^{-\alpha}$. If rewards are strongly opposed, such a direction is
    mostly noise. With few groups, use a larger $\lambda$.

    RDPO whitens quantiles instead of z-scores. We know of no paper that describes this version.

    Args:
        power: $\alpha$, from 0 (GDPO) to 1.
        shrinkage: $\lambda$, from 1e-6 to 1 (GDPO).

    References:
        "RDPO" 2026, https://arxiv.org/abs/2605.13641.

    Examples:
        One reward is listed twice, another once. With α = 1, both have the same influence.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])
        >>> gdpo_decorrelated(r, [1, 1, 1], power=1, shrinkage=0.001).round(2)
        array([[-0.  ,  1.22,  0.  , -1.22]])
    """
    in_range("power", power, 0, 1)
    in_range("shrinkage", shrinkage, 1e-6, 1)
    r, w = prepare(rewards, weights)
    z = z_scores(r, noise_floor)
    corrected = st.decorrelated(z, w, power=power, shrinkage=shrinkage)
    a = st.standardize(st.weighted_sum(z, corrected), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)
