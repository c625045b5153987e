"""Computes the confidence interval of a mean difference between pairs (seeds or problems)."""

from math import cos, nan, pi, sin, sqrt, tan
from statistics import fmean, stdev

import numpy as np

from gdpo._shapes import Float


def paired_interval(
    ours: Float[np.ndarray, " pair"], theirs: Float[np.ndarray, " pair"]
) -> tuple[float, float, float, int]:
    r"""Return the mean paired difference, its 95 % Student t interval, and the number of pairs.

    If $d_i$ are the differences of $n$ pairs and $s_d$ is their standard deviation, the interval is

    $$ \bar d \pm t_{0.975,\,n-1}\, s_d / \sqrt n. $$

    Args:
        ours: One value per pair, in any unit.
        theirs: The other value of each pair, in the same order and unit. Pairs that contain NaN are
            excluded.

    Returns:
        Mean difference, lower and upper bound of the interval (both in the unit of the values), and
        number of pairs. The mean is NaN if there are no pairs. The bounds are NaN if there are
        fewer than two pairs, or if all differences are equal up to rounding.

    References:
        Student 1908, "The probable error of a mean".

    Examples:
        >>> mean, low, high, pairs = paired_interval(np.array([1.0, 0.0, 1.0]), np.zeros(3))
        >>> f"{mean:.2f} {low:.2f} {high:.2f} {pairs}"
        '0.67 -0.77 2.10 3'
    """
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    differences = (ours - theirs)[both]
    count = len(differences)
    if count == 0:
        return nan, nan, nan, 0
    mean = fmean(differences)
    rounding = 2**10 * np.finfo(float).eps * np.max(np.abs([ours[both], theirs[both]]))
    if count < 2 or np.ptp(differences) <= rounding:
        return mean, nan, nan, count
    margin = student_quantile(0.975, count - 1) * stdev(differences) / sqrt(count)
    return mean, mean - margin, mean + margin, count


def student_quantile(p: float, freedom: int) -> float:
    """Return the p-quantile of Student's t distribution.

    Args:
        p: Probability, at least 0.5 and below 1.
        freedom: Degrees of freedom, at least 1.

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
