"""How long runs take to a threshold, when some of them never come to it."""

from math import nan
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float

from gdpo.experiments.comparison import Interval, Survival

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
    arm to the $O - E$ of the log-rank test. `permutation_test` of them is that test without its
    approximation, which is too sure of few runs: 3 against 3 that are wholly apart get p = 0.025
    from chi-squared, where one in ten relabellings is as far apart
    (`benchmarks/few_seeds.py`). It is exact where runs of both arms are cut short alike.

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
