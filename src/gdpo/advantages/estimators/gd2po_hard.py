from typing import Any

from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, in_range, prepare, z_scores
from gdpo.advantages.stages import Rounded, standardize_kept, weighted_sum


def gd2po_hard(
    rewards: Rewards,
    weights: Weights,
    *,
    threshold: Number = 0.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO without the rollouts whose rewards conflict (GD²PO, hard).

    $$ A = \mathrm{norm}_{\text{kept}} \Bigl(\rho_g \sum_k w_k z_k\Bigr), \qquad
       A = 0 \text{ for dropped rollouts,} $$

    where $\rho_g$ is the share of the group that is kept. A rollout is dropped if one of its values
    $\mathrm{sign}(w_k) z_k$ is above $\delta$ and another is below $-\delta$. With two independent
    rewards of 0 or 1, each earned by half of the rollouts, half of all rollouts are dropped.

    Use it if rollouts that do well on one reward and badly on another (a trade-off) should not be
    trained on. The advantages of a group need not sum to 0, so groups without signal get nonzero
    advantages.

    Differences from the published code: any number of rewards and weights, and normalization over
    rollouts instead of tokens.

    Args:
        threshold: $\delta$, in standard deviations, at least 0. With 0, even noise below a noise
            floor can count as a conflict.

    References:
        "GD²PO" 2026, https://arxiv.org/abs/2606.16771, and its published code.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> gd2po_hard(r, [1, 1]).round(4)
        array([[-0.7071,  0.    ,  0.    ,  0.7071]])
    """
    in_range("threshold", threshold, 0, float("inf"))
    r, w = prepare(rewards, weights)
    z = z_scores(r, noise_floor)
    a = standardize_kept(weighted_sum(z, w), ~opposed(z, w, threshold))
    return finish(a, rewards, max_advantage=max_advantage)


def opposed(z: Rounded, weights: Any, threshold: Number) -> Any:
    """Return a mask of the rollouts in which two rewards conflict by more than the threshold."""
    xp = z.xp
    pull = xp.sign(weights) * xp.where(xp.isnan(z.values), 0.0, z.values)
    enough = threshold + z.error  # a value within its rounding error counts as 0
    return xp.any(pull > enough, axis=-1) & xp.any(pull < -enough, axis=-1)
