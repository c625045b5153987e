"""Updates the multipliers of `constrained_grpo` after each batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf, isnan, nan
from typing import Any

from gdpo.advantages._types import Number, Rewards
from gdpo.advantages.arrays import in_range, positive, rounded
from gdpo.advantages.stages import BATCH, mean
from gdpo.errors import ConfigError, DataError


@dataclass(slots=True)
class DualAscent:
    r"""Stores the multipliers of `constrained_grpo` and updates them after each batch.

    After each batch, the multiplier of each reward with a target is updated:

    $$ \lambda_k \leftarrow \min\bigl(\lambda_{\max}, \max(0,
       \lambda_k + \eta\, (\mathrm{target}_k - \mathrm{mean}_{\text{batch}}(r_k)))\bigr). $$

    If a reward does not apply to any rollout of the batch, its multiplier does not change. `state`
    and `restore` save and load the multipliers.

    Args:
        targets: Mean that each reward should reach, in the reward's unit. NaN: no constraint.
        step_size: $\eta$, the change in a multiplier per batch, per unit by which the mean misses
            the target. Must be above 0.
        start: Initial value of all multipliers, from 0 to `maximum`.
        maximum: $\lambda_{\max}$, the upper limit of the multipliers. Must be above 0.

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
    multipliers: list[float] = field(default_factory=list[float])

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
        """Update the multipliers with one batch of rewards, `[prompt, sample, reward]`."""
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
        """Load multipliers that were returned by `state`.

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
