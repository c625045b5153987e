from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, floors, positive, prepare
from gdpo.advantages.stages import SAMPLES, centre, divide, scale, spread, weighted_sum


def corr_grpo(
    rewards: Rewards,
    weights: Weights,
    *,
    epsilon: Number = 1e-6,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Divide the centered sum by the correlation of the rewards in the group (CorrGRPO).

    $$ A = \frac{\sum_k w_k (r_k - \bar r_k)}{\sqrt{\sum_{k,l} \hat\rho_{kl} + \epsilon}}, $$

    where $\hat\rho$ is the correlation matrix of the weighted rewards in the group, without
    constant rewards. The double sum is the variance of $\sum_k \mathrm{sign}(w_k) z_k$. Within a
    group, the advantages are proportional to GRPO's, but keep the unit of the rewards. For a single
    reward, the result equals `grpo_no_std`; if it is listed several times, the result is divided by
    the number of copies.

    If the rewards of a group oppose each other, the denominator approaches 0, and advantages can
    reach several hundred, up to $\epsilon^{-1/2}$ times the centered sum: set `max_advantage`.

    Difference from the paper: ε is inside the square root, as in the published code, on which the
    published numbers depend.

    Args:
        epsilon: Keeps the denominator away from 0. Dimensionless; above 0.
        noise_floor: Standard deviation below which a reward counts less in the correlation.

    References:
        "CorrGRPO" 2026, https://arxiv.org/abs/2609.36820, and its published code.

    Examples:
        The sum of two independent rewards is divided by √2.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> corr_grpo(r, [1, 1]).round(4)
        array([[-0.7071,  0.    ,  0.    ,  0.7071]])
    """
    positive("epsilon", epsilon)
    r, w = prepare(rewards, weights)
    c = centre(r, over=SAMPLES)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    together = spread(weighted_sum(z, r.xp.sign(w)), over=SAMPLES)
    a = divide(weighted_sum(c, w), r.xp.sqrt(together * together + epsilon))
    return finish(a, rewards, max_advantage=max_advantage)
