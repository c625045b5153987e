"""Measures how a number changes over the steps of a run, from rollouts or logged metrics."""

from math import inf, nan, sqrt

import numpy as np

from gdpo._shapes import Float
from gdpo.diagnostics.influence import student_quantile

Series = Float[np.ndarray, " step"]

_LEAST = 15
"""Smallest number of values for a change with an interval."""
_ROUNDING = 1e-6
"""Relative rounding error of a mean in float32, with which trainers compute means."""


def known_mean(values: Series) -> float:
    """Return the mean of the values that are not NaN, or NaN."""
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else nan


def end_means(values: Series) -> tuple[float, float]:
    """Return the means of the first and of the last tenth of the values that are not NaN."""
    known = values[~np.isnan(values)]
    count = max(1, len(known) // 10)
    return known_mean(known[:count]), known_mean(known[-count:])


def trend(values: Series) -> tuple[float, float]:
    r"""Return the change from the first to the last third, and the half-width of its 95 % interval.

    The noise is measured around a line through each third, because rewards often rise early and
    then plateau. Neighbouring steps are alike, so n steps count as $n_e = n (1 - \rho) / (1 +
    \rho)$ independent values (Santer et al. 2000, "Statistical significance of trends"), with the
    lag-1 autocorrelation ρ of the residuals, which a line in m values makes too small by about $(2
    + 4 \rho) / m$. The half-width is infinite if too few independent values remain, and both are
    NaN with fewer than 15 values.
    """
    known = values[~np.isnan(values)]
    count, third = len(known), len(known) // 3
    if count < _LEAST:
        return nan, nan
    parts = known[:third], known[third : count - third], known[count - third :]
    change = float(np.mean(parts[2]) - np.mean(parts[0]))
    residuals: list[Series] = []
    for part in parts:
        place, centered = np.arange(len(part)) - (len(part) - 1) / 2, part - np.mean(part)
        residuals.append(centered - place * (place @ centered) / (place @ place))
    square = sum(float(r @ r) for r in residuals)
    if square <= count * (_ROUNDING * float(np.max(np.abs(known)))) ** 2:
        return change, 0.0
    likeness = sum(float(r[1:] @ r[:-1]) for r in residuals) / square
    likeness = min(max((third * likeness + 2) / (third - 4), 0.0), 0.999)
    worth = (1 - likeness) / (1 + likeness)
    freedom = count * worth - 2 * len(parts)
    if freedom < 1:
        return change, inf
    variance = square * worth / freedom
    return change, student_quantile(0.975, int(freedom)) * sqrt(2 * variance / (third * worth))
