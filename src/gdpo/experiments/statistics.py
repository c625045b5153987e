"""The statistics of a comparison: middle half, bootstrap, permutation test, time to a threshold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, nan, sqrt
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from gdpo._student import paired_interval, student_quantile
from gdpo.experiments.comparison import Interval, Survival

_EXACT = 200_000
"""Relabellings that are all tried; of more, `draws` are drawn."""


@dataclass(frozen=True, slots=True)
class PValue:
    """A p-value, and the least that so many runs could have given."""

    p: float
    floor: float


def permutation_test(
    ours: Float[np.ndarray, " seed"],
    theirs: Float[np.ndarray, " seed"],
    *,
    draws: int = 20_000,
    seed: int = 0,
) -> PValue:
    r"""Two-sided permutation test of the difference of two means.

    The share of all ways to call $n$ of the $n + m$ runs "ours" in which the means are at least as
    far apart as they are. It assumes no distribution: were the estimators alike, the labels would be
    arbitrary. Where there are more than 200,000 ways, `draws` of them are drawn, and the one that
    was run counts as one of them: $p = (1 + \text{as far}) / (1 + \text{draws})$.

    The floor is $2 / \binom{2n}{n}$ for equal numbers: 0.10 for 3 seeds, 0.029 for 4, 0.0079 for 5.
    That seeds are paired is not made use of: relabelling within pairs could not go below 0.0625
    with 5 seeds. Where a seed moves both estimators alike, the test errs on the side of no difference.

    Args:
        ours: A figure of each run of one estimator, in any unit. NaN is left out.
        theirs: Of each run of the other estimator, in the same unit.
        draws: Relabellings where there are too many to try all.
        seed: Of the draws.

    Returns:
        The p-value and its floor, from 0 to 1; NaN where an estimator has no run.

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
    # Sorted, since the order of the seeds must not move the draws.
    pooled = np.sort(np.concatenate([ours, theirs]))
    centred = pooled - pooled.mean()
    # The sum of one estimator's centred values is its distance from the other, but for a constant.
    observed = abs(np.sum(ours - pooled.mean()))
    rounding = 2**10 * np.finfo(float).eps * np.max(np.abs(pooled))
    ways = comb(len(pooled), len(ours))
    exact, floor = ways <= _EXACT, least_p(len(ours), len(theirs), draws=draws)
    sums = _all_sums(centred, len(ours)) if exact else _sums(centred, len(ours), draws, seed)
    as_far = int(np.count_nonzero(np.abs(sums) >= observed - rounding))
    return PValue(as_far / ways if exact else (1 + as_far) / (1 + draws), floor)


