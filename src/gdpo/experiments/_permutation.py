"""Whether two arms differ, by relabelling their runs; and what many questions at once cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, nan

import numpy as np
from jaxtyping import Float, Int

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
    far apart as they are. It assumes no distribution: were the arms alike, the labels would be
    arbitrary. Where there are more than 200,000 ways, `draws` of them are drawn, and the one that
    was run counts as one of them: $p = (1 + \text{as far}) / (1 + \text{draws})$.

    The floor is $2 / \binom{2n}{n}$ for equal numbers: 0.10 for 3 seeds, 0.029 for 4, 0.0079 for 5.
    That seeds are paired is not made use of: relabelling within pairs could not go below 0.0625
    with 5 seeds. Where a seed moves both arms alike, the test errs on the side of no difference.

    Args:
        ours: A figure of each run of one arm, in any unit. NaN is left out.
        theirs: Of each run of the other arm, in the same unit.
        draws: Relabellings where there are too many to try all.
        seed: Of the draws.

    Returns:
        The p-value and its floor, from 0 to 1; NaN where an arm has no run.

    References:
        Fisher 1935, "The Design of Experiments"; Phipson and Smyth 2010, "Permutation P-values
        should never be zero", https://arxiv.org/abs/1603.05766.

    Example:
        >>> permutation_test(np.array([0.7, 0.8, 0.9]), np.array([0.1, 0.2, 0.3]))
        PValue(p=0.1, floor=0.1)
    """
    ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
    if min(len(ours), len(theirs)) == 0:
        return PValue(nan, nan)
    # Sorted, since the order of the seeds must not move the draws.
    pooled = np.sort(np.concatenate([ours, theirs]))
    centred = pooled - pooled.mean()
    # The sum of one arm's centred values is its distance from the other, but for a constant.
    observed = abs(np.sum(ours - pooled.mean()))
    rounding = 2**10 * np.finfo(float).eps * np.max(np.abs(pooled))
    ways = comb(len(pooled), len(ours))
    exact, floor = ways <= _EXACT, least_p(len(ours), len(theirs), draws=draws)
    sums = _all_sums(centred, len(ours)) if exact else _sums(centred, len(ours), draws, seed)
    as_far = int(np.count_nonzero(np.abs(sums) >= observed - rounding))
    return PValue(as_far / ways if exact else (1 + as_far) / (1 + draws), floor)


def least_p(ours: int, theirs: int, *, draws: int = 20_000) -> float:
    """Return the minimum attainable p of the permutation test, for these numbers of runs.

    Example:
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

    Example:
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
