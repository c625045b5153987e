r"""Measures the influence of each reward on the policy, with sums that can be added over steps.

$A$ is the advantage of a sample, and $z_k$ is its reward $k$ standardized within the group (0 where
the reward does not vary). Each group adds $u_k = \sum_i A_i z_{ik}$ to the influence of the reward,
$U_k = \sum_g u_{gk}$: to first order, how fast the update raises the reward, in units of its
standard deviation within a group.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import cos, pi, sin, sqrt, tan
from typing import NamedTuple

import numpy as np

from gdpo._shapes import Float
from gdpo.advantages import Rewards, Weights
from gdpo.advantages.arrays import prepare
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    PreparedWeights,
    centred,
    divide,
    weighted_sum,
)

Values = Float[np.ndarray, "prompt sample reward"]
Scores = Float[np.ndarray, "prompt sample"]
PerGroup = Float[np.ndarray, "prompt reward"]
PromptWeights = Float[np.ndarray, "prompt_or_1 reward"]
"""Weights of each prompt, or one row if they are the same for all prompts."""
Vector = Float[np.ndarray, " reward"]
Square = Float[np.ndarray, "reward reward"]

NORMAL_95 = 1.959964
"""Half-width of a 95 % confidence interval in standard errors."""

LEAST_EFFECTIVE = 20
"""Effective number of groups below which a share has no interval."""

FOLLOWS = 3.0
"""Number of standard errors by which the influence of a reward must differ from 0, so that the
advantages follow it."""

LEAST_VARYING = 64
"""Number of groups in which a reward must vary to tell that the advantages do not follow it."""


class NoInterval(StrEnum):
    """Lists the reasons why influence shares have no interval."""

    UNRELATED = "the advantages follow none of the rewards"
    FEW = "fewer than 20 groups account for most of the influence"


class Sums(NamedTuple):
    """Stores sums over groups, one value per reward, which varies in each "varying" group."""

    influence: Vector
    """U: sum of A z."""
    weight: Vector
    """Sum over groups of w / Σ|w|, with the sign of the weight."""
    live: Vector
    """Number of varying groups."""
    std: Vector
    """Sum of the standard deviations in the varying groups."""
    squares: Vector
    """Sum of A² in the varying groups, with A centered over the samples with the reward."""
    asked: Vector
    """Sum of A* z in the varying groups, where A* = Σ_l w_l z_l / Σ|w| is the advantage that the
    weights imply."""
    applies: Vector
    """Number of groups that the reward applies to."""
    zero_advantage: Vector
    """Number of groups whose advantages are all exactly 0. The same for every reward."""
    mean: Vector
    """Sum of the group means of the reward."""
    present: Vector
    """Sum over groups of |w| / Σ|w|, times the share of the samples that have the reward, among
    those with any."""
    live_weight: Vector
    """Sum over groups of |w| / Σ|w|, times the sum of z²."""
    fourth: Vector
    """Sum over groups of u⁴."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """Stores the arrays of a step from which its numbers are computed."""

    values: Values
    """Raw rewards. NaN where a reward does not apply, as in `z`."""
    weights: PreparedWeights
    prompt_weights: PromptWeights
    std: PerGroup
    """Standard deviation of each reward in each group. NaN: it does not apply. 0: it does not
    vary."""
    z: Values
    """The rewards, standardized within their group."""
    gain: float
    """Standard deviation of Σ w_k z_k over the batch."""

    @staticmethod
    def of(rewards: Rewards, weights: Weights) -> "PreparedStep":
        """Prepare the arrays of a step."""
        x, w = prepare(rewards, weights)
        z, std = centred(x, over=SAMPLES)
        z = divide(z, std)
        applies = np.any(~np.isnan(x.values), axis=SAMPLES)
        return PreparedStep(
            values=x.values,
            weights=w,
            prompt_weights=np.reshape(w, (-1, w.shape[-1])),
            std=np.where(applies, std[:, 0, :], np.nan),
            z=z.values,
            gain=float(centred(weighted_sum(z, w), over=BATCH)[1][0, 0]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Influence:
    """Stores the sums behind the influence of each reward, for one step or several pooled steps."""

    names: tuple[str, ...]
    groups: int
    sums: Sums
    products: Square
    """Sum over groups of u uᵀ."""

    @property
    def weight_shares(self) -> Vector:
        """Return |w_k| / Σ|w|, averaged over the groups, or 0 if all weights are 0."""
        return np.abs(self.sums.weight) / self.groups

    @property
    def shares(self) -> Vector:
        r"""Return $\mathrm{sign}(w_k)\, U_k / \sum_l |U_l|$, with the sum over nonzero weights.

        Negative: the reward is pushed against its weight. NaN: no reward has any influence.
        """
        with np.errstate(all="ignore"):
            return np.where(self.sums.weight < 0, -1.0, 1.0) * self.sums.influence / self._total

    @property
    def effective(self) -> float:
        r"""Return the effective number of groups, $(\sum_g d_g)^2 / \sum_g d_g^2$ (Kish).

        $d_g = \sum_l \mathrm{sign}(U_l)\, u_{gl}$ is the part of a group in $\sum_l |U_l|$.
        """
        signs = np.sign(self.sums.influence) * (self.sums.weight != 0)
        with np.errstate(all="ignore"):
            return float(np.square(self._total) / (signs @ self.products @ signs))

    @property
    def no_interval(self) -> NoInterval | None:
        r"""Return why the shares have no interval. None: they have one, or there is no share.

        If the advantages were drawn anew for the samples of each group, the variance of $U_k$ would
        be $\sum A^2$.
        """
        if np.isnan(self._total):
            return None
        sums = self.sums
        follows = (np.abs(sums.influence) > FOLLOWS * np.sqrt(sums.squares)) & (sums.weight != 0)
        if not np.any(follows) and np.max(sums.live) >= LEAST_VARYING:
            return NoInterval.UNRELATED
        return None if self.effective >= LEAST_EFFECTIVE else NoInterval.FEW

    @property
    def margins(self) -> Vector:
        r"""Return the half-width of the 95 % interval of each share, or NaN if it has no interval.

        The quantile of Student's t distribution (Abramowitz and Stegun 1964, 26.7.5) has the
        degrees of freedom of Satterthwaite: reward $l$ adds the part $p_l$ of the variance with the
        effective number of groups $n_l = (\sum u_l^2)^2 / \sum u_l^4$, so that
        $1 / \nu = \sum_l p_l^2 / \max(n_l - 1, 3)$.
        """
        if self.no_interval is not None:
            return np.full(len(self.names), np.nan)
        with np.errstate(all="ignore"):
            own = np.eye(len(self.names)) - np.outer(np.abs(self.shares), self.sums.weight != 0)
            parts = own**2 * np.diag(self.products)
            parts /= np.sum(parts, axis=1, keepdims=True)
            groups = np.maximum(np.diag(self.products) ** 2 / self.sums.fourth - 1, 3)
        x = np.nansum(parts**2 / groups, axis=1)
        return (NORMAL_95 + 2.372 * x + 2.822 * x**2 + 2.556 * x**3) * self.errors()

    @property
    def by_reward(self) -> dict[str, tuple[float, float, float]]:
        """Return the weight share, the influence share and its margin of each reward."""
        columns = (self.weight_shares, self.shares, self.margins)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return dict(zip(self.names, rows, strict=True))

    def errors(self, at: Vector | None = None, own: Vector | float = 1.0) -> Vector:
        r"""Return the standard error of each share. NaN: unknown, as for a single group.

        By the delta method, with $V$ the covariance of $U$ and $D = \sum_l |U_l|$, the covariance
        of the shares is $J V J^\top$, where $J_{kl} = (\delta_{kl} - s_k\, \mathrm{sign}\, U_l) /
        D$. With the effective number of groups $n$, the factor $(n / (n - 1))^2$ corrects for what
        few groups adjust to, as the jackknife does.

        Args:
            at: Value of $s_k$, signed by its weight, such as the limit of a test. Default: the
                share.
            own: Factor of the variance that each reward's own $U_k$ adds to that of its share.
        """
        u, weight, n = self.sums.influence, self.sums.weight, self.effective
        with np.errstate(all="ignore"):
            raw = (self.shares if at is None else at) * np.where(weight < 0, -1.0, 1.0)
            slopes = np.eye(len(raw)) - np.outer(raw, np.sign(u) * (weight != 0))
            slopes /= self._total
            covariance = self.products - np.outer(u, u) / self.groups
            variance = np.einsum("kl,lm,km->k", slopes, covariance, slopes)
            variance += (own - 1.0) * np.diag(slopes) ** 2 * np.diag(covariance)
            variance *= np.square(n / np.maximum(n - 1, 0))
            return np.sqrt(np.where(np.isfinite(variance), np.maximum(variance, 0.0), np.nan))

    @property
    def zero_advantage_groups(self) -> float:
        """Return the share of groups whose advantages are all exactly 0."""
        return float(np.max(self.sums.zero_advantage)) / self.groups

    @property
    def _total(self) -> float:
        total = float(np.sum(np.abs(self.sums.influence), where=self.sums.weight != 0))
        return total if 0 < total < np.inf else np.nan


@dataclass(slots=True)
class Window:
    """Keeps the most recent steps that contain a given number of groups, and sums them.

    Args:
        groups: Minimum number of groups in the window, which contains whole steps.
    """

    groups: int
    steps: deque[Influence] = field(default_factory=deque)

    def add(self, step: Influence) -> Influence:
        """Add the next step, drop old steps, and return the sums over the window."""
        self.steps.append(step)
        while sum(each.groups for each in self.steps) - self.steps[0].groups >= self.groups:
            self.steps.popleft()
        return pooled(self.steps)


def influence_of(advantages: Scores, batch: PreparedStep, names: Sequence[str]) -> Influence:
    """Return the influence sums of one step."""
    z, std, weights, values = batch.z, batch.std, batch.prompt_weights, batch.values
    applies, live = ~np.isnan(z), std > 0
    # w / Σ|w|, or 0 if all weights are 0, computed without overflow.
    largest = np.max(np.abs(weights), axis=-1, keepdims=True, initial=0.0)
    unit = weights / np.where(largest > 0, largest, 1.0)
    unit = unit / np.maximum(np.sum(np.abs(unit), axis=-1, keepdims=True), 1.0)
    scores = np.nan_to_num(z)
    count, samples = np.sum(applies, axis=1), np.sum(np.any(applies, axis=2), axis=1)
    least_one = np.maximum(count, 1)
    with np.errstate(all="ignore"):
        # Both are centred over the samples with each reward, and 0 elsewhere.
        both = np.stack([advantages[..., None], scores @ unit[..., None]])
        means = np.sum(both * applies, axis=2, keepdims=True) / least_one[:, None]
        a, asked = (both - means) * applies
        squares = np.where(live, np.sum(scores * scores, axis=1), 0.0)
        zero, pushes = np.all(advantages == 0, axis=1)[:, None], np.sum(a * scores, axis=1)
        by_group = Sums(
            influence=pushes,
            weight=np.broadcast_to(unit, live.shape),
            live=live.astype(np.float64),
            std=np.where(live, std, 0.0),
            squares=np.where(live, np.sum(a * a, axis=1), 0.0),
            asked=np.where(live, np.sum(asked * scores, axis=1), 0.0),
            applies=np.any(applies, axis=1).astype(np.float64),
            zero_advantage=np.broadcast_to(zero.astype(np.float64), live.shape),
            mean=np.nansum(values, axis=1) / least_one,
            present=np.abs(unit) * count / np.maximum(samples, 1)[:, None],
            live_weight=np.abs(unit) * squares,
            fourth=pushes**4,
        )
        of_step = Sums(*np.sum(np.stack(by_group), axis=1))
        return Influence(tuple(names), len(pushes), of_step, pushes.T @ pushes)


def pooled(steps: Iterable[Influence | None]) -> Influence:
    """Return the sums over several steps. None adds nothing, and a reward that a step lacks, 0."""
    known = [step for step in steps if step is not None]
    names = tuple(dict.fromkeys(name for step in known for name in step.names))
    fitted = [step if step.names == names else _with_rewards(step, names) for step in known]
    with np.errstate(all="ignore"):
        sums = Sums(*np.sum([step.sums for step in fitted], axis=0))
        products = np.sum([step.products for step in fitted], axis=0)
    return Influence(names, sum(step.groups for step in fitted), sums, products)


def _with_rewards(step: Influence, names: tuple[str, ...]) -> Influence:
    """Return a step with all of these rewards, and zeros for those that it lacks."""
    places = [names.index(name) for name in step.names]
    table = np.zeros((len(Sums._fields), len(names)))
    table[:, places] = step.sums
    products = np.zeros((len(names), len(names)))
    products[np.ix_(places, places)] = step.products
    return Influence(names, step.groups, Sums(*table), products)


def student_quantile(p: float, freedom: int) -> float:
    """Return the p-quantile of Student's t distribution, for 0.5 <= p < 1.

    References:
        Abramowitz and Stegun 1964, 26.7.3 and 26.7.4: the distribution in closed form, solved for
        the angle atan2(t, √freedom) by bisection.
    """
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 2 * p - 1 else (low, middle)
    return sqrt(freedom) * tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return the probability that |t| is below √freedom · tan(angle)."""
    odd = freedom % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
