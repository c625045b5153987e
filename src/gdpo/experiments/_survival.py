"""How long runs take to a threshold, when some of them never come to it."""

from math import erfc, nan, sqrt
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float

from gdpo.experiments._comparison import Interval, Survival

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


def log_rank(
    times: tuple[Float[np.ndarray, " run"], Float[np.ndarray, " run"]],
    reached: tuple[Bool[np.ndarray, " run"], Bool[np.ndarray, " run"]],
) -> float:
    r"""P-value of the log-rank test: whether two arms reach a threshold at the same pace.

    With $O - E$ the number of runs of one arm that reached it less the number expected at each of
    the steps, were the arms alike, and $V$ its hypergeometric variance, $(O - E)^2 / V$ is compared
    with chi-squared with one degree of freedom.

    That is right for many runs. For few, p is too small: 3 against 3 runs that are wholly apart get
    0.025, where one in ten relabellings is as far apart. Of arms that are alike it tells 7 to 8 %
    apart at 0.05 with 5 seeds, 10 % with 3 (`benchmarks/few_seeds.py`). Give `log_rank_scores` to
    `permutation_test` instead.

    Args:
        times: Of each run of both arms, the step at which it reached it, or its last step.
        reached: Whether it did.

    Returns:
        From 0 to 1; 1 where no run reached it, or all did at once; NaN where an arm has no run.

    References:
        Mantel 1966; Peto and Peto 1972.
    """
    if min(len(t) for t in times) == 0:
        return nan
    all_times, all_reached = np.concatenate(times), np.concatenate(reached)
    variance = 0.0
    for t in np.unique(all_times[all_reached]):
        n, ours = np.count_nonzero(all_times >= t), np.count_nonzero(times[0] >= t)
        d = np.count_nonzero(all_times[all_reached] == t)
        if n > 1:
            variance += d * (ours / n) * (1 - ours / n) * (n - d) / (n - 1)
    excess = float(np.sum(log_rank_scores(times, reached)[0]))
    return erfc(abs(excess) / sqrt(2 * variance)) if variance > 0 else 1.0


def log_rank_scores(
    times: tuple[Float[np.ndarray, " run"], Float[np.ndarray, " run"]],
    reached: tuple[Bool[np.ndarray, " run"], Bool[np.ndarray, " run"]],
) -> tuple[Float[np.ndarray, " run"], Float[np.ndarray, " run"]]:
    r"""What each run adds to the log-rank test: higher is sooner.

    $\delta_j - \sum_{t_i \le t_j} d_i / n_i$: 1 if it reached the threshold, less how many times a
    run that was on its way for as long was expected to. They sum to 0 over all runs, and over one
    arm to $O - E$ of `log_rank`; permuting them is the permutation test with that statistic. It is
    exact where runs of both arms are cut short alike.

    Args:
        times: Of each run of both arms, the step at which it reached it, or its last step.
        reached: Whether it did.

    Returns:
        Of each run of both arms; dimensionless.

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
