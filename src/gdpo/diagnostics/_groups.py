"""How far each reward varies in the groups of a batch, and which groups teach nothing."""

from typing import Any

from array_api_compat import array_namespace
from jaxtyping import Float

from gdpo.advantages.arrays import Advantages, Rewards, rounded
from gdpo.advantages.stages import SAMPLES, centre, spread


def group_std(rewards: Rewards) -> Float[Any, " reward"]:
    """Sample standard deviation of each reward within a group, averaged over groups.

    Groups that a reward does not apply to are left out of its average.

    Args:
        rewards: `[prompt, sample, reward]`; NaN: does not apply.

    Returns:
        One number per reward, in its unit; NaN for a reward that applies nowhere.
    """
    return _mean_over_groups(_std_in_group(rewards), rewards)


def dead_groups(rewards: Rewards) -> Float[Any, " reward"]:
    """Share of groups in which a reward does not vary, among the groups that it applies to.

    Such a group teaches nothing about this reward: every sample did equally well or equally badly.

    Args:
        rewards: `[prompt, sample, reward]`; NaN: does not apply.

    Returns:
        One share in [0, 1] per reward; NaN for a reward that applies nowhere.
    """
    xp = array_namespace(rewards)
    std = _std_in_group(rewards)
    return _mean_over_groups(xp.astype(std == 0, std.dtype), rewards)


def silent_groups(advantages: Advantages) -> float:
    """Share of groups in which every advantage is exactly 0: they train nothing.

    Args:
        advantages: `[prompt, sample]`.

    Returns:
        A share in [0, 1].
    """
    xp = array_namespace(advantages)
    silent = xp.all(advantages == 0, axis=1)
    return float(xp.mean(xp.astype(silent, advantages.dtype)))


def _std_in_group(rewards: Rewards) -> Float[Any, "prompt reward"]:
    return spread(centre(rounded(rewards), over=SAMPLES), over=SAMPLES)[:, 0, :]


def _mean_over_groups(
    values: Float[Any, "prompt reward"], rewards: Rewards
) -> Float[Any, " reward"]:
    xp = array_namespace(rewards)
    applies = xp.any(~xp.isnan(rewards), axis=SAMPLES)
    count = xp.sum(xp.astype(applies, values.dtype), axis=0)
    total = xp.sum(xp.where(applies, values, 0.0), axis=0)
    return xp.where(count > 0, total / xp.where(count > 0, count, 1.0), xp.nan)
