"""From recorded rollouts back to arrays: what an estimator was given, and what it made of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gdpo.errors import DataError
from gdpo.rollouts.record import Rollout


@dataclass(frozen=True, slots=True)
class RewardArrays:
    """The rollouts of one or several steps as arrays."""

    names: tuple[str, ...]
    """The rewards, in the order of the array."""
    weights: tuple[float, ...]
    rewards: Float[np.ndarray, "prompt sample reward"]
    """NaN: does not apply, or there is no such rollout."""
    advantages: Float[np.ndarray, "prompt sample"]
    """0 where there is no such rollout."""


def reward_arrays(rollouts: Sequence[Rollout]) -> RewardArrays:
    """Put recorded rollouts in their groups: same step and same `group_id`.

    Raises:
        DataError: There are none, or they differ in their rewards or weights.
    """
    if not rollouts:
        raise DataError("no rollouts: there is nothing to put into arrays")
    names, weights = tuple(rollouts[0].rewards), tuple(rollouts[0].weights.values())
    groups: dict[tuple[int, int], list[Rollout]] = {}
    for rollout in rollouts:
        if tuple(rollout.rewards) != names or tuple(rollout.weights.values()) != weights:
            raise DataError(
                f"step {rollout.step} has other rewards or weights than step {rollouts[0].step}: "
                f"put together only rollouts of one recipe"
            )
        groups.setdefault((rollout.step, rollout.group_id), []).append(rollout)
    size = max(len(group) for group in groups.values())
    rewards = np.full((len(groups), size, len(names)), np.nan)
    advantages = np.zeros((len(groups), size))
    for p, group in enumerate(groups.values()):
        for s, rollout in enumerate(group):
            values = [rollout.rewards[name] for name in names]
            rewards[p, s] = [np.nan if value is None else value for value in values]
            advantages[p, s] = rollout.advantage
    return RewardArrays(names, weights, rewards, advantages)
