"""Estimators whose formula is known here from secondary sources only, each of which says so.

They keep the contract of the others and run under the same battery of tests. Before you quote a
result as that of the paper, compare the formula with the paper's text.
"""

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
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    Rounded,
    centre,
    divide,
    mean,
    scale,
    soft_minimum,
    spread,
    standardize,
    times,
    weighted_sum,
)
from gdpo.errors import ConfigError, DataError

__all__ = [
    "DualAscent",
    "constrained_grpo",
    "dara_asymmetric",
    "dara_symmetric",
    "dvao",
    "mo_grpo",
    "rvpo",
]


def mo_grpo(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Advantage of each sample: the weighted sum of its rewards, each normalized in its group.

    $$ A = \sum_k w_k z_k, \qquad z_k = \frac{r_k - \bar r_k}{\mathrm{std}(r_k)}. $$

    GDPO without its batch step: the size of the advantages grows with the number of rewards, and
    the batch has no say in it.

    Differs from the paper: it has no weights (here 1 by default), and does not say what a group
    without spread gives (here exactly 0). The formula is taken from secondary sources.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward, multiplied with the normalized reward: importance, not unit.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean in each group; 0 where no reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        Ichihara et al. 2025, "MO-GRPO", https://arxiv.org/abs/2509.22047.

    Examples:
        >>> import numpy as np
        >>> mo_grpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [-1.4142,  1.4142]])
    """
    r, w = prepare(rewards, weights)
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    return finish(weighted_sum(z, w), rewards, max_advantage=max_advantage)


def dvao(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""DVAO: normalized rewards, each weighted with its share of the group's spread.

    $$ A = \sum_k \tilde w_k z_k, \qquad
       \tilde w_k = \frac{w_k \sigma_k}{\sum_l |w_l| \sigma_l},
       \qquad\text{so that}\quad A = \frac{\sum_k w_k (r_k - \bar r_k)}{\sum_l |w_l| \sigma_l}, $$

    with $\sigma_k$ the sample standard deviation of $r_k$ in the group. The numerator is GRPO's,
    the denominator the largest standard deviation that the sum could have: the direction is GRPO's,
    only the size differs, and it is never larger.

    Differs from the paper: sample instead of population standard deviation, no ε of 1e-8; a
    negative weight enters the denominator with its size. The formula is taken from secondary
    sources.

    Args:
        rewards: `[prompt, sample, reward]`, raw; NaN: does not apply.
        weights: One per reward, multiplied with the raw reward in effect.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean in each group; 0 where no reward applies.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        Jiang et al. 2026, "DVAO", https://arxiv.org/abs/2605.25604.

    Examples:
        >>> import numpy as np
        >>> dvao(np.array([[[0.0, 0.0], [0.0, 3.0]], [[0.0, 3.0], [1.0, 0.0]]]), [1, 1]).round(4)
        array([[-0.7071,  0.7071],
               [ 0.3536, -0.3536]])
    """
    r, w = prepare(rewards, weights)
    xp = r.xp
    c = centre(r, over=SAMPLES)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    std = spread(c, over=SAMPLES)
    total = weighted_sum(times(z, std), w)
    bound = xp.sum(xp.abs(w) * std, axis=-1)
    return finish(divide(total, bound), rewards, max_advantage=max_advantage)


