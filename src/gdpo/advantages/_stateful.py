"""Keeps the state of estimators: multipliers, or a running scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, expm1, hypot, inf, isinf, isnan, log, nan, sqrt
from typing import Any

from gdpo.advantages._types import Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import in_range, positive, prepare, rounded, z_scores
from gdpo.advantages.stages import BATCH, SAMPLES, mean, present_in, spread, weighted_sum
from gdpo.errors import ConfigError, DataError


@dataclass(slots=True)
class DualAscent:
    r"""Stores the multipliers of `constrained_grpo`.

    After each batch, the multiplier of each reward with a target is updated:

    $$ \lambda_k \leftarrow \min\bigl(\lambda_{\max}, \max(0,
       \lambda_k + \eta\, (\mathrm{target}_k - \mathrm{mean}_{\text{batch}}(r_k)))\bigr). $$

    If a reward does not apply to any rollout of the batch, its multiplier does not change.

    Args:
        targets: Mean that each reward should reach, in the reward's unit. NaN: no constraint.
        step_size: $\eta$, the change in a multiplier per batch and per unit by which the mean
            misses its target. Above 0.
        start: Initial multiplier, from 0 to `maximum`.
        maximum: $\lambda_{\max}$, above 0.

    Raises:
        ConfigError: If no reward has a target, or a number is out of range.

    Examples:
        >>> import numpy as np
        >>> duals = DualAscent(targets=[np.nan, 0.9], step_size=1.0)
        >>> duals.update(np.zeros((2, 4, 2)))
        >>> duals.multipliers
        [nan, 0.9]
    """

    targets: Sequence[Number]
    step_size: Number = 0.1
    start: Number = 0.0
    maximum: Number = 10.0
    multipliers: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        positive("step_size", self.step_size)
        positive("maximum", self.maximum)
        in_range("start", self.start, 0, self.maximum)
        if any(isinf(target) for target in self.targets):
            raise ConfigError(
                f"targets must be finite numbers, or NaN for no constraint, got {self.targets}"
            )
        if all(isnan(target) for target in self.targets):
            raise ConfigError(
                "targets contains no number: set the mean that at least one reward should reach, "
                "as in targets={'format': 0.95}"
            )
        self.multipliers = self.multipliers or [t if isnan(t) else self.start for t in self.targets]

    def update(self, rewards: Rewards) -> None:
        """Update the multipliers with a batch, `[prompt, sample, reward]`."""
        if rewards.shape[-1] != len(self.targets):
            raise DataError(
                f"the batch has {rewards.shape[-1]} rewards, but there are {len(self.targets)} "
                "targets: set one target per reward"
            )
        r = rounded(rewards)
        means = r.xp.reshape(mean(r.values, over=BATCH), (-1,))
        for k, target in enumerate(self.targets):
            reached = float(means[k])
            if not isnan(target) and not isnan(reached):
                moved = self.multipliers[k] + self.step_size * (target - reached)
                self.multipliers[k] = min(self.maximum, max(0.0, moved))

    def state(self) -> dict[str, Any]:
        """Return the multipliers in JSON types, for `restore`."""
        return {"multipliers": [None if isnan(m) else m for m in self.multipliers]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load multipliers that `state` returned.

        Raises:
            ConfigError: If the multipliers belong to different constraints.
        """
        saved = [nan if m is None else float(m) for m in state["multipliers"]]
        if [isnan(m) for m in saved] != [isnan(t) for t in self.targets]:
            raise ConfigError(
                "the saved multipliers belong to different constraints: resume with the same "
                "targets"
            )
        self.multipliers = saved


@dataclass
class RunningScale:
    r"""Stores a running scale that replaces `gdpo`'s normalization over the batch.

    The sum $s = \sum_k w_k z_k$ adds up to 0 in each group, so normalization over a batch divides
    $s$ by its root mean square over the batch. This class estimates it from the groups so far,
    including the one being trained on.

    Zero-advantage groups do not count, unlike in batch normalization, whose advantages are $1/\sqrt
    p$ times as large if a share $p$ of a batch's groups varies. Each rollout counts once: the scale
    cannot replace a normalization weighted by tokens.

    Args:
        half_life: Number of groups after which a group counts half as much. Above 0.
        noise_floor: The `noise_floor` that `gdpo` is called with.

    Raises:
        ConfigError: If `half_life` is not finite and above 0.

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

        Groups passed together count equally. Arguments and errors are those of `gdpo`.
        """
        self.value, self.rollouts = self._including(rewards, weights)

    def including(self, rewards: Rewards, weights: Weights) -> float:
        """Return the value that the scale would have after `update`."""
        return self._including(rewards, weights)[0]

    def state(self) -> dict[str, Any]:
        """Return the scale in JSON types, for `restore`."""
        return {"scale": self.value, "rollouts": self.rollouts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a scale that `state` returned.

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
        total = weighted_sum(z_scores(r, self.noise_floor), w)
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
