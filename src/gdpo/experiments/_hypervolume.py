"""How much of what is possible several rewards reach together."""

import numpy as np
from jaxtyping import Float

from gdpo.errors import DataError


def hypervolume(points: Float[np.ndarray, "point reward"]) -> float:
    r"""Share of the unit cube in which some point is at least as good in every reward.

    The volume of the union of the boxes from 0 to each point: for one point $p$, $\prod_k p_k$; of
    competing points, what each adds to the others. A trade of one reward for another leaves
    it nearly as it was; a reward that is at its lowest makes it 0. It knows no weights.

    Exact. Time grows steeply with points and rewards; meant for tens of points and up to 10
    rewards.

    Args:
        points: Every reward scaled to [0, 1]. A point with a NaN is left out.

    Returns:
        From 0 to 1; 0 without a point.

    Raises:
        DataError: A value is outside [0, 1].

    References:
        Zitzler and Thiele 1998, "Multiobjective optimization using evolutionary algorithms"; the
        recursion is that of While, Bradstreet and Barone 2012, "A fast way of calculating exact
        hypervolumes".

    Example:
        >>> hypervolume(np.array([[0.5, 1.0], [1.0, 0.5]]))
        0.75
    """
    known = points[~np.isnan(points).any(axis=1)]
    if np.any((known < 0) | (known > 1)):
        raise DataError(
            f"hypervolume: values from {known.min():g} to {known.max():g}; every reward has to be "
            "scaled to [0, 1] by its lowest and its highest value"
        )
    return _volume(_undominated(known))


def _volume(points: Float[np.ndarray, "point reward"]) -> float:
    return sum(_added(point, points[i + 1 :]) for i, point in enumerate(points))


def _added(point: Float[np.ndarray, " reward"], others: Float[np.ndarray, "point reward"]) -> float:
    """What a point dominates that none of the others does."""
    return float(np.prod(point)) - _volume(_undominated(np.minimum(point, others)))


def _undominated(points: Float[np.ndarray, "point reward"]) -> Float[np.ndarray, "kept reward"]:
    distinct = np.unique(points, axis=0)
    above = (distinct[None, :] >= distinct[:, None]).all(axis=2).sum(axis=1) > 1
    return distinct[~above]
