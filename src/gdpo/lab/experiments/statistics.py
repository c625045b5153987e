"""Computes intervals, permutation tests and survival curves for experiments with few seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, nan, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any, TypeAlias

import numpy as np

from gdpo._shapes import Bool, Float, Int
from gdpo.diagnostics.influence import student_quantile

ALPHA = 0.05
"""Significance level. The corrected p-value of a reported difference is below this level."""

FEWEST_SEEDS = 5
"""Minimum number of seeds for reporting a difference, and for an average to have an interval.
Results with fewer seeds are labelled exploratory."""

ROUNDING = 2**10 * float(np.finfo(float).eps)
"""Allowed relative rounding error in statistics of a few runs or steps."""

_EXACT = 200_000
"""Maximum number of relabellings for an exact test."""

_DRAWS = 20_000
"""Number of relabellings to sample if there are too many for an exact test."""

_MOST_SEEDS = 1_000
"""Largest number of seeds that `fewest_seeds` returns."""


Runs: TypeAlias = Float[np.ndarray, " run"]
"""A number of each run."""

Reached: TypeAlias = Bool[np.ndarray, " run"]
"""Whether each run reached the threshold."""

Times: TypeAlias = Float[np.ndarray, " time"]
"""A number at each step at which a share changes."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Stores a value with its 95 % interval. NaN: unknown."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Survival:
    """Stores the Kaplan-Meier curve of runs that have not reached the threshold."""

    steps: Times
    """Steps at which the share changes, starting with step 0."""
    share: Times
    """Share of runs that have not reached the threshold after each of these steps, from 0 to 1."""
    low: Times
    high: Times
    median: Interval
    """Step by which half of the runs have reached the threshold. NaN: the share stays above one
    half."""


@dataclass(frozen=True, slots=True)
class PValue:
    """Stores a p-value and the smallest one attainable with this number of runs."""

    p: float
    floor: float


def permutation_test(ours: Runs, theirs: Runs) -> PValue:
    r"""Test with a two-sided permutation test whether two means differ.

    The p-value is the share of labellings (with $n$ of $n + m$ runs labelled "ours") in which the
    means are at least as far apart as observed. Of more than 200,000 labellings, 20,000 are
    sampled, and the observed one is added: $p = (1 + \text{as far}) / 20001$.

    With $n$ runs each, the smallest attainable p-value is $2 / \binom{2n}{n}$: 0.10 with 3 seeds,
    0.029 with 4 and 0.0079 with 5. The test ignores which runs share a seed, because relabelling
    within 5 pairs cannot give a p-value below 0.0625. The test is therefore conservative if a seed
    affects both estimators alike.

    Args:
        ours: One value per run of one estimator. NaN is ignored.
        theirs: Values of the other estimator, in the same unit.

    Returns:
        The p-value and the smallest attainable one, both NaN if an estimator has no runs.

    References:
        Fisher 1935, "The Design of Experiments"; Phipson and Smyth 2010, "Permutation P-values
        should never be zero", https://arxiv.org/abs/1603.05766.

    Examples:
        >>> permutation_test(np.array([0.7, 0.8, 0.9]), np.array([0.1, 0.2, 0.3]))
        PValue(p=0.1, floor=0.1)
    """
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if min(len(ours), len(theirs)) == 0:
        return PValue(nan, nan)
    # Sort, so that the order of the seeds does not change the draws.
    pooled = np.sort(np.concatenate([ours, theirs]))
    centred = pooled - pooled.mean()
    # The sum of one estimator's centred values is proportional to the difference of the means.
    observed = abs(np.sum(ours - pooled.mean()))
    rounding = ROUNDING * np.max(np.abs(pooled))
    ways = comb(len(pooled), len(ours))
    exact, floor = ways <= _EXACT, least_p(len(ours), len(theirs))
    if exact:
        labellings = centred[_choices(len(pooled), len(ours))]
    else:
        copies = np.tile(centred, (_DRAWS, 1))
        labellings = np.random.default_rng(0).permuted(copies, axis=1)[:, : len(ours)]
    as_far = int(np.count_nonzero(np.abs(labellings.sum(axis=1)) >= observed - rounding))
    return PValue(as_far / ways if exact else (1 + as_far) / (1 + _DRAWS), floor)


