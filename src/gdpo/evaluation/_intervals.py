"""What a mean over problems is worth: intervals that know that samples of a problem are alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt
from statistics import NormalDist, fmean, variance

import numpy as np

from gdpo._student import paired_interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float
    problems: int
    """Problems that it is a mean of."""


def share(of_problems: Sequence[float], *, low: float = 0.0, high: float = 1.0) -> Estimate:
    r"""The mean over problems of a figure with a lowest and a highest value, and its interval.

    Wilson's interval with the effective sample size: what is known of $N$ problems is worth
    $n_e = p(1-p) N / s^2$ independent zeros and ones, $p$ being the mean and $s^2$ the variance of
    the problems' means, both scaled to [0, 1]. With one sample each, that is $N$ (about). Where all
    problems are alike, $n_e = N$: 0 of 20 is no proof of 0.

    Args:
        of_problems: The mean over the samples of each problem; NaN: the figure does not apply.
        low: Its lowest value.
        high: Its highest value.

    References:
        Wilson 1927, "Probable inference"; Korn and Graubard 1998 for the effective size.

    Examples:
        >>> e = share([1.0] * 8 + [0.0] * 12)
        >>> f"{e.mean:.2f} {e.low:.2f} {e.high:.2f}"
        '0.40 0.22 0.62'
        >>> round(share([0.0] * 20).high, 2)
        0.16
    """
    known = [(value - low) / (high - low) for value in of_problems if not isnan(value)]
    if not known:
        return Estimate(nan, nan, nan, 0)
    p, count = fmean(known), len(known)
    spread = variance(known) if count > 1 else 0.0
    effective = count if spread <= 0 or not 0 < p < 1 else p * (1 - p) * count / spread
    bottom, top = _wilson(p, max(effective, 1.0))
    back = high - low
    return Estimate(low + back * p, low + back * bottom, low + back * top, count)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return the mean over problems of the difference of two models on the same problems.

    The interval is Student's: problems, not samples, are drawn. Where all problems differ alike
    there is none: nothing is known of the standard deviation.

    Args:
        ours: A figure of each problem.
        theirs: That of the other model, in the same order.
    """
    return Estimate(*paired_interval(np.asarray(ours, float), np.asarray(theirs, float)))


_Z = NormalDist().inv_cdf(0.975)


def _wilson(p: float, n: float) -> tuple[float, float]:
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    margin = _Z / (1 + _Z**2 / n) * sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - margin), min(1.0, centre + margin)
