from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import declared, finish, in_range, prepare, z_scores
from gdpo.advantages.stages import BATCH, mean, standardize, times, weighted_sum
from gdpo.errors import ConfigError


def sa_mrpo(
    rewards: Rewards,
    weights: Weights,
    *,
    low: PerReward,
    high: PerReward,
    gamma: Number = 0.5,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO with less weight for rewards whose mean is near their maximum (SA-MRPO).

    $$ A = \mathrm{norm}_{\text{batch}} \Bigl(\sum_k w_k (1 - s_k)^\gamma z_k\Bigr), \qquad
       s_k = \frac{\mathrm{mean}_{\text{batch}}(r_k) - \mathrm{low}_k}
                  {\mathrm{high}_k - \mathrm{low}_k}. $$

    Use it if one reward is nearly always earned and another is not. Declare ranges that the rewards
    can reach. Once learned, a reward gets a weight near 0 and may decline again. Difference
    from the paper: $s_k$ is clipped to $[0, 1]$.

    Args:
        low: Lowest possible value of each reward, in the reward's unit.
        high: Highest possible value, in the same form.
        gamma: $\gamma$, at least 0. With a larger γ, rewards lose weight earlier. 0: GDPO.

    References:
        "SA-MRPO" 2026, https://arxiv.org/abs/2608.16072.

    Examples:
        The means of the rewards are at 3/4 and 1/2 of their ranges.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> sa_mrpo(r, [1, 1], low=[0, 0], high=[1, 1]).round(4)
        array([[-1.2659,  0.8013, -0.3367,  0.8013]])
    """
    in_range("gamma", gamma, 0, float("inf"))
    r, w = prepare(rewards, weights)
    xp = r.xp
    bottom, top = declared(low, r.values, name="low"), declared(high, r.values, name="high")
    if not bool(xp.all(top > bottom)):
        raise ConfigError(
            f"high must be above low for every reward, got low {[float(v) for v in bottom]} and "
            f"high {[float(v) for v in top]}: change one of them"
        )
    saturation = (mean(r.values, over=BATCH) - bottom) / (top - bottom)
    room = xp.where(xp.isnan(saturation), 1.0, 1 - xp.clip(saturation, 0.0, 1.0))
    z = z_scores(r, noise_floor)
    a = standardize(weighted_sum(times(z, room**gamma), w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)
