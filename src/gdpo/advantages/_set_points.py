r"""Computes the weights that give each reward a requested influence share.

The advantages are $A = \sum_k w_k z_k / \sigma$, where $z$ is 0 in zero-variance groups. If
$\sigma$ does not depend on the batch, the influence of the rewards is $M w$ up to a factor, where
$M = \mathrm{mean}(z z^\top)$ over the rollouts, so requested shares $b$ are a linear system, $M w
\propto b$. For `mo_grpo`, $\sigma$ is 1. For `gdpo`, it is the scale of $M$: a batch's standard
deviation is largest where a rare reward varies, which would lower its influence.
"""

from collections.abc import Mapping, Sequence
from math import inf, isnan, nan, sqrt
from typing import Any, NamedTuple, cast

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo._shapes import Bool, Float
from gdpo.advantages._recent import RecentMean, as_numpy, wrong_state
from gdpo.advantages._types import Number, PerReward, Rewards
from gdpo.advantages.arrays import floors, number, rounded
from gdpo.advantages.stages import SAMPLES, standardize
from gdpo.errors import ConfigError

Vector = Float[np.ndarray, " reward"]
Square = Float[np.ndarray, "reward reward"]
Mask = Bool[np.ndarray, " reward"]

GOVERNED = "governed"
AT_BOUND = "at its bound"
NOT_VARYING = "does not vary"
RELEASED = "learned and released"
NOT_ATTAINABLE = "not attainable"
SETTLING = "settling"
MISSED = "missed"

_AVERAGES, _SHARES = (8, 8), (64, 4)
"""Half-lives of the averages and of the realized shares, in groups in which the rarest reward
varies, and the maximum number of these that count per step, because a step has one set of weights.
A share can be met once half of the half-life has passed, and missed once all of it has."""

_TOLERANCE, _ERRORS = 0.03, 2
"""A share is met if it differs from its request by at most 0.03 plus 2 standard errors."""

_LARGEST_FACTOR = 20
"""Maximum factor between a weight and its first weight."""

_LARGEST_STEP = 1.5
"""Maximum factor by which a weight changes in one step."""

_QUIET_GROUPS = 256
"""A reward that has not varied in this many groups in a row counts as not varying."""

_RELEASE, _RETAKE = 0.95, 0.90
"""Mean, as a fraction of the declared range, above which a reward is released, and below which a
released reward is governed again."""

_LEAST_SCALE = 1e-6
"""Minimum scale, as a fraction of the scale that the rewards would have if they were unrelated.
Rewards that cancel have no scale."""

_RIDGE = 1e-3
"""Fraction of M's diagonal that is added to it, so that copies of a reward have a solution."""

_LEAST = 1e-6
"""Smallest number that a request may contain. The largest is its inverse, so that sums are exact
enough."""

_MISSED = 0.1
"""A share that the solution misses by more than this is not attainable. Without the ridge, rewards
that are opposites have no solution."""


STATUSES = (GOVERNED, AT_BOUND, NOT_VARYING, RELEASED, NOT_ATTAINABLE, SETTLING, MISSED)
"""Statuses in the order of their numbers in metrics."""

FOLLOWING = (GOVERNED, SETTLING, MISSED)
"""Statuses in which the weight follows the request."""

_AVERAGED = ("products", "rollouts", "live", "steps", "influence", "squares", "seen", "seen_steps")
_STATE = ("weights", "quiet", "released", *_AVERAGED)
"""Arrays and numbers in a saved state."""

_LEAST_IN_STATE: dict[str, float] = {
    "weights": float(np.finfo(np.float64).tiny),
    **dict.fromkeys(("products", "influence", "squares"), -inf),
}
"""Smallest valid number in a saved state. The other arrays are 0 or more."""


class SetPoint(NamedTuple):
    name: str
    requested: float
    """The requested influence share, from 0 to 1."""
    weight: float
    status: str
    related: str = ""
    """Name of the reward whose correlation makes the share unattainable. Empty: none."""
    correlation: float = nan
    """Correlation with that reward within groups."""

    @property
    def code(self) -> int:
        return STATUSES.index(self.status)


class _Batch(NamedTuple):
    z: Float[np.ndarray, "rollout reward"]
    """Standardized rewards, 0 where a reward is missing or does not vary."""
    groups: int
    live: Vector
    rollouts: int
    """Number of rollouts to which a reward with a requested share applies."""