def dara_symmetric(
    rewards: Rewards,
    weights: Weights,
    *,
    max_boost: Number = 5.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""DARA, symmetric: GDPO in which a reward that varies in few groups is scaled up.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k b_k z_k\Bigr), \qquad
       b_k = \min\Bigl(b_{\max}, \sqrt{\max_l \pi_l / \pi_k}\Bigr), $$

    with $\pi_k$ the share of groups in which reward $k$ varies. Normalized rewards have an energy
    proportional to $\pi_k$ in the batch; the boost makes them equal. It amplifies a rare reward
    that is noise as well.

    Differs from the published code: any number of rewards, with weights; the batch step counts
    rollouts; no ε. The paper's text is known to us through its code's description only.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit.
        max_boost: $b_{\max}$, 1 or more; 1 is GDPO.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        "DARA" 2026, https://arxiv.org/abs/2610.00574, and its published code.

    Examples:
        The first reward varies in one of two groups: there it counts √2 times.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> dara_symmetric(r, [1, 1]).round(4)
        array([[-0.4687,  0.4687],
               [-1.1315,  1.1315]])
    """
    in_range("max_boost", max_boost, 1, float("inf"))
    r, w = prepare(rewards, weights)
    c = centre(r, over=SAMPLES)
    boost = _boost(c, w, max_boost)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    a = standardize(weighted_sum(times(z, boost), w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)


def dara_asymmetric(
    rewards: Rewards,
    weights: Weights,
    *,
    max_boost: Number = 5.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""DARA, asymmetric: the boost of `dara_symmetric` for samples better than their group only.

    $$ A = \mathrm{standardize}_{\text{batch}}
       \Bigl(\sum_k w_k \bigl[z_k + (b_k - 1) \max(z_k, 0)\bigr]\Bigr). $$

    For a negative weight, better means below the mean. The sum is not 0 in each group, and the
    batch step then moves groups without signal away from 0.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward: importance, not unit.
        max_boost: $b_{\max}$, 1 or more; 1 is GDPO.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards.

    References:
        "DARA" 2026, https://arxiv.org/abs/2610.00574, and its published code. What differs from it:
        `dara_symmetric`.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
        >>> dara_asymmetric(r, [1, 1]).round(4)
        array([[-0.5568,  0.4523],
               [-1.0613,  1.1658]])
    """
    in_range("max_boost", max_boost, 1, float("inf"))
    r, w = prepare(rewards, weights)
    xp = r.xp
    c = centre(r, over=SAMPLES)
    boost = _boost(c, w, max_boost)
    z = scale(c, over=SAMPLES, floor=floors(noise_floor, r.values))
    boosted = times(z, xp.where(w * z.values > 0, boost, 1.0))
    a = standardize(weighted_sum(boosted, w), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)


def rvpo(
    rewards: Rewards,
    weights: Weights,
    *,
    sharpness: Number = 1.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""RVPO: the soft minimum of the normalized rewards instead of their sum.

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(
       -\frac{1}{\kappa} \log \frac{\sum_k w_k e^{-\kappa z_k}}{\sum_k w_k} \Bigr)
       \approx \mathrm{standardize}_{\text{batch}} \Bigl(
       \bar z - \frac{\kappa}{2} \mathrm{var}_w(z_k) \Bigr). $$

    A sample counts by its worst rewards, so that a good one cannot make up for a bad one; a reward
    that never varies counts as 0 for everyone, and so draws the soft minimum towards it.
    $\kappa \to 0$ is GDPO with weights that sum to 1. The soft minimum is not 0 on average, and the
    batch step then moves groups without signal away from 0. Rare failures have the lowest $z$ and
    decide: priority goes by difficulty, not by importance.

    Differs from the paper: it has no weights; its $\kappa$ rises from 0.5 to 2 in training, here it
    is fixed. The formula is taken from secondary sources.

    Args:
        rewards: `[prompt, sample, reward]`, raw, each in its own unit; NaN: does not apply.
        weights: One per reward, 0 or more: its share of the soft minimum.
        sharpness: $\kappa$, from 0.01 to 1000.
        noise_floor: Resolution of each reward, in its unit; a smaller spread is divided by it.
        max_advantage: Cap on the size of an advantage.

    Returns:
        `[prompt, sample]`, dimensionless, zero mean and unit sample standard deviation over the
        rollouts that have a reward; 0 for the others.

    Raises:
        DataError: An infinite reward, or not three axes.
        ConfigError: Weights or options that do not fit the rewards; a negative weight.

    References:
        Montero et al. 2026, "RVPO", https://arxiv.org/abs/2605.05750.

    Examples:
        One of two rewards is nearer to none than to both.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> rvpo(r, [1, 1], sharpness=2).round(4)
        array([[-0.7758, -0.3466, -0.3466,  1.469 ]])
    """
    in_range("sharpness", sharpness, 0.01, 1000)
    r, w = prepare(rewards, weights)
    xp = r.xp
    if bool(xp.any(w < 0)):
        raise ConfigError(
            "rvpo takes no negative weight: turn the reward around, so that more is better"
        )
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    a = standardize(soft_minimum(z, w, sharpness=sharpness), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)


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

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[0.0, 1.0], [1.0, 0.0]]])
        >>> constrained_grpo(r, [1, 1], multipliers=[np.nan, 2]).round(4)
        array([[ 0.7071, -0.7071]])
    """
    r, w = prepare(rewards, weights)
    xp = r.xp
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
        means = r.xp.reshape(mean(r.values, over=BATCH), (-1,))
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


def _boost(c: Rounded, weights: Any, max_boost: Number) -> Any:
    xp = c.xp
    varies = (spread(c, over=SAMPLES) > 0) & (weights != 0)
    live = xp.sum(xp.astype(varies, c.values.dtype), axis=BATCH)
    ratio = xp.sqrt(xp.max(live) / xp.where(live > 0, live, 1.0))
    return xp.clip(ratio, 1.0, max_boost)
