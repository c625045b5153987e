from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, per_reward, prepare, z_scores
from gdpo.advantages.stages import times, weighted_sum
from gdpo.errors import ConfigError


def constrained_grpo(
    rewards: Rewards,
    weights: Weights,
    *,
    multipliers: PerReward,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Add normalized rewards, with a multiplier for each constraint (Constrained GRPO).

    $$ A = \sum_{k \text{ objective}} w_k z_k + \sum_{k \text{ constraint}} \lambda_k w_k z_k. $$

    A constraint is a reward whose mean should reach a target. After each batch, `DualAscent` raises
    the multiplier $\lambda_k$ of a violated constraint, and lowers that of a met one, at most to 0.
    A rare violation has a large $z$ in its group, as in every estimator that divides by the group's
    standard deviation.

    Differences from the paper: constraints are rewards instead of indicator costs (equivalent for
    rewards of 0 and 1). The formula is taken from secondary sources.

    Args:
        weights: Leave those of constraints at 1.
        multipliers: $\lambda$ of each constraint, at least 0. NaN: the reward is an objective.

    References:
        Girgis et al. 2026, "Constrained GRPO", https://arxiv.org/abs/2602.05863.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 1.0], [1.0, 0.0]]])
        >>> constrained_grpo(r, [1, 1], multipliers=[np.nan, 2]).round(4)
        array([[ 0.7071, -0.7071]])
    """
    r, w = prepare(rewards, weights)
    xp, duals = r.xp, per_reward(multipliers, r.values, name="multipliers")
    if bool(xp.any(duals < 0)):
        raise ConfigError(
            f"multipliers must be 0 or more, or NaN for a reward without a constraint, got "
            f"{[float(m) for m in duals]}: replace the negative values"
        )
    z = z_scores(r, noise_floor)
    total = weighted_sum(times(z, xp.where(xp.isnan(duals), 1.0, duals)), w)
    return finish(total, rewards, max_advantage=max_advantage)
