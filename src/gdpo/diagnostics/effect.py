r"""Measures what a policy learns from each reward, from inner products of gradients.

The influence share treats each rollout as if it moved alone. How far an update moves a reward
depends on how the gradients of the rollouts add up, which is measured here:

1. `Coefficients` of a batch turn the gradients of its rollouts into the gradient of each reward's
   expected value, and into the update with and without each reward.
2. The caller computes these vectors and their inner products.
3. `effect_of` averages the products over pairs of different batches.

With $s_i = \nabla \log \pi(o_i)$, the gradient of rollout $i$ summed over its scored tokens, the
vectors of a batch are

- $a_j$, the gradient of reward $j$: the mean over rollouts of `gradient[j, i]` times $s_i$,
- $g$, the ascent gradient of the update: the same with `advantages[i]`,
- $d_k$, the part of reward $k$ in it: the same with `presence[k, i]`,
- $U_k = \mathrm{Step}(g) - \mathrm{Step}(g - d_k)$ and $U = \mathrm{Step}(g)$, where Step is what
  the optimizer adds to the parameters.

Everything describes one state of the policy. Nothing here says what happens in later steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import floor, log10
from typing import Any

import numpy as np

from gdpo._files import plain
from gdpo._shapes import Float
from gdpo.advantages import Estimator, Rewards, Weights, grpo_no_std, mo_grpo, rloo
from gdpo.advantages.stages import BATCH, SAMPLES
from gdpo.diagnostics.diagnosis import percent
from gdpo.diagnostics.findings import Thresholds
from gdpo.diagnostics.influence import Scores, Square, Vector, student_quantile

PerRollout = Float[np.ndarray, "reward rollout"]
Terms = Float[np.ndarray, "reward prompt sample"]

LEAST_GROUPS = 512
"""Number of groups below which no reward is said to lack an effect. With 256, no effect was seen of
21 % of the rewards that moved (`research/effect.md`)."""

_ROUNDING = 1e-6
"""Relative rounding error of advantages, which may be in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    r"""Stores the coefficients of each rollout's gradient. Rollouts are in the order of prompts.

    `parts` splits the advantages into what each reward adds, with the normalizers of the batch as
    they are: $b_k$ is one number per batch, and $f_g$ one per group.

    | part of reward $k$ | estimators |
    |---|---|
    | $b_k w_k z_k$ | `gdpo`, `mo_grpo`, `saw`, `sa_mrpo`, `dara_symmetric`, `constrained_grpo`, |
    | | `gdpo_decorrelated` |
    | $b_k w_k (r_k - \bar r_k)$ | `grpo_no_std`, `grpo_batch_std`, `per_reward_batch_std` |
    | $f_g w_k (r_k - \bar r_k)$ | `grpo`, `grpo_batch_norm`, `rloo`, `dvao`, `corr_grpo` |

    The parts of `dara_asymmetric`, `gd2po_hard`, `gd2po_snr`, `gdpo_leave_one_out` and `rvpo` do
    not add up, nor do those of other estimators if an advantage is clipped, a noise floor is in
    effect, or tokens are counted. If rewards are proportional to each other in every group, the
    advantages do not tell the forms apart, and the first one is taken.

    `presence` is what a fork does that takes a reward out. It does not add up, because without a
    reward the normalizers change, too.
    """

    gradient: PerRollout
    r"""$\frac{n}{n - 1} (r - \bar r)$ over the $n$ samples of the group that have the reward, in
    the unit of the reward. 0 where it is missing, and for $n = 1$. The mean is over all rollouts,
    so a reward that half of the prompts have counts half."""
    presence: PerRollout
    """A minus the advantages of the whole batch with the weight of the reward set to 0."""
    parts: PerRollout
    """Part of A that the reward adds, in the first form that adds up, or in the last one."""
    advantages: Float[np.ndarray, " rollout"]
    """A, as the estimator computes it for the whole batch."""
    rest: float
    """Largest absolute difference between A and the sum of its parts."""

    @staticmethod
    def of(rewards: Rewards, weights: Weights, estimator: Estimator) -> "Coefficients":
        """Return the coefficients of a batch.

        Args:
            rewards: Raw rewards, a NumPy array `[prompt, sample, reward]`. NaN: missing.
            weights: One weight per reward, or `[prompt, reward]`.
            estimator: Function as in `gdpo.advantages.ESTIMATORS`, with its options bound. It is
                called for all rewards, and without each.
        """
        count = rewards.shape[-1]
        forms = mo_grpo, grpo_no_std, rloo
        alone = [[form(rewards[..., [k]], [1.0]) for k in range(count)] for form in forms]
        z, centred, gradient = np.array(alone, np.float64)
        whole = estimator(rewards, weights)
        without = [
            estimator(rewards, np.where(left_out, 0.0, weights))
            for left_out in np.eye(count, dtype=bool)
        ]
        w = np.atleast_2d(weights).T[..., None]
        parts, rest = _parts(whole, w * z, w * centred)
        gradient, presence, parts = np.reshape([gradient, whole - without, parts], (3, count, -1))
        return Coefficients(gradient, presence, parts, whole.ravel(), rest)


