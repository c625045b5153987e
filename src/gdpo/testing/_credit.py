"""Measures the bias of estimators for turns, over every group of an agent that can be listed."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpo._files import to_json, write_whole
from gdpo.advantages import turn_broadcast
from gdpo.advantages.registry import check_unchanged
from gdpo.errors import ConfigError, DataError
from gdpo.testing._agents import (
    Rollouts,
    Tasks,
    TurnAgent,
    TurnTask,
    exact_gradient,
    example_agent,
    example_tasks,
    list_groups,
    list_ordered_groups,
    list_rollouts,
)
from gdpo.testing._credit_reasons import factor_reason, likely_reason, reason_by_probing

TurnSubject: TypeAlias = Callable[..., Any]
"""An estimator for turns with its options: `(rewards, weights, *, turns) -> advantages`."""

TurnOptions: TypeAlias = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
"""Keyword options of the estimator, or a function of the number of rewards that returns them."""

EXACT = 1e-9
"""Bias, as a share of the gradient, that is rounding."""

_ROUNDING = 1e-6
"""Advantage that is rounding, even in single precision."""

_SINGLE = 1e-5
"""Bias, as a share of the gradient, that is rounding of advantages in single precision."""

_BATCHES = 400
"""Number of batches that are drawn if the estimator uses statistics of the batch."""

_EXCEEDED = 0.005 / 7
"""Probability that sampling alone exceeds the noise of a reward. All seven rewards that are
measured on drawn batches stay below theirs nominally in 199 of 200 measurements."""

_CLEAR = 30.0
"""Noise in degrees up to which drawn batches tell whether there is a bias."""

_MOST_LENGTHS = 4096
"""Maximum number of groups without signal."""


@dataclass(frozen=True, slots=True)
class CreditRow:
    """Stores how the mean gradient of an estimator differs from the gradient of one task.

    Args:
        reward: Name of the task.
        bias: Length of the difference between the mean gradient and the true gradient, as a share
            of the length of the true gradient.
        degrees: Angle between the mean gradient and the true gradient.
        noise: Angle in degrees that sampling alone exceeds, for any of the tasks, nominally in one
            of 200 measurements (4 of 100 were counted). None: the mean is exact.
        turn_bias: Bias of the logits of each turn, as a share of the length of the whole true
            gradient.
        turn_degrees: Angle of the part of each turn. NaN: the part is 0.
        variance: Variance of the gradient of a group, relative to `turn_broadcast`. None: the
            estimator uses statistics of the batch.
    """

    reward: str
    bias: float
    degrees: float
    noise: float | None
    turn_bias: tuple[float, ...]
    turn_degrees: tuple[float, ...]
    variance: float | None

    @property
    def worst_turn(self) -> int:
        """Return the turn with the largest bias, from 1."""
        return int(np.argmax(self.turn_bias)) + 1

    @property
    def noise_bias(self) -> float:
        """Return the bias that sampling alone exceeds as rarely as `noise`."""
        return 0.0 if self.noise is None else float(np.sin(np.radians(min(self.noise, 90.0))))


@dataclass(frozen=True, slots=True)
class Credit:
    """Stores the bias of an estimator for turns.

    Args:
        rows: One row per task.
        reached: Probability that the agent reaches each turn.
        no_signal: Largest absolute advantage in groups whose rollouts all earn the same at every
            turn that they share. It should be 0.
        equal_outcome: Largest absolute advantage in groups whose rollouts all have the same
            outcome, after different numbers of turns. It should be 0.
        size: Number of rollouts per group.
        batch: Number of groups per batch. None: the advantages of a group do not depend on other
            groups, and the rows are exact.
        any_factor: Whether the mean gradient of each task was multiplied by the number that brings
            it nearest to the true gradient.
        accepted: Accepted bias, as a share of the length of the true gradient.
        reason: Likely reason for the largest bias. Empty: there is no bias, or no known mistake
            fits.
    """

    rows: tuple[CreditRow, ...]
    reached: tuple[float, ...]
    no_signal: float
    equal_outcome: float
    size: int
    batch: int | None
    any_factor: bool
    accepted: float
    reason: str = ""

    @property
    def biased(self) -> tuple[CreditRow, ...]:
        """Return the rows whose bias exceeds the accepted bias, rounding and sampling noise."""
        limit = max(self.accepted, EXACT)
        return tuple(row for row in self.rows if row.bias > max(limit, row.noise_bias))

    @property
    def unclear(self) -> tuple[CreditRow, ...]:
        """Return the rows whose sampling noise is so large that they say nothing."""
        return tuple(row for row in self.rows if row.noise is not None and row.noise > _CLEAR)

    @property
    def unbiased(self) -> bool:
        """Return whether no row has more bias than accepted, or too much noise to tell."""
        return not self.biased and not self.unclear

    @property
    def worst(self) -> CreditRow:
        """Return the row with the largest bias, among the biased rows if there are any."""
        return max(self.biased or self.rows, key=lambda row: row.bias)

    @property
    def verdict(self) -> str:
        """Return one or two sentences: whether the estimator is biased, where most, and why."""
        row, total = self.worst, len(self.rows)
        where = f"groups of {self.size}"
        if self.batch is not None:
            where += f", batches of {self.batch} groups, noise {row.noise:.2g}°"
        if self.biased:
            reason = f". Likely reason: {self.reason}" if self.reason else ""
            return (
                f"biased for {len(self.biased)} of {total} rewards, most for {row.reward!r}: the "
                f"mean gradient differs from the true gradient by {_share(row.bias)} of its length"
                f"{_degrees(row.degrees)}, most at turn {row.worst_turn} ({where}){reason}"
            )
        if self.unclear:
            row = max(self.unclear, key=lambda row: row.noise or 0.0)
            return (
                f"cannot tell: for {len(self.unclear)} of {total} rewards, most for "
                f"{row.reward!r}, sampling alone turns the mean gradient by up to {row.noise:.0f}° "
                f"(groups of {self.size}, batches of {self.batch} groups). Measure with a larger "
                "batch. If that does not help, the advantages are random, or without direction"
            )
        aim = "has the direction of the true" if self.any_factor else "is the true"
        if self.batch is None and row.bias <= EXACT:
            return (
                f"unbiased: for each of {total} rewards, the mean gradient {aim} gradient "
                f"({where}; largest difference {row.bias:.0e} of its length)"
            )
        return (
            f"no bias above the limit: for each of {total} rewards, the mean gradient differs from "
            f"the true gradient by at most {_share(row.bias)} of its length"
            f"{_degrees(row.degrees)} ({where})"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each kind of group that gets advantages without a signal."""
        notes: list[str] = []
        if self.no_signal > _ROUNDING:
            notes.append(
                f"no signal: where all rollouts of a group earn the same at every turn that they "
                f"share, the largest advantage is {self.no_signal:.3g} instead of 0"
            )
        if self.equal_outcome > _ROUNDING:
            notes.append(
                f"equal outcomes: where all rollouts of a group have the same outcome after "
                f"different numbers of turns, the largest advantage is {self.equal_outcome:.3g} "
                "instead of 0"
            )
        return tuple(notes)

    def cells(self) -> list[tuple[str, ...]]:
        """Return the rows as text: reward, bias, degrees, bias of each turn, and variance.

        The variance of a biased row is left out, because smaller gradients have less variance.
        """
        biased = {row.reward for row in self.biased}
        return [
            (
                row.reward,
                _share(row.bias),
                "none" if np.isnan(row.degrees) else _angle(row),
                *map(_share, row.turn_bias),
                "" if row.variance is None or row.reward in biased else f"{row.variance:.2f}",
            )
            for row in self.rows
        ]

    def write(self, path: Path) -> None:
        """Write the table and the verdict to a JSON file."""
        values = {"unbiased": self.unbiased, "verdict": self.verdict, **asdict(self)}
        write_whole(path, to_json(values, indent=2))


