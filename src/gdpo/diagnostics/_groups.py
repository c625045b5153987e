"""How far each reward varies in the groups of a batch, and which groups teach nothing."""

from typing import Any

from array_api_compat import array_namespace
from jaxtyping import Float

from gdpo.advantages.arrays import Advantages, Rewards, rounded
from gdpo.advantages.stages import SAMPLES, mean, raw_spread

Spreads = Float[Any, "prompt reward"]
"""Spread of each reward in each group, in its unit; NaN where the reward does not apply."""


def group_std(rewards: Rewards) -> Float[Any, " reward"]:
    """Sample standard deviation of each reward within a group, averaged over groups.

    Groups that a reward does not apply to are left out of its average.

    Args:
        rewards: `[prompt, sample, reward]`; NaN: does not apply.

    Returns:
        One number per reward, in its unit; NaN for a reward that applies nowhere.
    """
    return mean_std(_spreads(rewards))


def dead_groups(rewards: Rewards) -> Float[Any, " reward"]:
    """Share of groups in which a reward does not vary, among the groups that it applies to.

    Such a group teaches nothing about this reward: every sample did equally well or equally badly.

    Args:
        rewards: `[prompt, sample, reward]`; NaN: does not apply.

    Returns:
        One share in [0, 1] per reward; NaN for a reward that applies nowhere.
    """
    return dead_share(_spreads(rewards))


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


def mean_std(spreads: Spreads) -> Float[Any, " reward"]:
    """Mean spread of each reward over the groups that it applies to."""
    return mean(spreads, over=0)[0, :]


def dead_share(spreads: Spreads) -> Float[Any, " reward"]:
    """Share of the groups that each reward applies to in which its spread is 0."""
    xp = array_namespace(spreads)
    dead = xp.where(xp.isnan(spreads), spreads, xp.astype(spreads == 0, spreads.dtype))
    return mean(dead, over=0)[0, :]


def below_resolution(spreads: Spreads, rewards: Rewards) -> Float[Any, " reward"]:
    """Return the share of groups whose values differ but whose standard deviation counts as 0."""
    xp = array_namespace(rewards)
    missing = xp.isnan(rewards)
    highest = xp.max(xp.where(missing, -xp.inf, rewards), axis=SAMPLES)
    lowest = xp.min(xp.where(missing, xp.inf, rewards), axis=SAMPLES)
    lost = (spreads == 0) & (highest > lowest)
    return mean(xp.where(xp.isnan(spreads), spreads, xp.astype(lost, spreads.dtype)), over=0)[0, :]


def where_it_applies(spreads: Spreads, rewards: Rewards) -> Spreads:
    """The spreads, with NaN instead of 0 where a group has no value of the reward."""
    xp = array_namespace(spreads)
    return xp.where(xp.any(~xp.isnan(rewards), axis=SAMPLES), spreads, xp.nan)


def _spreads(rewards: Rewards) -> Spreads:
    x = rounded(rewards)
    return where_it_applies(raw_spread(x, over=SAMPLES)[:, 0, :], x.values)
