"""Replaces batch normalization by a running scale, for groups that arrive one at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, expm1, hypot, inf, log, sqrt
from typing import Any

from gdpo.advantages._types import Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import floors, positive, prepare
from gdpo.advantages.stages import SAMPLES, present_in, spread, standardize, weighted_sum
from gdpo.errors import ConfigError


@dataclass
class RunningScale:
    r"""Stores a running scale that replaces `gdpo`'s normalization over the batch.

    The sum $s = \sum_k w_k z_k$ adds up to 0 in each group, so normalization over a batch divides
    $s$ by its root mean square over the batch. This class estimates that number from the groups so
    far, including the one being trained on. A group counts half as much after `half_life`
    further groups.

    Zero-advantage groups do not count, unlike in batch normalization: if a share $p$ of a batch's
    groups varies, its advantages are $1/\sqrt p$ times as large as with the running scale. Each
    rollout counts once: the running scale cannot replace a normalization weighted by tokens.

    Args:
        half_life: Number of groups after which a group counts half as much. Must be above 0.
        noise_floor: The `noise_floor` that `gdpo` is called with.

    Raises:
        ConfigError: If `half_life` is not a finite number above 0.

    Examples:
        >>> import numpy as np
        >>> from gdpo import gdpo
        >>> scale, weights = RunningScale(), [1.0, 1.0]
        >>> for group in ([[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]):
        ...     rewards = np.array([group])
        ...     scale.update(rewards, weights)
        ...     print(gdpo(rewards, weights, scale=scale.value).round(2))
        [[-1.  1.]]
        [[-1.26  1.26]]
    """

    half_life: Number = 128
    noise_floor: PerReward = None
    value: float = 0.0
    """Root mean square of the sum. 0: no group has counted yet."""
    rollouts: float = 0.0
    """Number of rollouts that have counted, discounted by their age."""

    def __post_init__(self) -> None:
        positive("half_life", self.half_life)

    def update(self, rewards: Rewards, weights: Weights) -> None:
        """Include groups, `[prompt, sample, reward]`, in the scale.

        Groups that are passed together count equally. The arguments and errors are those of `gdpo`.
        """
        self.value, self.rollouts = self._including(rewards, weights)

    def including(self, rewards: Rewards, weights: Weights) -> float:
        """Return the value that the scale would have after `update`. The scale does not change."""
        value, _ = self._including(rewards, weights)
        return value

    def state(self) -> dict[str, Any]:
        """Return the scale in JSON types, for `restore`."""
        return {"scale": self.value, "rollouts": self.rollouts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a scale that was returned by `state`.

        Raises:
            ConfigError: If the state was not saved by a running scale.
        """
        found = [state.get(key) for key in self.state()]
        saved = [float(x) for x in found if isinstance(x, int | float) and 0 <= x < inf]
        if len(saved) != len(found):
            raise ConfigError(
                f"the saved state {dict(state)!r:.80} is not from a running scale: resume with the "
                "same estimator and options"
            )
        self.value, self.rollouts = saved

    def _including(self, rewards: Rewards, weights: Weights) -> tuple[float, float]:
        r, w = prepare(rewards, weights)
        floor = floors(self.noise_floor, r.values)
        total = weighted_sum(standardize(r, over=SAMPLES, floor=floor), w)
        xp, std = total.xp, spread(total, over=SAMPLES)
        groups, largest = int(xp.sum(xp.astype(std > 0, xp.int64))), xp.max(std)
        if groups == 0:
            return self.value, self.rollouts
        count = xp.where(std > 0, present_in(total, over=SAMPLES), 0.0)
        squares = (std / largest) ** 2 * (count - 1)
        rollouts = float(xp.sum(count))
        found = float(largest) * sqrt(float(xp.sum(squares)) / rollouts)
        rate = log(2) / self.half_life
        before = exp(-rate * groups) * self.rollouts
        added = rollouts * expm1(-rate * groups) / (groups * expm1(-rate))
        share = added / (before + added)
        return hypot(sqrt(1 - share) * self.value, sqrt(share) * found), before + added