def _angle(row: CreditRow) -> str:
    noise = "" if row.noise is None else f" (noise {row.noise:.1f})"
    return f"{row.degrees:.1f}{noise}"


def _share(value: float) -> str:
    if value <= EXACT:
        return "0"
    if value < _SINGLE:
        return f"{value:.0e}"
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"


def _degrees(value: float) -> str:
    if np.isnan(value):
        return " (the mean gradient is 0)"
    if value > 10:
        return f" ({value:.0f}°)"
    return f" ({value if value > _ROUNDING else 0:.2g}°)"


@dataclass(frozen=True, slots=True)
class Mean:
    """Stores the mean of an estimator's gradient over groups, and its total variance."""

    gradient: Any
    variance: float | None
    noise: float | None = None


def measure_credit(
    estimator: Callable[..., Any],
    *,
    options: TurnOptions | None = None,
    size: int = 3,
    batch: int | None = None,
    any_factor: bool = False,
    bias: float = 0.0,
    agent: TurnAgent | None = None,
) -> Credit:
    """Return how far an estimator's mean policy gradient is from the true gradient.

    The agent is so small that every rollout and every group can be listed. The true gradient of
    each reward and the mean of the estimator's gradient over all groups are sums, without
    sampling. The rollouts of a group are independent and come from the policy that is trained. The
    gradient of a group is the mean over its rollouts of advantage times score, as in a loss that
    divides by a constant.

    Args:
        estimator: A function `(rewards[prompt, sample, turn, reward], weights[reward], *,
            turns[prompt, sample], **options)` that returns advantages `[prompt, sample, turn]`, for
            NumPy arrays.
        options: Keyword options of the estimator, or a function of the number of rewards that
            returns them. None: `scales=[1.0, ...]` if the estimator has the option `scales` and
            `batch` is None, otherwise no options.
        size: Number of rollouts per group, at least 2.
        batch: Number of groups per call, for estimators whose advantages depend on the whole
            batch. Draws 400 batches with seed 0 and compares directions, one reward at a time:
            statistics of the batch multiply the gradient by an unknown number, and sampling adds
            noise. None: all groups are listed.
        any_factor: Whether to multiply the mean gradient of each task by the number that brings it
            nearest to the true gradient, so that only its direction counts. Always true with
            `batch`.
        bias: Accepted bias, as a share of the length of the true gradient. 0: only rounding (1e-9),
            or with `batch` only sampling noise. Pass 1e-5 for advantages in single precision.
        agent: The agent. Rewards whose gradient is 0 for this agent are left out. None: an agent
            with 4 turns, 2 states and 31 rollouts, which stops with probability 0.4 at each turn.

    Returns:
        One row per reward kind, and the largest advantage in groups without signal.

    Raises:
        ConfigError: If the advantages of a group depend on other groups and `batch` is None, if
            there are too many groups to list, or if the estimator changes its arguments.
        DataError: If the advantages have the wrong shape, or are not finite.

    Examples:
        >>> from gdpo.advantages import turn_gdpo, turn_index_centred
        >>> measure_credit(turn_gdpo).unbiased
        True
        >>> print(f"{measure_credit(turn_index_centred).rows[0].bias:.2f}")
        0.73
    """
    if size < 2 or not 0 <= bias < inf or (batch is not None and batch < 1):
        raise ConfigError(
            f"size {size}, batch {batch}, bias {bias}: pass a size of at least 2, a batch of at "
            "least 1 or None, and a finite bias from 0"
        )
    rollouts = list_rollouts(agent or example_agent())
    subject = with_options(estimator, options, batch)
    rows = credit_rows(subject, rollouts, size=size, batch=batch, any_factor=any_factor)
    if not rows:
        raise ConfigError("no reward has a gradient for this agent: let it choose at some turn")
    credit = Credit(
        rows,
        tuple(rollouts.reached.tolist()),
        *no_signal(subject, rollouts.actions.shape[1], size),
        size,
        batch,
        any_factor or batch is not None,
        bias,
    )
    return replace(credit, reason=_reason(subject, credit, rollouts)) if credit.biased else credit


