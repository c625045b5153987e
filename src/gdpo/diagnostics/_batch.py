"""Prepares the arrays of a batch that the numbers of a diagnosis are computed from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpo._shapes import Float
from gdpo.advantages import Rewards, Weights
from gdpo.advantages.arrays import prepare
from gdpo.advantages.stages import SAMPLES, PreparedWeights, raw_spread, standardize, weighted_sum
from gdpo.diagnostics._measures import PerGroup, Scores, Values, where_it_applies
from gdpo.diagnostics.influence import Influence, influence_of

Vector = Float[np.ndarray, " reward"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Stores the arrays of a batch from which its numbers are computed."""

    values: Values
    given_weights: Weights
    weights: PreparedWeights
    std: PerGroup
    """Standard deviation of each reward in each group. NaN if the reward does not apply to the
    group."""
    z: Values
    total: Any
    """Σ w_k z_k."""

    def influence(self, advantages: Scores, names: Sequence[str]) -> Influence:
        """Return the influence sums of these advantages."""
        return influence_of(advantages, self.z, self.std, self.prompt_weights, names, self.values)

    @property
    def prompt_weights(self) -> Float[np.ndarray, "prompt_or_1 reward"]:
        """Return the weights of each prompt, or one row if they are the same for all prompts."""
        return np.reshape(self.weights, (-1, self.weights.shape[-1]))

    @property
    def mean_weights(self) -> Vector:
        """Return the mean weight of each reward over the prompts that it applies to."""
        applies = np.any(~np.isnan(self.values), axis=SAMPLES)
        total = np.sum(np.where(applies, self.prompt_weights, 0.0), axis=0)
        mean = total / np.maximum(np.sum(applies, axis=0), 1)
        return self.weights if self.weights.ndim == 1 else mean

    @staticmethod
    def of(rewards: Rewards, weights: Weights) -> "Batch":
        x, w = prepare(rewards, weights)
        std = raw_spread(x, over=SAMPLES)
        z = standardize(x, over=SAMPLES)
        return Batch(
            values=x.values,
            given_weights=weights,
            weights=w,
            std=where_it_applies(std[:, 0, :], x.values),
            z=z.values,
            total=weighted_sum(z, w),
        )


@dataclass(frozen=True, slots=True)
class Scored:
    """Stores the rewards and the weights of one step."""

    names: tuple[str, ...]
    rewards: Any
    """`[prompt, sample, reward]`."""
    weights: Any
    """`[reward]` or `[prompt, reward]`."""
    estimator: str | None
    """Estimator of the step's advantages. None: unknown."""

    @property
    def observed(self) -> dict[str, tuple[float, float]]:
        """Return the lowest and the highest value of each reward that is not missing everywhere."""
        low, high = (end.reduce(self.rewards, axis=(0, 1)).tolist() for end in (np.fmin, np.fmax))
        ends = zip(self.names, low, high, strict=True)
        return {name: (a, b) for name, a, b in ends if a == a}