def _parts(whole: Scores, z: Terms, centred: Terms) -> tuple[Terms, float]:
    """Return the parts in the first form that adds up, or in the last one, and what they leave."""
    for terms, over in ((z, BATCH), (centred, BATCH), (centred, SAMPLES)):
        total = np.std(np.sum(terms, axis=0), axis=over, keepdims=True)
        scale = np.std(whole, axis=over, keepdims=True) / np.where(total > 0, total, 1.0)
        # One factor for all rewards comes first, so that copies of a reward split by weight.
        left = np.ravel(whole - np.sum(terms * scale, axis=0))
        own = np.linalg.lstsq(terms.reshape(len(terms), -1).T, left)[0]
        parts = terms * (scale + own[:, None, None])
        rest = abs(whole - parts.sum(axis=0)).max()
        if rest <= _ROUNDING * abs(whole).max():
            break
    return parts, rest


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """Stores how far one optimizer step moves each reward, and because of which reward.

    An effect is clear if its 95 % interval does not contain 0.
    """

    names: tuple[str, ...]
    groups: int
    """Number of groups in all batches."""
    quantile: float
    """Half-width of a 95 % interval in standard errors: Student's t for the number of batches."""
    matrix: Square
    """`[j, k]`: how far reward j moves because reward k has its weight."""
    errors: Square
    """Standard errors of `matrix`."""
    totals: Vector
    """How far the whole step moves each reward."""
    total_errors: Vector
    unit: str
    """Unit of all numbers, to print after them. `std per step`: the standard deviation of the moved
    reward within groups, per optimizer step. `of the largest own effect`: numbers are ratios to the
    largest effect of a reward on itself, because the size of a step has no meaning."""

    @property
    def own(self) -> dict[str, tuple[float, float]]:
        """Return the effect of each reward on itself, and its standard error."""
        return {name: (self.matrix[k, k], self.errors[k, k]) for k, name in enumerate(self.names)}

    @property
    def lowers(self) -> tuple[tuple[str, str], ...]:
        """Return each pair of a reward and another one that it clearly lowers."""
        return tuple(
            (self.names[k], self.names[j])
            for j, k in np.argwhere(self.matrix < -self.quantile * self.errors)
            if j != k
        )

    @property
    def unseen(self) -> tuple[str, ...]:
        """Return the rewards without a clear effect on themselves. Fewer than 512 groups: none.

        This does not show that they have no effect. A reward with weight 0, or without spread in
        every group, is not among them.
        """
        return tuple(
            name
            for name, (value, error) in self.own.items()
            if self.groups >= LEAST_GROUPS and 0 < error >= abs(value) / self.quantile
        )

    @property
    def fastest(self) -> str | None:
        """Return the reward with the largest effect on itself, if it clearly is the largest.

        0 is outside the 95 % interval of its difference from every other one, where the effects
        count as independent.
        """
        size, error = np.abs([*self.own.values()]).T
        first = np.argmax(size)
        ahead = size[first] - size > self.quantile * np.hypot(error[first], error)
        return self.names[first] if np.sum(ahead) == len(size) - 1 > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as dicts and lists for JSON. NaN becomes None."""
        return plain(asdict(self))


def effect_of(
    products: Float[np.ndarray, "batch reward batch direction"],
    std: Vector,
    names: Sequence[str],
    *,
    groups: int,
    relative: bool = False,
) -> Effect:
    r"""Return the effects from the inner products of gradients and steps.

    $$ \mathrm{effect}_{jk} = \frac{1}{\sigma_j B (B - 1)}
       \sum_{f \ne b} \langle a_{j,f}, U_{k,b} \rangle, $$

    and the total with $U_b$ in place of $U_{k,b}$. Only different batches $f$ and $b$ are paired,
    so that noise is not multiplied by itself, which would look like an effect. The standard error
    is that of the jackknife, which leaves out each batch once, both as $f$ and as $b$. It is up to
    √2 times too large if $a_j$ and $U_k$ have no mean, as for pure noise.

    Args:
        products: $\langle a_{j,f}, U_{k,b} \rangle$, `[f, j, b, k]`, with $U_b$ as the last
            direction. The diagonal $f = b$ is never read. At least three batches, with different
            prompts, from one state of the policy and the optimizer.
        std: Standard deviation $\sigma_j$ of each reward within groups, in the reward's unit. If it
            is 0, the effects on the reward are 0.
        names: One name per reward.
        groups: Number of groups in all batches.
        relative: True if the size of a step has no meaning. The effects are then divided by the
            largest effect of a reward on itself.
    """
    batches = len(products)
    others = ~np.eye(batches, dtype=bool)
    pairs = np.moveaxis(products, 2, 1) / np.where(std > 0, std, np.inf)[:, None]
    left_out = [np.mean(pairs[others & kept & kept[:, None]], axis=0) for kept in others]
    means = np.mean(left_out, axis=0)
    errors = np.sqrt(batches - 1) * np.std(left_out, axis=0)
    unit = (np.abs(means.diagonal()).max() if relative else 0.0) or 1.0
    means, errors = means / unit, errors / unit
    return Effect(
        tuple(names),
        groups,
        student_quantile(0.975, batches - 1),
        means[:, :-1],
        errors[:, :-1],
        means[:, -1],
        errors[:, -1],
        "of the largest own effect" if relative else "std per step",
    )


def sentences(effect: Effect, shares: Vector, weights: Vector) -> Iterator[str]:
    """Yield what the effects show, one sentence for each fact. ± is half of a 95 % interval.

    Args:
        effect: The effects.
        shares: Influence share of each reward, in the order of the names. A reward with less than
            5 % is expected to have no effect, so there is no sentence about it.
        weights: Weight of each reward.
    """
    at = effect.names.index

    def size(moved: str, cause: str) -> str:
        place = at(moved), at(cause)
        margin = effect.quantile * effect.errors[place]
        digits = max(0, -floor(log10(margin or 1e-4)))
        return f"{effect.matrix[place]:+.{digits}f} ± {margin:.{digits}f} {effect.unit}"

    for name in effect.unseen:
        if (share := shares[at(name)]) >= Thresholds().least_share:
            unseen = f"no effect on itself is seen ({size(name, name)}, {effect.groups:,} groups)"
            yield f"{name}: {percent(share)} of the influence, but {unseen}"
    if name := effect.fastest:
        why = "rewarded" if weights[at(name)] > 0 else "penalized"
        yield f"{name} moves fastest: {size(name, name)} because it is {why}"
    for cause, lowered in effect.lowers:
        yield f"{cause} lowers {lowered}: {size(lowered, cause)}"
