"""Computes quantiles of Student's t distribution."""

from math import cos, pi, sin, sqrt, tan


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
