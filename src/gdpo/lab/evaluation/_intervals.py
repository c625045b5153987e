"""Computes confidence intervals of means over problems with several dependent samples each."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt
from statistics import fmean, variance
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import BeforeValidator

from gdpo.lab.experiments.statistics import Z, paired_difference

Number: TypeAlias = Annotated[float, BeforeValidator(lambda value: nan if value is None else value)]
"""A number that is NaN if it was read as null."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Stores a mean with its 95 % interval."""

    mean: Number
    low: Number
    high: Number
    problems: int
    """Number of problems in the mean."""


def share(of_problems: Sequence[float], *, low: float = 0.0, high: float = 1.0) -> Estimate:
    r"""Return the mean of a bounded measure over problems, with its 95 % interval.

    The interval is Wilson's with the effective sample size $n_e = p(1-p) N / s^2$, where $N$ is the
    number of problems, $p$ the mean and $s^2$ the variance of the problems' means, both scaled to
    [0, 1]. $n_e$ is about $N$ with one sample per problem, and $N$ if all problems have the same
    value. `of_problems` holds each problem's mean over its samples. NaN: the measure does not
    apply.

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
    squares = variance(known) if count > 1 else 0.0
    effective = count if squares <= 0 or not 0 < p < 1 else p * (1 - p) * count / squares
    n, back = max(effective, 1.0), high - low
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    margin = Z / (1 + Z**2 / n) * sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    bottom, top = max(0.0, centre - margin), min(1.0, centre + margin)
    return Estimate(low + back * p, low + back * bottom, low + back * top, count)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return two models' mean difference on the same problems, with its 95 % Student t interval.

    The bounds are NaN if all problems have the same difference.
    """
    pairs = np.asarray(ours, float), np.asarray(theirs, float)
    found = paired_difference(*pairs)
    known = int(np.count_nonzero(~np.isnan(pairs).any(axis=0)))
    return Estimate(found.value, found.low, found.high, known)