class SetPoints:
    """Stores the requested shares, and computes the weights from the batches so far.

    Only the ratios of the shares count. The first weights are proportional to the request, and
    their sum is the number of named rewards. A reward without a declared range cannot be released.
    """

    def __init__(
        self,
        names: Sequence[str],
        request: Any,
        *,
        low: Sequence[Number] | None = None,
        high: Sequence[Number] | None = None,
        noise_floor: PerReward = None,
    ) -> None:
        self._names, count = tuple(names), len(names)
        shares = _shares_of(request, names)
        self._named = np.array([name in shares for name in names])
        self._request = np.array([shares.get(name, 0.0) for name in names])
        self._start = self._request * len(shares)
        self._low, most = (
            np.full(count, nan) if values is None else np.array(values, dtype=np.float64)
            for values in (low, high)
        )
        width = most - self._low
        self._range = np.where(np.isfinite(width) & (width > 0), width, nan)
        self._floor = noise_floor
        self._weights = np.where(self._named, self._start, 1.0)
        self._products, self._live = np.zeros((count, count)), np.zeros(count)
        self._rollouts, self._steps = 0.0, 0.0
        self._influence, self._squares = np.zeros(count), np.zeros((count, count))
        self._seen, self._seen_steps = np.zeros(count), 0.0
        self._quiet, self._released = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        self._means = [RecentMean() for _ in names]

    @property
    def changing(self) -> list[bool]:
        return self._named.tolist()

    @property
    def factors(self) -> list[float]:
        return self._weights.tolist()

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Return the smallest and largest weight of each reward with a requested share.

        Within these bounds, the sum of the weights does not change.
        """
        low, high = self._start / _LARGEST_FACTOR, self._start * _LARGEST_FACTOR
        highest = np.minimum(high, np.sum(low) * (_LARGEST_FACTOR - 1) + low)
        pairs = zip(self._named, low, highest, strict=True)
        return [(float(low), float(high)) if named else (1.0, 1.0) for named, low, high in pairs]

    def check(self, weights: Any) -> None:
        given = [float(w) for w in weights] if np.ndim(weights) == 1 else []
        if len(given) != len(self._names):
            raise ConfigError(
                "influence needs one weight per reward for the whole batch: remove the weights per "
                "prompt, or remove influence"
            )
        for name, named, weight in zip(self._names, self._named, given, strict=True):
            if named and weight != 1:
                raise ConfigError(
                    f"{name!r} has the weight {weight:g} and a requested share: remove the weight "
                    "(or set it to 1), because influence computes the weights, or remove influence"
                )
            if not named and weight != 0:
                raise ConfigError(
                    f"influence has no share for {name!r}, whose weight is {weight:g}: give it a "
                    "share, or set its weight to 0"
                )

    @property
    def set_points(self) -> list[SetPoint]:
        solved, points = self._solve(), list[SetPoint]()
        for k in np.flatnonzero(self._named).tolist():
            status, requested = self._status(k, solved), float(self._request[k])
            point = SetPoint(self._names[k], requested, float(self._weights[k]), status)
            if status == NOT_ATTAINABLE:
                related, correlation = self._nearest(k, solved[0])
                point = point._replace(related=related, correlation=correlation)
            points.append(point)
        return points

    def including(self, rewards: Rewards, weights: Any) -> float:
        r"""Return the scale of `gdpo` for a batch, $\sqrt{w^\top M w}$ including it in $M$."""
        batch = self._batch(rewards)
        products, rollouts = self._averaged(batch)
        if not rollouts:
            return 0.0
        w = as_numpy(weights)
        square, least = w @ products @ w, _LEAST_SCALE**2 * (w**2 @ np.diag(products))
        return sqrt(max(square, least) / rollouts)

    def update(self, rewards: Rewards, advantages: Any) -> None:
        batch, values = self._batch(rewards), as_numpy(rewards)
        influence = np.where(self._named, as_numpy(advantages).reshape(-1) @ batch.z, 0.0)
        aged = self._aged(batch, _SHARES, self._seen, self._seen_steps)
        kept, self._seen, self._seen_steps = aged
        self._influence = kept * self._influence + influence
        self._squares = kept**2 * self._squares + np.outer(influence, influence)
        self._products, self._rollouts = self._averaged(batch)
        _, self._live, self._steps = self._aged(batch, _AVERAGES, self._live, self._steps)
        quiet = np.minimum(self._quiet + batch.groups, _QUIET_GROUPS)
        self._quiet = np.where(batch.live > 0, 0, quiet)
        for k, mean in enumerate(self._means):
            mean.add(values[:, :, k])
            if mean.value is not None and not isnan(self._range[k]):
                reached = (mean.value - self._low[k]) / self._range[k]
                self._released[k] = reached > (_RETAKE if self._released[k] else _RELEASE)
        target = np.where(self._released, self._start, self._weights)
        active, solution, _, _ = self._solve()
        target[active] = solution[active]
        change = target - self._weights  # none by more than the largest factor
        limit = np.where(change > 0, _LARGEST_STEP - 1, 1 - 1 / _LARGEST_STEP) * self._weights
        with np.errstate(all="ignore"):
            part = np.min(np.where(change != 0, limit / np.abs(change), inf), initial=1.0)
        self._weights = target if part >= 1 else self._weights + part * change

    def state(self) -> dict[str, Any]:
        return {
            "set_points": {
                "names": [n for n, named in zip(self._names, self._named, strict=True) if named],
                "means": [mean.state() for mean in self._means],
                **{key: np.asarray(getattr(self, f"_{key}")).tolist() for key in _STATE},
            }
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        mine = self.state()["set_points"]
        try:
            saved = state["set_points"]
            if saved["names"] != mine["names"] or len(saved["means"]) != len(self._means):
                raise ValueError(f"the request was for {', '.join(saved['names'])}")
            for mean, batches in zip(self._means, saved["means"], strict=True):
                mean.restore(batches)
            for key in _STATE:
                before = np.asarray(getattr(self, f"_{key}"))
                now = np.array(saved[key], dtype=before.dtype).reshape(before.shape)
                least = _LEAST_IN_STATE.get(key, 0)
                if not np.all(np.isfinite(now) & (now >= least)):
                    raise ValueError(f"{key} is {saved[key]!r:.80}")
                setattr(self, f"_{key}", now if now.ndim else float(now))
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise wrong_state("set-points", error) from error

    def _batch(self, rewards: Rewards) -> _Batch:
        r = rounded(rewards)
        z = as_numpy(standardize(r, over=SAMPLES, floor=floors(self._floor, r.values)).values)
        rollouts = int(np.sum(np.any(~np.isnan(z[..., self._named]), axis=-1)))
        z = np.nan_to_num(z)
        live = np.asarray(np.sum(np.any(z != 0, axis=1), axis=0, dtype=np.float64))
        return _Batch(z.reshape(-1, z.shape[-1]), len(z), live, rollouts)

    def _averaged(self, batch: _Batch) -> tuple[Square, float]:
        r"""Return the sum of $z z^\top$ and the number of rollouts. Older batches count less."""
        kept, _, _ = self._aged(batch, _AVERAGES, self._live, self._steps)
        products = kept * self._products + batch.z.T @ batch.z
        return products, kept * self._rollouts + batch.rollouts

    def _aged(
        self, batch: _Batch, half_life: tuple[int, int], live: Vector, steps: float
    ) -> tuple[float, Vector, float]:
        """Return the weight of older batches, and the discounted numbers of live groups and steps.

        `half_life`: in live groups of the rarest reward, and how many count in a step.
        """
        groups, most = half_life
        new = np.minimum(batch.live, most)
        rates = (live + new) / (steps + 1)
        varies = (new > 0) | (self._quiet < _QUIET_GROUPS)
        governed = self._named & ~self._released & varies & (rates > 0)
        kept = 0.5 ** (float(np.min(rates[governed], initial=most)) / groups)
        return kept, kept * live + new, kept * steps + 1

    def _solve(self) -> tuple[Mask, Vector, Mask, Mask]:
        varies = (self._live > 0) & (self._quiet < _QUIET_GROUPS)
        active = self._named & varies & ~self._released
        weights, held, negative = self._weights.copy(), np.zeros_like(active), np.zeros_like(active)
        if np.any(active):
            m = self._products[np.ix_(active, active)]
            weights[active], held[active], negative[active] = solve(m, self._start[active])
        return active, weights, held, negative

    def _status(self, k: int, solved: tuple[Mask, Vector, Mask, Mask]) -> str:
        active, _, held, negative = solved
        if self._released[k]:
            return RELEASED
        if not active[k]:
            return NOT_VARYING if self._steps else SETTLING
        if held[k]:
            return NOT_ATTAINABLE if negative[k] else AT_BOUND
        counted = np.min(self._seen[active]) / _SHARES[0]
        if counted >= 0.5 and self._met(k, errors=0 if np.any(held) else _ERRORS):
            return GOVERNED
        return SETTLING if counted < 1 else MISSED

    def _met(self, k: int, errors: int) -> bool:
        total = np.sum(np.abs(self._influence))
        share = self._influence[k] / total
        apart = -share * np.sign(self._influence)
        apart[k] += 1
        error = sqrt(max(0.0, apart @ self._squares @ apart)) / total
        return bool(abs(share - self._request[k]) <= _TOLERANCE + errors * error)

    def _nearest(self, k: int, active: Mask) -> tuple[str, float]:
        scale = np.sqrt(np.diag(self._products))
        with np.errstate(all="ignore"):
            correlations = self._products[k] / scale / scale[k]
        others = [j for j in np.flatnonzero(active) if j != k]
        nearest = max(others, key=lambda j: abs(correlations[j]))
        return self._names[nearest], float(correlations[nearest])


def solve(m: Square, request: Vector) -> tuple[Vector, Mask, Mask]:
    r"""Solve $M w \propto b$ with bounded weights, whose sum is that of the request.

    A weight outside its bounds is held at the bound, the smallest first, and the others are solved
    again. The masks mark weights that are held or miss their share, and those that would not be
    positive without bounds or miss their share.
    """
    exact, m = m, m + _RIDGE * np.diag(np.diag(m))
    low, high, total = request / _LARGEST_FACTOR, request * _LARGEST_FACTOR, np.sum(request)
    weights, held = request.copy(), np.zeros(len(request), dtype=np.bool_)
    negative = np.linalg.solve(m, request) <= 0
    while not np.all(held):
        free = ~held
        weights[free] = _unbounded(m, request, np.where(held, weights, 0.0), free)
        ratios = np.where(free, weights / request, 1.0)
        if np.min(ratios) < 1 / _LARGEST_FACTOR:
            worst, bound = int(np.argmin(ratios)), low
        elif np.max(ratios) > _LARGEST_FACTOR:
            worst, bound = int(np.argmax(ratios)), high
        else:
            break
        weights[worst], held[worst] = bound[worst], True
    free, missed = ~held, np.zeros_like(held)
    if np.sum(free) > 1:
        influence = exact @ weights
        with np.errstate(all="ignore"):
            shares = influence / np.sum(np.abs(influence[free]))
            missed = free & ~(np.abs(shares - request / np.sum(request[free])) <= _MISSED)
    return weights * (total / np.sum(weights)), held | missed, negative | missed


def _unbounded(m: Square, request: Vector, fixed: Vector, free: Mask) -> Float[np.ndarray, " free"]:
    inner = m[np.ix_(free, free)]
    wanted = np.linalg.solve(inner, request[free])
    taken = np.linalg.solve(inner, (m @ fixed)[free])
    left = np.sum(request) - np.sum(fixed)
    if np.sum(wanted) <= 0:  # cannot be scaled to the request's total
        return wanted
    return wanted * ((left + np.sum(taken)) / np.sum(wanted)) - taken


def _shares_of(request: Any, names: Sequence[str]) -> dict[str, float]:
    if not isinstance(request, Mapping) or not request:
        raise ConfigError(
            f"influence must map reward names to shares, such as {{correctness: 0.7, brevity: "
            f"0.3}}, got {request!r}"
        )
    shares = cast("Mapping[str, Any]", request)
    refuse_unknown(shares, names, "influence: unknown reward")
    for name, share in shares.items():
        if not _LEAST <= number(f"influence: {name}", share) <= 1 / _LEAST:
            raise ConfigError(
                f"influence: {name} must be a number from {_LEAST:g} to {1 / _LEAST:g}, got "
                f"{share}. For a reward that should only be watched, set weight 0 and leave it out "
                "of influence"
            )
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}
