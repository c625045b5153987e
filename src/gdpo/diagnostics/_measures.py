"""Computes the numbers of a diagnosis from rewards, z-scores and advantages.

The statistics that estimators use come from `gdpo.advantages.stages`.
"""

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from gdpo._shapes import Bool, Float
from gdpo.advantages.arrays import Advantages, Rewards, rounded
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    PreparedWeights,
    Rounded,
    correlation,
    mean,
    raw_spread,
    standardize,
)

Values = Float[np.ndarray, "prompt sample reward"]
Scores = Float[np.ndarray, "prompt sample"]
PerGroup = Float[np.ndarray, "prompt reward"]
Square = Float[np.ndarray, "reward reward"]

_SAME = 1e-5
"""Advantages count as equal if they differ by less than this fraction of the largest advantage.
Rounding errors in float32 are of this size."""


Spreads = Float[Any, "prompt reward"]
"""Standard deviation of each reward in each group, in the unit of the reward. NaN means that the
reward does not apply."""


def group_std(rewards: Rewards) -> Float[Any, " reward"]:
    """Return the sample standard deviation of each reward within a group, averaged over groups.

    Groups that a reward does not apply to are excluded from its average.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN means that the reward does not apply.

    Returns:
        One value per reward, in the unit of the reward. NaN if the reward never applies.

    Examples:
        >>> import numpy as np
        >>> group_std(np.array([[[0.0], [1.0]], [[1.0], [1.0]]])).round(3)
        array([0.354])
    """
    return mean_std(_spreads(rewards))


def zero_variance_groups(rewards: Rewards) -> Float[Any, " reward"]:
    """Return the share of groups in which each reward does not vary.

    Only groups that the reward applies to are counted. A zero-variance group gives no signal for
    the reward, because all samples have the same value.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN means that the reward does not apply.

    Returns:
        One share from 0 to 1 per reward. NaN if the reward never applies.

    Examples:
        >>> import numpy as np
        >>> zero_variance_groups(np.array([[[0.0], [1.0]], [[1.0], [1.0]]]))
        array([0.5])
    """
    return zero_variance_share(_spreads(rewards))


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


def mean_std(spreads: Spreads) -> Float[Any, " reward"]:
    """Return the mean standard deviation of each reward over the groups that it applies to."""
    return mean(spreads, over=0)[0, :]


def zero_variance_share(spreads: Spreads) -> Float[Any, " reward"]:
    """Return, for each reward, the share of its groups in which the standard deviation is 0."""
    xp = array_namespace(spreads)
    constant = xp.where(xp.isnan(spreads), spreads, xp.astype(spreads == 0, spreads.dtype))
    return mean(constant, over=0)[0, :]


def below_resolution(spreads: Spreads, rewards: Rewards) -> Float[Any, " reward"]:
    """Return the share of groups in which values differ but the standard deviation counts as 0."""
    xp = array_namespace(rewards)
    missing = xp.isnan(rewards)
    highest = xp.max(xp.where(missing, -xp.inf, rewards), axis=SAMPLES)
    lowest = xp.min(xp.where(missing, xp.inf, rewards), axis=SAMPLES)
    lost = (spreads == 0) & (highest > lowest)
    return mean(xp.where(xp.isnan(spreads), spreads, xp.astype(lost, spreads.dtype)), over=0)[0, :]


def where_it_applies(spreads: Spreads, rewards: Rewards) -> Spreads:
    """Return the standard deviations, with NaN instead of 0 for groups without the reward."""
    xp = array_namespace(spreads)
    return xp.where(xp.any(~xp.isnan(rewards), axis=SAMPLES), spreads, xp.nan)


def _spreads(rewards: Rewards) -> Spreads:
    x = rounded(rewards)
    return where_it_applies(raw_spread(x, over=SAMPLES)[:, 0, :], x.values)


def pooled_correlation(z: Values, std: PerGroup) -> tuple[Square, Square]:
    r"""Return the correlation of each pair of rewards, and the degrees of freedom.

    $$ \rho_{kl} = \frac{\sum z_k z_l}{\sqrt{\sum z_k^2 \sum z_l^2}} $$

    The sums are over the groups in which both rewards vary. `stages.correlation` sums over the
    whole batch instead, so a group in which one of the two is constant counts as uncorrelated. The
    batch-wide sum is right for influence, but it hides the relation between the two rewards.

    Args:
        z: Rewards standardized within each group.
        std: Standard deviation of each reward in each group.

    Returns:
        The correlation and the degrees of freedom. The correlation is NaN if the two rewards never
        vary in the same group. The degrees of freedom are the square root in the denominator: z has
        variance 1 in each group, so the squares of a group sum to the number of samples minus one.
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
    up, down = pull > 0, pull < 0
    both = np.any(up, axis=-1) & np.any(down, axis=-1)
    p_up, p_down = (
        mean(np.where(absent[..., None], np.nan, side), over=SAMPLES) for side in (up, down)
    )
    escape = (1 - p_up).prod(-1) + (1 - p_down).prod(-1) - (1 - p_up - p_down).prod(-1)
    # With a single reward, rounding can bring the share below 0, which is no share.
    chance = np.where(absent, np.nan, np.clip(1 - escape, 0.0, 1.0))
    return _mean(np.where(absent, np.nan, both)), _mean(chance)


def signal_rms(advantages: Scores, applies: Bool[np.ndarray, "prompt sample"]) -> float | None:
    """Return the root mean square advantage in groups with signal, or None if there are none."""
    live = applies & np.any(advantages != 0, axis=SAMPLES, keepdims=True)
    largest = np.max(np.abs(advantages), where=live, initial=0.0)
    if largest == 0:
        return None
    ratios = np.where(live, advantages / largest, np.nan)
    return float(largest) * float(np.sqrt(np.nanmean(ratios * ratios)))


def distinct(
    advantages: Scores,
    applies: Bool[np.ndarray, "prompt sample"],
    live: Bool[np.ndarray, " prompt"],
) -> float | None:
    """Return the average number of distinct advantages in the groups with signal."""
    if not np.any(live):
        return None
    ordered = np.sort(np.where(applies, advantages, np.nan), axis=SAMPLES)
    steps = np.diff(ordered, axis=SAMPLES) > _SAME * np.max(np.abs(advantages))
    return float(np.mean(1.0 + np.sum(steps, axis=SAMPLES)[live]))


def similarity(
    advantages: Scores, others: Scores, applies: Bool[np.ndarray, "prompt sample"]
) -> float | None:
    """Return the correlation between two estimators' advantages over the rollouts with a reward."""
    pair = np.moveaxis(np.where(applies, np.stack([advantages, others]), np.nan), 0, -1)
    z = standardize(Rounded(pair, np.zeros_like(pair)), over=BATCH)
    if not np.all(np.any(z.values != 0, axis=BATCH, where=applies[..., None])):
        return None
    return float(correlation(z)[0, 1])


def _mean(values: Float[np.ndarray, "prompt sample"]) -> float:
    return float(mean(values, over=BATCH)[0, 0])