def _reason(subject: TurnSubject, credit: Credit, rollouts: Rollouts) -> str:
    """Return the likely reason of the largest bias."""
    row, size, batch = credit.worst, credit.size, credit.batch
    if row.bias <= _SINGLE:
        return f"the advantages are rounded, as in single precision: accept bias {_SINGLE:.0e}"
    (task,) = (each for each in example_tasks(rollouts) if each.name == row.reward)
    if batch is not None:
        got = sampled_gradient(subject, rollouts, task, size=size, batch=batch).gradient
        tolerance = max(row.noise_bias, row.bias / 4)
        return likely_reason(got, rollouts, task, size=size, tolerance=tolerance)
    groups = _all_groups(subject, rollouts, task, size)
    got = mean_gradient(subject, rollouts, task, *groups).gradient
    if max(each.degrees for each in credit.rows) < 1e-6 and _all_equal(credit.rows):
        return factor_reason(got, exact_gradient(rollouts, task), size)
    reason = likely_reason(got, rollouts, task, size=size)
    return reason or reason_by_probing(subject, rollouts.actions.shape[1])


def _all_equal(rows: Sequence[CreditRow]) -> bool:
    return float(np.ptp([row.bias for row in rows])) < 1e-6


def with_options(
    estimator: Callable[..., Any], options: TurnOptions | None, batch: int | None
) -> TurnSubject:
    """Return the estimator with its options, and with checks of what it returns."""
    if not callable(estimator):
        raise ConfigError(
            f"the estimator is {estimator!r}: pass a function (rewards, weights, *, turns)"
        )
    if options is None:
        fixed = batch is None and "scales" in _keywords(estimator)
        options = (lambda count: {"scales": [1.0] * count}) if fixed else {}

    def subject(rewards: Any, weights: Any, *, turns: Any) -> Any:
        more = options(rewards.shape[3]) if callable(options) else options
        weights = np.array(weights)
        given = {"rewards": rewards, "weights": weights, "turns": turns}
        before = {name: array.copy() for name, array in given.items()}
        try:
            returned = estimator(rewards, weights, turns=turns, **more)
        except (Exception, SystemExit) as error:
            raise DataError(
                f"the estimator failed for rewards of the shape {rewards.shape}: "
                f"{type(error).__name__}: {error}. It is called with (rewards, weights, "
                "turns=turns), NumPy arrays, and its options"
            ) from error
        check_unchanged(given, before, "the estimator")
        advantages = _array(returned, rewards.shape[:3])
        if advantages.shape != rewards.shape[:3]:
            raise DataError(
                f"the estimator returns advantages of the shape {advantages.shape} for rewards of "
                f"the shape {rewards.shape}: return [prompt, sample, turn], {rewards.shape[:3]}"
            )
        if not np.all(np.isfinite(advantages)):
            raise DataError(
                "the estimator returns advantages that are not finite. Return 0 at turns that were "
                "not taken, and do not divide by a standard deviation of 0"
            )
        return advantages

    return subject


