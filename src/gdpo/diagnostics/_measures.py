"""Prepares the arrays of a batch, and computes the numbers of a diagnosis from them.

The statistics that estimators use come from `gdpo.advantages.stages`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from gdpo._shapes import Bool, Float
from gdpo.advantages import Advantages, Rewards, Weights
from gdpo.advantages.arrays import prepare, rounded
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    PreparedWeights,
    Rounded,
    correlation,
    mean,
    raw_spread,
    standardize,
    weighted_sum,
)
from gdpo.diagnostics.influence import PerGroup, PromptWeights, Scores, Values, Vector

Square = Float[np.ndarray, "reward reward"]

_SAME = 1e-5
"""Advantages count as equal if they differ by less than this fraction of the largest advantage.
Rounding errors in float32 are of this size."""


@dataclass(frozen=True, slots=True)
class Batch:
    values: Values
    weights: PreparedWeights
    prompt_weights: PromptWeights
    std: PerGroup
    """Standard deviation of each reward in each group. NaN if the reward does not apply to the
    group."""
    z: Values
    gain: float
    """Standard deviation of Σ w_k z_k over the batch."""

    @staticmethod
    def of(rewards: Rewards, weights: Weights) -> "Batch":
        x, w = prepare(rewards, weights)
        z = standardize(x, over=SAMPLES)
        return Batch(
            values=x.values,
            weights=w,
            prompt_weights=np.reshape(w, (-1, w.shape[-1])),
            std=group_spread(x),
            z=z.values,
            gain=float(raw_spread(weighted_sum(z, w), over=BATCH)[0, 0]),
        )


@dataclass(frozen=True, slots=True)
class Scored:
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
        low, high = np.fmin.reduce(self.rewards, (0, 1)), np.fmax.reduce(self.rewards, (0, 1))
        ends = zip(self.names, low.tolist(), high.tolist(), strict=True)
        return {name: (a, b) for name, a, b in ends if a == a}


def group_std(rewards: Rewards) -> Float[Any, " reward"]:
    """Return the sample standard deviation of each reward within a group, averaged over groups.

    Groups that a reward does not apply to are excluded from its average.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.

    Returns:
        One value per reward, in the unit of the reward. NaN if the reward never applies.

    Examples:
        >>> import numpy as np
        >>> group_std(np.array([[[0.0], [1.0]], [[1.0], [1.0]]])).round(3)
        array([0.354])
    """
    std = group_spread(rounded(rewards))
    return over_groups(std, std)


def zero_variance_groups(rewards: Rewards) -> Float[Any, " reward"]:
    """Return the share of groups in which each reward does not vary.

    A zero-variance group gives no signal for the reward. Only groups that the reward applies to are
    counted.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.

    Returns:
        One share from 0 to 1 per reward. NaN if the reward never applies.

    Examples:
        >>> import numpy as np
        >>> zero_variance_groups(np.array([[[0.0], [1.0]], [[1.0], [1.0]]]))
        array([0.5])
    """
    std = group_spread(rounded(rewards))
    return over_groups(std == 0, std)


def zero_advantage_groups(advantages: Advantages) -> float:
    """Return the share of groups in which every advantage is exactly 0.

    A zero-advantage group does not contribute to training.

    Args:
        advantages: Advantages, `[prompt, sample]`.

    Returns:
        A share from 0 to 1.

    Examples:
        >>> import numpy as np
        >>> zero_advantage_groups(np.array([[0.0, 0.0], [-1.0, 1.0]]))
        0.5
    """
    xp = array_namespace(advantages)
    zero = xp.all(advantages == 0, axis=1)
    return float(xp.mean(xp.astype(zero, advantages.dtype)))


def group_spread(x: Rounded) -> Float[Any, "prompt reward"]:
    """Return the standard deviation of each reward in each group, NaN where it does not apply."""
    std, applies = raw_spread(x, over=SAMPLES)[:, 0, :], ~x.xp.isnan(x.values)
    return x.xp.where(x.xp.any(applies, axis=SAMPLES), std, x.xp.nan)


def over_groups(values: Any, std: Float[Any, "prompt reward"]) -> Float[Any, " reward"]:
    xp = array_namespace(std)
    return mean(xp.where(xp.isnan(std), std, xp.astype(values, std.dtype)), over=0)[0, :]


def of_rewards(batch: Batch) -> dict[str, Vector]:
    """Return numbers of each reward, by their names in `RewardDiagnosis`. NaN: unknown."""
    values, std, weights = batch.values, batch.std, batch.prompt_weights
    missing = np.isnan(values)
    applies = np.any(~missing, axis=SAMPLES)
    # Each reward's weight is averaged over the prompts that it applies to.
    weight = np.sum(np.where(applies, weights, 0.0), axis=0) / np.maximum(np.sum(applies, 0), 1)
    highest = np.max(np.where(missing, -np.inf, values), axis=SAMPLES)
    lowest = np.min(np.where(missing, np.inf, values), axis=SAMPLES)
    live = np.sort(np.where(std > 0, std, np.nan), axis=0)
    count = np.sum(std > 0, axis=0)
    middle = np.stack([(count - 1) // 2, count // 2])
    return {
        "weight": batch.weights if batch.weights.ndim == 1 else weight,
        "mean": mean(values, over=BATCH)[0, 0],
        "missing": np.mean(missing, axis=BATCH),
        "zero_variance_groups": over_groups(std == 0, std),
        "group_std": over_groups(std, std),
        "varying_std": np.mean(np.take_along_axis(live, middle, axis=0), axis=0),
        "below_resolution": over_groups((std == 0) & (highest > lowest), std),
    }


def of_advantages(
    advantages: Scores, sum_first: Scores, applies: Bool[np.ndarray, "prompt sample"]
) -> dict[str, Any]:
    """Return numbers of the advantages, by their names in `Diagnosis`.

    `sum_first` are the advantages that GRPO gives, and `applies` tells whether a rollout has a
    reward.
    """
    live = np.any(advantages != 0, axis=SAMPLES)
    numbers: dict[str, Any] = {
        "zero_advantage_groups": zero_advantage_groups(advantages),
        "largest": float(np.max(np.abs(advantages), where=applies, initial=0.0)),
        **dict.fromkeys(("signal_rms", "distinct", "distinct_grpo", "same_as_grpo")),
    }
    with_signal = applies & live[:, None]
    largest = np.max(np.abs(advantages), where=with_signal, initial=0.0)
    if largest > 0:
        ratios = np.where(with_signal, advantages / largest, np.nan)
        numbers["signal_rms"] = float(largest) * float(np.sqrt(np.nanmean(ratios * ratios)))
    for name, each in (("distinct", advantages), ("distinct_grpo", sum_first)):
        if np.any(live):
            ordered = np.sort(np.where(applies, each, np.nan), axis=SAMPLES)
            steps = np.diff(ordered, axis=SAMPLES) > _SAME * np.max(np.abs(each))
            numbers[name] = float(np.mean(1.0 + np.sum(steps, axis=SAMPLES)[live]))
    pair = np.moveaxis(np.where(applies, np.stack([advantages, sum_first]), np.nan), 0, -1)
    z = standardize(Rounded(pair, np.zeros_like(pair)), over=BATCH)
    if np.all(np.any(z.values != 0, axis=BATCH, where=applies[..., None])):
        numbers["same_as_grpo"] = float(correlation(z)[0, 1])
    return numbers


def pooled_correlation(z: Values, std: PerGroup) -> tuple[Square, Square]:
    r"""Return the correlation of each pair of rewards, and the degrees of freedom.

    $$ \rho_{kl} = \frac{\sum z_k z_l}{\sqrt{\sum z_k^2 \sum z_l^2}} $$

    The sums are over the groups in which both rewards vary, and the correlation is NaN without any.
    `stages.correlation` sums over the whole batch instead, which is right for influence, but hides
    the relation between the two rewards. The degrees of freedom are the square root in the
    denominator.
    """
    known = np.where(np.isnan(z), 0.0, z)
    columns = known.reshape(-1, z.shape[-1])
    squares = np.sum(known * known, axis=SAMPLES).T @ (std > 0)
    degrees = np.sqrt(squares * squares.T)
    together = degrees > 0
    product = columns.T @ columns
    return np.where(together, product / np.where(together, degrees, 1.0), np.nan), degrees


def conflict(z: Values, weights: PreparedWeights) -> tuple[float | None, float | None]:
    r"""Return the share of rollouts with conflicting rewards, and the share expected by chance.

    A rollout has conflicting rewards if one $w_k z_k$ is positive and another is negative. The
    share expected by chance is the share that would result if each reward were shuffled over the
    samples of its group. With $p^+_k$ and $p^-_k$ the shares of a group's samples that reward $k$
    pulls up and down, a sample has no conflict with probability $\prod_k (1 - p^+_k) + \prod_k (1 -
    p^-_k) - \prod_k (1 - p^+_k - p^-_k)$.
    """
    pull = np.sign(weights) * z
    absent = np.all(np.isnan(z), axis=-1)
    if np.all(absent):
        return None, None
    up, down = sides = np.stack([pull > 0, pull < 0])
    both = np.any(up, axis=-1) & np.any(down, axis=-1)
    p_up, p_down = mean(np.where(absent[..., None], np.nan, sides), over=1 + SAMPLES)
    escape = (1 - p_up).prod(-1) + (1 - p_down).prod(-1) - (1 - p_up - p_down).prod(-1)
    # With a single reward, rounding can bring the share below 0, which is no share.
    chance = np.broadcast_to(np.clip(1 - escape, 0.0, 1.0), both.shape)
    shares = mean(np.where(absent, np.nan, np.stack([both, chance])), over=(1, 2))
    return float(shares[0, 0, 0]), float(shares[1, 0, 0])
