"""Rewards that must reach a target instead of growing without end: multipliers and dual ascent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf, isnan, nan
from typing import Any

from gdpo.advantages.arrays import (
    Advantages,
    Number,
    PerReward,
    Rewards,
    Weights,
    finish,
    floors,
    in_range,
    per_reward,
    positive,
    prepare,
    rounded,
)
from gdpo.advantages.stages import BATCH, SAMPLES, mean, namespace, standardize, times, weighted_sum
from gdpo.errors import ConfigError, DataError


def constrained_grpo(
    rewards: Rewards,
    weights: Weights,
    *,
    multipliers: PerReward,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Constrained GRPO: normalized rewards, of which the constrained ones are weighted by need.

    $$ A = \sum_{k \text{ objective}} w_k z_k + \sum_{k \text{ constraint}} \lambda_k w_k z_k, $$

    with $z_k$ the reward normalized in its group. `DualAscent` moves the multipliers $\lambda_k$
    from batch to batch: up while a constraint is violated, down to 0 while it is met. A constraint
    is a reward that should reach a level here; the paper's costs are its negatives.

    A violation that is rare has a large $z$ in its group, as in every estimator of this kind.

    Differs from the paper: constraints are rewards, not indicator costs (the same thing for
    rewards of 0 and 1); a group without spread gives exactly 0. The formula is taken from
    secondary sources.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit. Leave those of constraints at 1.
        multipliers: $\lambda$ of each constraint, 0 or more; NaN for an objective.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean in each group; 0 where no reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        Girgis et al. 2026, "Constrained GRPO", https://arxiv.org/abs/2602.05863.

    Example:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 1.0], [1.0, 0.0]]])
        >>> constrained_grpo(r, [1, 1], multipliers=[np.nan, 2]).round(4)
        array([[ 0.7071, -0.7071]])
    """
    r, w = prepare(rewards, weights)
    xp = namespace(r.values)
    duals = per_reward(multipliers, r.values, name="multipliers")
    if bool(xp.any(duals < 0)):
        raise ConfigError("multipliers must be 0 or more, or NaN for a reward without constraint")
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    total = weighted_sum(times(z, xp.where(xp.isnan(duals), 1.0, duals)), w)
    return finish(total, rewards, max_advantage=max_advantage)


@dataclass(slots=True)
class DualAscent:
    r"""The multipliers of `constrained_grpo`, and how they follow the violations.

    After each batch, for each reward with a target,

    $$ \lambda_k \leftarrow \min\bigl(\lambda_{\max}, \max(0,
       \lambda_k + \eta\, (\mathrm{target}_k - \mathrm{mean}_{\text{batch}}(r_k)))\bigr). $$

    A reward that applies nowhere in the batch leaves its multiplier as it is. `state` and `restore`
    carry it over an interruption.

    Args:
        targets: The mean that each reward should reach, in its unit; NaN: no constraint.
        step_size: $\eta$, per unit of the reward and batch.
        start: The multipliers at the start, 0 or more.
        maximum: $\lambda_{\max}$.

    Raises:
        ConfigError: No target at all, or a number out of range.

    Example:
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
            raise ConfigError(f"targets must be finite, or NaN for no constraint: {self.targets}")
        if all(isnan(target) for target in self.targets):
            raise ConfigError(
                "targets names no reward: give the mean that a reward should reach, as in "
                "targets={'format': 0.95}"
            )
        self.multipliers = self.multipliers or [t if isnan(t) else self.start for t in self.targets]

    def update(self, rewards: Rewards) -> None:
        """Move the multipliers by one batch of rewards, `[prompt, sample, reward]`.

        Raises:
            DataError: Another number of rewards than targets.
        """
        if rewards.shape[-1] != len(self.targets):
            raise DataError(f"{rewards.shape[-1]} rewards, but {len(self.targets)} targets")
        r = rounded(rewards)
        means = namespace(r.values).reshape(mean(r.values, over=BATCH), (-1,))
        for k, target in enumerate(self.targets):
            reached = float(means[k])
            if not isnan(target) and not isnan(reached):
                moved = self.multipliers[k] + self.step_size * (target - reached)
                self.multipliers[k] = min(self.maximum, max(0.0, moved))

    def state(self) -> dict[str, Any]:
        """What `restore` needs, in JSON's types."""
        return {"multipliers": [None if isnan(m) else m for m in self.multipliers]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the multipliers of another `DualAscent`.

        Raises:
            ConfigError: They belong to other constraints than these.
        """
        saved = [nan if m is None else float(m) for m in state["multipliers"]]
        if [isnan(m) for m in saved] != [isnan(t) for t in self.targets]:
            raise ConfigError(
                "the saved multipliers belong to other constraints: give the same targets as before"
            )
        self.multipliers = saved