def _array(returned: Any, shape: tuple[int, ...]) -> Any:
    try:
        return np.asarray(returned, dtype=float)
    except Exception as error:  # objects of other libraries can raise anything
        raise DataError(
            f"the estimator returns {type(returned).__name__}, which is no array of numbers: "
            f"{error}. Return a NumPy array [prompt, sample, turn], {shape}, with 0 at turns that "
            "were not taken"
        ) from error


def _keywords(estimator: Callable[..., Any]) -> Sequence[str]:
    try:
        return list(inspect.signature(estimator).parameters)
    except (TypeError, ValueError):  # some callables have no signature
        return []


def credit_rows(
    subject: TurnSubject,
    rollouts: Rollouts,
    *,
    size: int,
    batch: int | None = None,
    any_factor: bool = False,
    tasks: Tasks = example_tasks,
) -> tuple[CreditRow, ...]:
    """Return one row for each task that has a gradient."""
    rows: list[CreditRow] = []
    free = any_factor or batch is not None
    for task in tasks(rollouts):
        wanted = exact_gradient(rollouts, task)
        if np.linalg.norm(wanted) < EXACT or (batch is not None and len(task.weights) > 1):
            continue
        if batch is None:
            groups = _all_groups(subject, rollouts, task, size)
            mean = mean_gradient(subject, rollouts, task, *groups)
            usual = mean_gradient(_broadcast, rollouts, task, *groups).variance
        else:
            mean, usual = sampled_gradient(subject, rollouts, task, size=size, batch=batch), None
        rows.append(_row(task.name, mean, wanted, usual=usual, any_factor=free))
    return tuple(rows)


