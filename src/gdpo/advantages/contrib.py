"""Estimators whose formulas are taken from secondary sources or published code, not from the paper.

These estimators follow the same contract and pass the same tests as all others. Before you
attribute a result to a paper, compare the formula with the text of the paper.
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
    r"""Normalize each reward per group and add them with weights (MO-GRPO).

    $$ A = \sum_k w_k z_k, \qquad z_k = \frac{r_k - \bar r_k}{\mathrm{std}(r_k)}. $$

    The result equals GDPO without batch normalization. The size of the advantages grows with the
    number of rewards and does not depend on other groups.

    The paper has no weights and does not define the result for zero-variance groups. Here such
    groups give exactly 0. The formula is taken from secondary sources.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`, with mean 0 in each group. Rollouts without a
        reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

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
    r"""Weight each normalized reward by its share of the group's standard deviation (DVAO).

    $$ A = \sum_k \tilde w_k z_k, \qquad
       \tilde w_k = \frac{w_k \sigma_k}{\sum_l |w_l| \sigma_l},
       \qquad\text{so that}\quad A = \frac{\sum_k w_k (r_k - \bar r_k)}{\sum_l |w_l| \sigma_l}, $$

    where $\sigma_k$ is the sample standard deviation of $r_k$ in the group. The numerator is the
    same as in GRPO. The denominator is the largest standard deviation that the sum could have.
    Within a group, the advantages are therefore proportional to GRPO's advantages and never larger.

    Differences from the paper: this version uses the sample instead of the population standard
    deviation and does not add an ε of 1e-8. If a weight is negative, the denominator uses its
    absolute value. The formula is taken from secondary sources.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN means that the reward does not apply.
        weights: One weight per reward, which in effect multiplies the raw reward.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`, with mean 0 in each group. Rollouts without a
        reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

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
    r"""Compute GDPO with more weight for rewards that vary in few groups (DARA, symmetric).

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(\sum_k w_k b_k z_k\Bigr), \qquad
       b_k = \min\Bigl(b_{\max}, \sqrt{\max_l \pi_l / \pi_k}\Bigr), $$

    where $\pi_k$ is the share of groups in which reward $k$ varies. Over the batch, the sum of a
    reward's squared z-scores is proportional to $\pi_k$. Up to the limit $b_{\max}$, the boost
    makes these sums equal for all rewards. A rare reward that is only noise is amplified as well.

    Differences from the published code: this version supports any number of rewards and weights,
    normalizes the batch over rollouts, and adds no ε. The formula follows the published code; we
    have not compared it with the paper's text.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance.
        max_boost: $b_{\max}$, the largest factor. Must be at least 1. With 1, the result is GDPO.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`. Over the rollouts that have a reward, the mean
        is 0 and the sample standard deviation is 1. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

    References:
        "DARA" 2026, https://arxiv.org/abs/2610.00574, and its published code.

    Examples:
        The first reward varies in only one of two groups, so it counts √2 times as much in that
        group.

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
    r"""Apply the boost of `dara_symmetric` only to samples above the group mean (DARA, asymmetric).

    $$ A = \mathrm{standardize}_{\text{batch}}
       \Bigl(\sum_k w_k \bigl[z_k + (b_k - 1) \max(z_k, 0)\bigr]\Bigr). $$

    For a reward with a negative weight, the boost applies to samples below the mean. The weighted
    sum of a group need not have mean 0, so batch normalization shifts groups without signal away
    from 0.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance.
        max_boost: $b_{\max}$, the largest factor. Must be at least 1. With 1, the result is GDPO.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`. Over the rollouts that have a reward, the mean
        is 0 and the sample standard deviation is 1. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

    References:
        "DARA" 2026, https://arxiv.org/abs/2610.00574, and its published code. See `dara_symmetric`
        for the differences from that code.

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
    r"""Take the soft minimum of the normalized rewards instead of their sum (RVPO).

    $$ A = \mathrm{standardize}_{\text{batch}} \Bigl(
       -\frac{1}{\kappa} \log \frac{\sum_k w_k e^{-\kappa z_k}}{\sum_k w_k} \Bigr)
       \approx \mathrm{standardize}_{\text{batch}} \Bigl(
       \bar z - \frac{\kappa}{2} \mathrm{var}_w(z_k) \Bigr). $$

    The worst rewards of a sample determine most of its advantage, so a good reward cannot make up
    for a bad one. A constant reward counts as 0 for every sample and pulls the soft minimum towards
    0. For $\kappa \to 0$, the result approaches GDPO with weights that sum to 1. The mean of the
      soft minimum is not 0, so batch normalization shifts groups without signal away from 0. Rare
      failures have the lowest $z$ and dominate, so the difficulty of a reward determines its
      priority, not its importance.

    The paper has no weights and raises $\kappa$ from 0.5 to 2 during training. Here $\kappa$ is
    fixed. The formula is taken from secondary sources.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward: the reward's share of the soft minimum. Must be at least 0.
        sharpness: $\kappa$, from 0.01 to 1000. A larger value gives a result closer to the minimum.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`. Over the rollouts that have a reward, the mean
        is 0 and the sample standard deviation is 1. Rollouts without a reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length, or a weight
            is negative.

    References:
        Montero et al. 2026, "RVPO", https://arxiv.org/abs/2605.05750.

    Examples:
        If a sample earns one of two rewards, its advantage is closer to that of a sample with
        neither reward than to that of a sample with both.

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
            "rvpo does not take negative weights: negate the reward, so that a larger value is "
            "better, and give it a positive weight"
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
    r"""Add normalized rewards, with a multiplier for each constraint (Constrained GRPO).

    $$ A = \sum_{k \text{ objective}} w_k z_k + \sum_{k \text{ constraint}} \lambda_k w_k z_k, $$

    where $z_k$ is the reward normalized in its group. A constraint is a reward whose mean should
    reach a target. After each batch, `DualAscent` raises the multiplier $\lambda_k$ of a violated
    constraint, and lowers the multiplier of a constraint that is met, at most down to 0. A rare
    violation has a large $z$ in its group, as in every estimator that divides by the group's
    standard deviation.

    Differences from the paper: constraints are rewards instead of indicator costs (equivalent for
    rewards of 0 and 1), and a zero-variance group gives exactly 0. The formula is taken from
    secondary sources.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN means that the
            reward does not apply.
        weights: One weight per reward, applied to the normalized reward. Weights are dimensionless
            and express importance. Leave the weights of constraints at 1.
        multipliers: $\lambda$ of each constraint, at least 0. NaN means that the reward is an
            objective.
        noise_floor: Minimum standard deviation to divide each reward by, in the reward's unit. Must
            be at least 0. None: no floor.
        max_advantage: Clip advantages to this absolute value, which must be above 0. None: no
            clipping.

    Returns:
        Dimensionless advantages, `[prompt, sample]`, with mean 0 in each group. Rollouts without a
        reward get 0.

    Raises:
        DataError: If a reward is infinite or the reward array does not have three axes.
        ConfigError: If `weights` or an option has an invalid value or the wrong length.

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
        raise ConfigError(
            f"multipliers must be 0 or more, or NaN for a reward without constraint, got "
            f"{[float(m) for m in duals]}: replace the negative values"
        )
    z = standardize(r, over=SAMPLES, floor=floors(noise_floor, r.values))
    total = weighted_sum(times(z, xp.where(xp.isnan(duals), 1.0, duals)), w)
    return finish(total, rewards, max_advantage=max_advantage)


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
        step_size: $\eta$, the change of a multiplier per batch and per unit by which the mean
            misses the target. Must be above 0.
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
                "targets contains no number: give the mean that at least one reward should reach, "
                "as in targets={'format': 0.95}"
            )
        self.multipliers = self.multipliers or [t if isnan(t) else self.start for t in self.targets]

    def update(self, rewards: Rewards) -> None:
        """Update the multipliers with one batch of rewards, `[prompt, sample, reward]`.

        Raises:
            DataError: If the number of rewards differs from the number of targets.
        """
        if rewards.shape[-1] != len(self.targets):
            raise DataError(
                f"the batch has {rewards.shape[-1]} rewards, but there are {len(self.targets)} "
                "targets: give one target per reward"
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


def _boost(c: Rounded, weights: Any, max_boost: Number) -> Any:
    xp = c.xp
    varies = (spread(c, over=SAMPLES) > 0) & (weights != 0)
    live = xp.sum(xp.astype(varies, c.values.dtype), axis=BATCH)
    ratio = xp.sqrt(xp.max(live) / xp.where(live > 0, live, 1.0))
    return xp.clip(ratio, 1.0, max_boost)