def least_p(ours: int, theirs: int) -> float:
    """Return the smallest attainable p-value of `permutation_test` for these numbers of runs.

    Examples:
        >>> round(least_p(5, 5), 4)
        0.0079
    """
    ways = comb(ours + theirs, ours)
    least = (2 if ours == theirs else 1) / ways
    return least if ways <= _EXACT else max(least, 1 / (1 + _DRAWS))


def fewest_seeds(comparisons: int) -> int:
    """Return the minimum number of seeds per estimator, 5 to 1,000, that could show a difference.

    With it, the smallest attainable p-value is below 0.05 after correction for `comparisons`: the
    estimators other than the baseline, times the rewards.

    Examples:
        >>> fewest_seeds(1), fewest_seeds(6), fewest_seeds(7)
        (5, 5, 6)
    """
    enough = (n for n in range(FEWEST_SEEDS, _MOST_SEEDS) if least_p(n, n) * comparisons < ALPHA)
    return next(enough, _MOST_SEEDS)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    r"""Return p-values after Holm's correction for multiple comparisons.

    With $p_{(1)} \le \dots \le p_{(m)}$, the $i$-th becomes $\max_{j \le i} (m - j + 1)\, p_{(j)}$,
    at most 1. The probability of any false finding with a corrected p-value below $\alpha$ is at
    most $\alpha$, even if the comparisons depend on each other.

    Args:
        p_values: P-values from 0 to 1. NaN values are not counted and stay NaN.

    References:
        Holm 1979, "A simple sequentially rejective multiple test procedure".

    Examples:
        >>> holm([0.04, 0.01, 0.5])
        (0.08, 0.03, 0.5)
    """
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(np.asarray(p_values)[known], kind="stable")]
    corrected, highest = [nan] * len(p_values), 0.0
    for i, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - i) * p_values[place]))
        corrected[place] = highest
    return tuple(corrected)


@lru_cache(maxsize=4)
def _choices(count: int, size: int) -> Int[np.ndarray, "way place"]:
    return np.array(list(combinations(range(count), size)))


Statistic: TypeAlias = Callable[[Float[np.ndarray, "*draw value"]], Any]
"""A function that reduces the values along the last axis to one number."""