def least_p(ours: int, theirs: int, *, draws: int = 20_000) -> float:
    """Return the minimum attainable p of the permutation test, for these numbers of runs.

    Examples:
        >>> round(least_p(5, 5), 4)
        0.0079
    """
    ways = comb(ours + theirs, ours)
    least = (2 if ours == theirs else 1) / ways
    return least if ways <= _EXACT else max(least, 1 / (1 + draws))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    r"""P-values corrected for their number: one below α among them is wrong at most α of the time.

    With $p_{(1)} \le \dots \le p_{(m)}$, the $i$-th becomes $\max_{j \le i} (m - j + 1)\, p_{(j)}$,
    1 at most. It holds whether or not the questions depend on each other.

    Args:
        p_values: From 0 to 1. NaN is not counted, and stays.

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


def _all_sums(values: Float[np.ndarray, " run"], size: int) -> Float[np.ndarray, " way"]:
    return values[_choices(len(values), size)].sum(axis=1)


@lru_cache(maxsize=4)
def _choices(count: int, size: int) -> Int[np.ndarray, "way place"]:
    return np.array(list(combinations(range(count), size)))


def _sums(
    values: Float[np.ndarray, " run"], size: int, draws: int, seed: int
) -> Float[np.ndarray, " draw"]:
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(values, (draws, 1)), axis=1)[:, :size].sum(axis=1)


Statistic: TypeAlias = Callable[[Float[np.ndarray, "*draw value"]], Any]
"""A figure of values along the last axis."""


def interquartile_mean(values: Float[np.ndarray, "*draw value"]) -> Any:
    r"""Mean of the middle half: a quarter of the values is cut off at either end.

    With $x_{(1)} \le \dots \le x_{(n)}$ and $g = \lfloor n/4 \rfloor$,

    $$ \mathrm{IQM} = \frac{1}{n - 2g} \sum_{i=g+1}^{n-g} x_{(i)}. $$

    Below 4 values nothing is cut off; of 5 the lowest and the highest are. It is what
    `scipy.stats.trim_mean(x, 0.25)` and rliable compute.

    Args:
        values: In any unit, along the last axis. NaN is left out.

    Returns:
        In the same unit; NaN where there is no value.

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
    seed: int = 0,
) -> Interval:
    """A figure with its percentile bootstrap interval, values being drawn within their stratum.

    The interval runs between the (1 ∓ level)/2 quantiles of the statistic over `draws` samples as
    large as the data. The order of the values does not matter. With few values it is too narrow:
    see `expanded_level`.

    Args:
        statistic: Of all values together, along the last axis, in any unit.
        strata: Values of each stratum (a task, say); NaN is left out.
        draws: Samples.
        level: Share of experiments whose interval should hold the true figure.
        seed: Of the draws.

    Returns:
        The figure of the values themselves, and the interval; NaN where there is no value, and no
        interval where a stratum has fewer than 2.

    References:
        Efron 1979; stratified as in Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
    """
    # Sorted, since the order of the seeds must not move the interval.
    known = [np.sort(values[~np.isnan(values)]) for values in strata]
    value = float(statistic(np.concatenate(known))) if known else nan
    if not known or min(len(values) for values in known) < 2:
        return Interval(value, nan, nan)
    rng = np.random.default_rng(seed)
    drawn = [values[rng.integers(len(values), size=(draws, len(values)))] for values in known]
    tail = (1 - level) / 2
    low, high = np.quantile(statistic(np.concatenate(drawn, axis=-1)), [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def expanded_level(count: int, level: float = 0.95) -> float:
    r"""The level to ask of a percentile bootstrap of `count` values, so that it holds `level`.

    Resampling makes a spread too small by $\sqrt{(n-1)/n}$ and knows nothing of Student's t. Both
    are put right by asking for more:

    $$ \frac{\alpha'}{2} = \Phi\Bigl(-\sqrt{\tfrac{n}{n-1}}\; t_{1-\alpha/2,\,n-1}\Bigr). $$

    For an interquartile mean of 5 values that is the range from the lowest to the highest, which
    held the truth in 94 % of experiments with normal runs, 93 % with skewed ones, and 82 % where
    some runs learn and others do not (percentile at 0.95: 90, 89 and 79 %); of 10 values in 96 to
    97 %. Over 3 values it held in 64 to 76 %, no more than the percentile: no resampling looks
    beyond what it has seen. Measured with `benchmarks/few_seeds.py`; docs/reference/statistics.md.

    Args:
        count: Values, at least 2.
        level: Share of experiments whose interval should hold the true figure.

    References:
        Hesterberg 2015, "What Teachers Should Know About the Bootstrap" ("expanded percentile"), https://arxiv.org/abs/1411.5279.
    """
    t = student_quantile((1 + level) / 2, count - 1)
    return 1 - 2 * NormalDist().cdf(-sqrt(count / (count - 1)) * t)


def paired_difference(
    ours: Float[np.ndarray, " seed"], theirs: Float[np.ndarray, " seed"], *, level: float = 0.95
) -> Interval:
    """Return the mean over the seeds of the difference of two estimators, with Student's interval.

    The formula is that of `gdpo._student.paired_interval`, which evaluations use as well.

    At a level of 0.95 it held the truth in 95 to 97 % of experiments with 3 seeds, 95 to 98 % with
    5, 94 to 95 % with 10, whether runs were normal, skewed or learned at one of two levels. Of
    bootstraps the percentile held in 75, 80 to 83 and 88 to 91 %, BCa no better. Measured with
    `benchmarks/few_seeds.py`; docs/reference/statistics.md.

    Args:
        ours: A figure of each seed, in any unit.
        theirs: That of the other estimator with the same seeds, in the same order and unit. A seed that
            is NaN in either is left out.
        level: Share of experiments whose interval should hold the true difference.

    Returns:
        In the unit of the figures; NaN without a seed, and no interval where there are fewer than 2
        or where all differ alike but for rounding: nothing is known of the standard deviation then.
    """
    mean, low, high, _ = paired_interval(ours, theirs, level=level)
    return Interval(mean, low, high)


_Z = NormalDist().inv_cdf(0.975)
_ROUNDING = 2**10 * np.finfo(float).eps


def kaplan_meier(times: Float[np.ndarray, " run"], reached: Bool[np.ndarray, " run"]) -> Survival:
    r"""The share of runs that have not reached the threshold, by step, with a 95 % band.

    With $n_i$ runs that are still on their way before step $t_i$, $d_i$ of which reach it there,

    $$ S(t) = \prod_{t_i \le t} \Bigl(1 - \frac{d_i}{n_i}\Bigr), \qquad
       S(t)^{\exp(\pm 1.96\,\sigma)}, \quad
       \sigma^2 = \frac{1}{\log^2 S} \sum_{t_i \le t} \frac{d_i}{n_i (n_i - d_i)}. $$

    A run that ended without reaching it, or failed, counts as on its way up to its last step and no
    further ("censored"): it is neither left out nor taken to have reached it then. The median is
    the first step where S is at most one half, its interval where the band is.

    At S = 0 the formula for the band has no value: the low end is 0 and the high end stays what it
    was (lifelines says 0 for both, as if the last run were sure to be the last).

    Args:
        times: Of each run, the step at which it reached the threshold, or its last step.
        reached: Whether it did.

    Returns:
        Steps from 0; with no run, shares of NaN.

    References:
        Kaplan and Meier 1958; Greenwood 1926; Kalbfleisch and Prentice 1980 for the band;
        Brookmeyer and Crowley 1982 for the median's interval.
    """
    events = np.unique(times[reached])
    at_risk = np.array([np.count_nonzero(times >= t) for t in events], dtype=float)
    deaths = np.array([np.count_nonzero(times[reached] == t) for t in events], dtype=float)
    share = np.cumprod(1 - deaths / at_risk)
    low, high = _band(share, at_risk, deaths)
    first = 1.0 if len(times) else nan
    steps, share, low, high = (
        np.concatenate([[origin], values])
        for origin, values in ((0.0, events), (first, share), (first, low), (first, high))
    )
    median = Interval(_half(steps, share), _half(steps, low), _half(steps, high))
    return Survival(steps, share, low, high, median)


def _band(
    share: Float[np.ndarray, " time"],
    at_risk: Float[np.ndarray, " time"],
    deaths: Float[np.ndarray, " time"],
) -> tuple[Float[np.ndarray, " time"], Float[np.ndarray, " time"]]:
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.cumsum(deaths / (at_risk * (at_risk - deaths)))
        sigma = np.sqrt(variance) / np.abs(np.log(share))
        low, high = share ** np.exp(_Z * sigma), share ** np.exp(-_Z * sigma)
    gone = share == 0  # only ever the last
    before = high[~gone][-1] if np.any(~gone) else 1.0
    return np.where(gone, 0.0, low), np.where(gone, before, high)


def _half(steps: Float[np.ndarray, " time"], share: Float[np.ndarray, " time"]) -> float:
    at = np.flatnonzero(share <= 0.5 + _ROUNDING)
    return float(steps[at[0]]) if len(at) else nan


def log_rank_scores(
    times: tuple[Float[np.ndarray, " run"], Float[np.ndarray, " run"]],
    reached: tuple[Bool[np.ndarray, " run"], Bool[np.ndarray, " run"]],
) -> tuple[Float[np.ndarray, " run"], Float[np.ndarray, " run"]]:
    r"""What each run adds to the log-rank test: higher is sooner.

    $\delta_j - \sum_{t_i \le t_j} d_i / n_i$: 1 if it reached the threshold, less how many times a
    run that was on its way for as long was expected to. They sum to 0 over all runs, and over one
    estimator to the $O - E$ of the log-rank test. `permutation_test` of them is that test without its
    approximation, which is too sure of few runs: 3 against 3 that are wholly apart get p = 0.025
    from chi-squared, where one in ten relabellings is as far apart
    (`benchmarks/few_seeds.py`). It is exact where runs of both estimators are cut short alike.

    Args:
        times: Of each run of both estimators, the step at which it reached it, or its last step.
        reached: Whether it did.

    Returns:
        Of each run of both estimators; dimensionless.

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
