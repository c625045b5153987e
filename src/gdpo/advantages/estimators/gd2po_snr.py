from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, in_range, prepare, z_scores
from gdpo.advantages.estimators.gd2po_hard import opposed
from gdpo.advantages.stages import below, standardize_kept, weighted_sum


def gd2po_snr(
    rewards: Rewards,
    weights: Weights,
    *,
    threshold: Number = 0.2,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Compute GDPO without the rollouts whose rewards nearly cancel (GD²PO, signal-to-noise).

    A rollout is dropped if it has both a positive and a negative $\mathrm{sign}(w_k) z_k$, and

    $$ \frac{\bigl|\sum_k w_k z_k\bigr|}{\sum_k |w_k z_k|} < \tau. $$

    What is kept is normalized as in `gd2po_hard`, whose docstring lists the differences from the
    published code.

    Args:
        threshold: $\tau$, from 0 (same as GDPO) to 1 (same as `gd2po_hard`). The published code
            also has the default 0.2, but its scripts use 0.8.

    References:
        "GD²PO" 2026, https://arxiv.org/abs/2606.16771, and its published code.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> gd2po_snr(r, [1, 0.5]).round(4)
        array([[-1.1619, -0.3873,  0.3873,  1.1619]])
    """
    in_range("threshold", threshold, 0, 1)
    r, w = prepare(rewards, weights)
    xp = r.xp
    z = z_scores(r, noise_floor)
    total = weighted_sum(z, w)
    force = xp.sum(xp.abs(w) * xp.where(xp.isnan(z.values), 0.0, xp.abs(z.values)), axis=-1)
    cancels = below(xp.abs(total.values), threshold * force, size=force)
    a = standardize_kept(total, ~(opposed(z, w, 0.0) & cancels))
    return finish(a, rewards, max_advantage=max_advantage)