def _broadcast(rewards: Any, weights: Any, *, turns: Any) -> Any:
    return turn_broadcast(rewards, weights, turns=turns, scales=[1.0] * rewards.shape[3])


def _all_groups(
    subject: TurnSubject, rollouts: Rollouts, task: TurnTask, size: int
) -> tuple[Any, Any]:
    """Return every group and its probability, in every order if the order has an effect.

    Raises:
        ConfigError: If the advantages of a group depend on other groups, or on earlier calls.
    """
    groups, weight = list_groups(rollouts, size)
    some = groups[:: max(1, len(groups) // 50)]
    a = _advantages(subject, rollouts, task, some)

    def moves(other: Any, wanted: Any) -> bool:
        moved = np.abs(_advantages(subject, rollouts, task, other) - wanted).max()
        return bool(moved > EXACT * max(1.0, np.abs(a).max()))

    _check_local(moves, some, a)
    orders = np.arange(size)[::-1], np.roll(np.arange(size), 1), np.roll([1, 0, *range(2, size)], 1)
    if any(moves(some[:, order], a[:, order]) for order in orders):
        return list_ordered_groups(rollouts, size)
    return groups, weight


def _check_local(moves: Callable[[Any, Any], bool], some: Any, a: Any) -> None:
    """Raise an error if the advantages of a group depend on other groups, or on earlier calls."""
    if moves(some, a):
        raise ConfigError(
            "the estimator returns other advantages when it is called again with the same rewards: "
            "it draws random numbers, or keeps something between calls. Pass an estimator without "
            "memory and with fixed random numbers, or measure with batch (groups per batch, such "
            "as 64)"
        )
    half = (len(some) + 1) // 2
    if moves(some[:half], a[:half]) or moves(some[::-1], a[::-1]):
        raise ConfigError(
            "the advantages of a group depend on the other groups of the batch. Turn off the "
            "normalization over the batch with options, or measure with batch (groups per batch, "
            "such as 64)"
        )


def _advantages(subject: TurnSubject, rollouts: Rollouts, task: TurnTask, groups: Any) -> Any:
    return subject(task.rewards[groups], np.array(task.weights), turns=rollouts.turns[groups])


def group_gradients(subject: TurnSubject, rollouts: Rollouts, task: TurnTask, groups: Any) -> Any:
    """Return the gradient of each group, `[group, turn, state, action]`, in one call."""
    a = _advantages(subject, rollouts, task, groups)
    found = np.zeros((len(groups), *rollouts.score.shape[1:]))
    for sample in range(groups.shape[1]):  # less memory than all samples at once
        found += a[:, sample, :, None, None] * rollouts.score[groups[:, sample]]
    return found / groups.shape[1]


def mean_gradient(
    subject: TurnSubject, rollouts: Rollouts, task: TurnTask, groups: Any, weight: Any
) -> Mean:
    """Return the exact mean of the gradient over all groups, and its total variance.

    Args:
        subject: The estimator. It must treat each group alone.
        rollouts: The rollouts of the agent.
        task: The rewards.
        groups: Every group, `[group, sample]`.
        weight: Probability of each group.
    """
    found = group_gradients(subject, rollouts, task, groups)
    mean = np.einsum("g,gtsa->tsa", weight, found)
    return Mean(mean, float(np.einsum("g,gtsa->", weight, (found - mean) ** 2)))


def sampled_gradient(
    subject: TurnSubject, rollouts: Rollouts, task: TurnTask, *, size: int, batch: int
) -> Mean:
    """Return the mean gradient over batches that are drawn with seed 0.

    The noise is reduced by regression on the gradient of `turn_broadcast` with fixed scales on the
    same rollouts, whose mean is known.
    """
    rng = np.random.default_rng(0)
    wanted, shape = exact_gradient(rollouts, task), (_BATCHES, batch, size)
    drawn = rng.choice(len(rollouts.probability), shape, p=rollouts.probability)
    got = [group_gradients(subject, rollouts, task, groups).mean(axis=0) for groups in drawn]
    known = group_gradients(_broadcast, rollouts, task, drawn.reshape(-1, size)) - wanted
    known = known.reshape(*shape[:2], -1).mean(axis=1)
    design = np.concatenate([np.ones((_BATCHES, 1)), known], axis=1)
    flat = np.reshape(got, (_BATCHES, -1))
    slopes, *_ = np.linalg.lstsq(design, flat, rcond=None)
    mean = slopes[0].reshape(wanted.shape)
    # How much more the first slope varies than a mean of independent residuals.
    wider = np.linalg.norm(np.linalg.pinv(design)[0]) * _BATCHES
    wider /= np.sqrt(_BATCHES - np.linalg.matrix_rank(design))
    return Mean(mean, None, _noise(mean, wanted, wider * (flat - design @ slopes), rng))


def _noise(mean: Any, wanted: Any, residual: Any, rng: Any) -> float:
    """Return the angle that an unbiased mean exceeds with probability `_EXCEEDED`."""
    true = wanted.reshape(-1) * np.linalg.norm(mean) / np.linalg.norm(wanted)
    times = rng.multinomial(len(residual), np.full(len(residual), 1 / len(residual)), 10_000)
    found = true + times @ residual / len(residual)
    return float(np.quantile([angle(each, true) for each in found], 1 - _EXCEEDED))


def _row(name: str, mean: Mean, wanted: Any, *, usual: float | None, any_factor: bool) -> CreditRow:
    got = mean.gradient
    if any_factor:
        got = got * max(0.0, float(np.sum(got * wanted) / max(np.sum(got * got), 1e-300)))
    length = float(np.linalg.norm(wanted))
    off = [float(np.linalg.norm(each)) / length for each in got - wanted]
    degrees = [angle(a, b) for a, b in zip(got, wanted, strict=True)]
    return CreditRow(
        name,
        float(np.linalg.norm(got - wanted)) / length,
        angle(mean.gradient, wanted),
        mean.noise,
        tuple(off),
        tuple(degrees),
        None if usual is None or mean.variance is None else mean.variance / usual,
    )


def angle(a: Any, b: Any) -> float:
    """Return the angle between two arrays in degrees, or NaN if one of them is 0."""
    lengths = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if min(lengths) < 1e-12:
        return float("nan")
    a, b = a / lengths[0], b / lengths[1]
    # Accurate for small angles, unlike the arc cosine.
    return float(np.degrees(2 * np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b))))