def interquartile_mean(values: Float[np.ndarray, "*draw value"]) -> Any:
    r"""Return the mean without the lowest and the highest quarter of the values.

    With $x_{(1)} \le \dots \le x_{(n)}$ and $g = \lfloor n/4 \rfloor$,

    $$ \mathrm{IQM} = \frac{1}{n - 2g} \sum_{i=g+1}^{n-g} x_{(i)}. $$

    Values are along the last axis, and NaN is ignored. The result equals
    `scipy.stats.trim_mean(x, 0.25)` and rliable's interquartile mean, or NaN without values.

    References:
        Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice", section 4.3,
        https://arxiv.org/abs/2108.13264.

    Examples:
        >>> float(interquartile_mean(np.array([0.0, 2.0, 3.0, 4.0, 100.0])))
        3.0
    """
    ordered = np.sort(values, axis=-1)  # NaN last
    known = np.count_nonzero(~np.isnan(ordered), axis=-1, keepdims=True)
    place = np.arange(ordered.shape[-1])
    kept = (place >= known // 4) & (place < known - known // 4)
    with np.errstate(invalid="ignore"):
        return np.where(kept, ordered, 0.0).sum(-1) / kept.sum(-1)


def bootstrap(
    statistic: Statistic,
    strata: Sequence[Float[np.ndarray, " value"]],
    *,
    draws: int = 2_000,
    level: float = 0.95,
) -> Interval:
    """Return a statistic with its percentile bootstrap interval, resampling within each stratum.

    The interval runs from the (1 - level)/2 to the (1 + level)/2 quantile of the statistic over
    `draws` resamples, each as large as the data. The order of the values does not matter. With few
    values, it is too narrow: see `expanded_level`.

    Args:
        statistic: Reduces all values along the last axis.
        strata: Values of each stratum, such as a task. NaN is ignored.
        draws: Number of resamples.
        level: Nominal coverage, from 0 to 1.

    Returns:
        The statistic, or NaN without values. The interval is NaN if a stratum has under 2 values.

    References:
        Efron 1979; stratified as in Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
    """
    # Sort, so that the order of the seeds does not change the interval.
    known = [np.sort(values[~np.isnan(values)]) for values in strata]
    value = float(statistic(np.concatenate(known))) if known else nan
    if not known or min(len(values) for values in known) < 2:
        return Interval(value, nan, nan)
    rng = np.random.default_rng(0)
    drawn = [values[rng.integers(len(values), size=(draws, len(values)))] for values in known]
    tail = (1 - level) / 2
    low, high = np.quantile(statistic(np.concatenate(drawn, axis=-1)), [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def expanded_level(count: int) -> float:
    r"""Return the nominal level that gives a bootstrap of `count` values a coverage of 0.95.

    Resampling underestimates the standard deviation by the factor $\sqrt{(n-1)/n}$ and uses normal
    quantiles instead of Student's t. A higher nominal level corrects both:

    $$ \frac{\alpha'}{2} = \Phi\Bigl(-\sqrt{\tfrac{n}{n-1}}\; t_{1-\alpha/2,\,n-1}\Bigr). $$

    For an interquartile mean of 5 values, the interval runs from the lowest to the highest value.
    With 3 values, the coverage is as low as the percentile interval's (`benchmarks/few_seeds.py`).

    Args:
        count: Number of values, at least 2.

    References:
        Hesterberg 2015, "What Teachers Should Know About the Bootstrap" ("expanded percentile"),
        https://arxiv.org/abs/1411.5279.
    """
    t = student_quantile(0.975, count - 1)
    return 1 - 2 * NormalDist().cdf(-sqrt(count / (count - 1)) * t)


def paired_difference(
    ours: Float[np.ndarray, " pair"], theirs: Float[np.ndarray, " pair"]
) -> Interval:
    r"""Return the mean paired difference, with its 95 % Student t interval.

    With the differences $d_i$ of $n$ pairs and their standard deviation $s_d$, the interval is

    $$ \bar d \pm t_{0.975,\,n-1}\, s_d / \sqrt n. $$

    With few pairs, the percentile bootstrap and BCa cover the difference less often
    (`benchmarks/few_seeds.py`).

    Args:
        ours: One value per pair, in any unit.
        theirs: The other value of each pair, in the same order and unit. Pairs with NaN are
            excluded.

    Returns:
        The mean difference, or NaN without pairs. The interval is NaN with fewer than two pairs, or
        if all differences are equal up to rounding.

    References:
        Student 1908, "The probable error of a mean".

    Examples:
        >>> found = paired_difference(np.array([1.0, 0.0, 1.0]), np.zeros(3))
        >>> f"{found.value:.2f} {found.low:.2f} {found.high:.2f}"
        '0.67 -0.77 2.10'
    """
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    differences = (ours - theirs)[both]
    count = len(differences)
    if count == 0:
        return Interval(nan, nan, nan)
    mean = fmean(differences)
    rounding = ROUNDING * np.max(np.abs([ours[both], theirs[both]]))
    if count < 2 or np.ptp(differences) <= rounding:
        return Interval(mean, nan, nan)
    margin = student_quantile(0.975, count - 1) * stdev(differences) / sqrt(count)
    return Interval(mean, mean - margin, mean + margin)


Z = NormalDist().inv_cdf(0.975)
"""Half-width of a 95 % interval in standard errors."""


def kaplan_meier(times: Runs, reached: Reached) -> Survival:
    r"""Return the share of runs that have not reached the threshold by each step, with a 95 % band.

    With $n_i$ runs at risk just before step $t_i$, of which $d_i$ reach the threshold at $t_i$,

    $$ S(t) = \prod_{t_i \le t} \Bigl(1 - \frac{d_i}{n_i}\Bigr), \qquad
       S(t)^{\exp(\pm 1.96\,\sigma)}, \quad
       \sigma^2 = \frac{1}{\log^2 S} \sum_{t_i \le t} \frac{d_i}{n_i (n_i - d_i)}. $$

    A run that ended or failed without reaching the threshold is censored at its last step. The
    median is the first step at which S is at most one half, and the band gives its bounds in the
    same way. At S = 0, where the band is undefined, the lower bound is 0, and the upper bound keeps
    its last value. (lifelines sets both to 0.)

    Args:
        times: Step at which each run reached the threshold, or its last step.
        reached: Whether the run reached the threshold.

    Returns:
        The curve from step 0 on. The shares are NaN without runs.

    References:
        Kaplan and Meier 1958; Greenwood 1926; Kalbfleisch and Prentice 1980 for the band;
        Brookmeyer and Crowley 1982 for the median's interval.
    """
    events = np.unique(times[reached])
    at_risk = np.array([np.count_nonzero(times >= t) for t in events], dtype=float)
    deaths = np.array([np.count_nonzero(times[reached] == t) for t in events], dtype=float)
    share = np.cumprod(1 - deaths / at_risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.cumsum(deaths / (at_risk * (at_risk - deaths)))
        sigma = np.sqrt(variance) / np.abs(np.log(share))
        low, high = share ** np.exp(Z * sigma), share ** np.exp(-Z * sigma)
    gone = share == 0  # at the last step only
    before = high[~gone][-1] if np.any(~gone) else 1.0
    low, high = np.where(gone, 0.0, low), np.where(gone, before, high)
    first = 1.0 if len(times) else nan
    steps, share, low, high = (
        np.concatenate([[origin], values])
        for origin, values in ((0.0, events), (first, share), (first, low), (first, high))
    )
    median = Interval(_half(steps, share), _half(steps, low), _half(steps, high))
    return Survival(steps, share, low, high, median)


def _half(steps: Times, share: Times) -> float:
    at = np.flatnonzero(share <= 0.5 + ROUNDING)
    return float(steps[at[0]]) if len(at) else nan


def log_rank_scores(
    times: tuple[Runs, Runs],
    reached: tuple[Reached, Reached],
) -> tuple[Runs, Runs]:
    r"""Return the log-rank score of each run. Runs that reach the threshold sooner score higher.

    The score is $\delta_j - \sum_{t_i \le t_j} d_i / n_i$, where $\delta_j$ is 1 if the run reached
    the threshold, otherwise 0, and the sum is the expected number of times that a run reaches it in
    as many steps. Over one estimator's runs, the scores sum to the log-rank test's $O - E$. A
    `permutation_test` of the scores is the log-rank test without the chi-squared approximation,
    whose p-values are too small with few runs (`benchmarks/few_seeds.py`). The test is exact if
    both estimators' runs are censored alike.

    Args:
        times: For each run of both estimators, as for `kaplan_meier`.
        reached: Whether the run reached the threshold.

    Returns:
        The scores of the runs, one array per estimator.

    References:
        Peto and Peto 1972, "Asymptotically efficient rank invariant test procedures".
    """
    all_times, all_reached = np.concatenate(times), np.concatenate(reached)
    events = np.unique(all_times[all_reached])
    hazards = np.array(
        [
            np.count_nonzero(all_times[all_reached] == t) / np.count_nonzero(all_times >= t)
            for t in events
        ]
    )
    first, second = (
        r - np.array([hazards[events <= time].sum() for time in t])
        for t, r in zip(times, reached, strict=True)
    )
    return first, second
