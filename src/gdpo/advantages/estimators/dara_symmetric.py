from typing import Any

from gdpo.advantages import stages as st
from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, floors, in_range, prepare
from gdpo.advantages.stages import BATCH, SAMPLES


def dara_symmetric(
    rewards: Rewards,
    weights: Weights,
    *,
    max_boost: Number = 5.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO with more weight for rewards that vary in few groups (DARA, symmetric).

    $$ A = \mathrm{norm}_{\text{batch}} \Bigl(\sum_k w_k b_k z_k\Bigr), \qquad
       b_k = \min\Bigl(b_{\max}, \sqrt{\max_l \pi_l / \pi_k}\Bigr), $$

    where $\pi_k$ is the share of groups in which reward $k$ varies. Over the batch, the sum of a
    reward's squared z-scores is proportional to $\pi_k$. Up to the limit $b_{\max}$, the boost
    makes these sums equal for all rewards.

    Use it for a rare reward that matters. Rare noise is amplified too.

    Differences from the published code: any number of rewards and weights, and normalization over
    rollouts. The formula follows the published code; we have not compared it with the paper's text.

    Args:
        max_boost: $b_{\max}$, the largest factor, at least 1 (GDPO).

    References:
        "DARA" 2026, https://arxiv.org/abs/2610.00574, and its published code.

    Examples:
        The first reward varies in only one of two groups, so it counts √2 times as much there.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> dara_symmetric(r, [1, 1]).round(4)
        array([[-0.4687,  0.4687],
               [-1.1315,  1.1315]])
    """
    z, w, boost = boosted(rewards, weights, max_boost, noise_floor)
    a = st.standardize(st.weighted_sum(st.times(z, boost), w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)


def boosted(rewards: Rewards, weights: Weights, limit: Number, noise_floor: PerReward) -> Any:
    """Return the normalized rewards, their weights and their boosts."""
    in_range("max_boost", limit, 1, float("inf"))
    r, w = prepare(rewards, weights)
    xp, c = r.xp, st.centre(r, over=SAMPLES)
    varies = (st.spread(c, over=SAMPLES) > 0) & (w != 0)
    live = xp.sum(xp.astype(varies, c.values.dtype), axis=BATCH)
    boost = xp.clip(xp.sqrt(xp.max(live) / xp.where(live > 0, live, 1.0)), 1.0, limit)
    return st.scale(c, over=SAMPLES, floor=floors(noise_floor, r.values)), w, boost