def no_signal(subject: TurnSubject, longest: int, size: int) -> tuple[float, float]:
    """Return the largest absolute advantages in groups without signal.

    Returns:
        The largest for rollouts that earn the same at every turn that they share: rollouts of one
        length that are paid at every turn, and rollouts of any length that are paid only at the
        first turn. Then the largest for rollouts of any length with the same outcome.
    """
    turns = _lengths(longest, size)
    at, equal = np.arange(longest), np.all(turns == turns[:, :1], axis=1)
    every = 1.0 * (at < turns[equal][:, :, None])
    first = np.where(at == 0, 2.0, np.zeros((*turns.shape, longest)))
    last = 1.0 * (at == turns[:, :, None] - 1)
    batches = (every, turns[equal]), (first, turns), (last, turns)
    found = [
        float(np.abs(subject(r[..., None], np.ones(1), turns=n.copy())).max()) for r, n in batches
    ]
    return max(found[:2]), found[2]


def _lengths(longest: int, size: int) -> Any:
    """Return all numbers of turns of a group, `[group, sample]`, or some if they are too many."""
    if longest**size <= _MOST_LENGTHS:
        every = np.meshgrid(*[np.arange(1, longest + 1)] * size)
        return np.stack(every, axis=-1).reshape(-1, size)
    some = np.random.default_rng(0).integers(1, longest, (_MOST_LENGTHS, size), endpoint=True)
    some[:longest] = np.arange(1, longest + 1)[:, None]
    return some
