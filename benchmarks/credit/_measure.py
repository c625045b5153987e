"""Measures bias, angle and variance of an estimator for turns, for each kind of reward and turn."""

from dataclasses import dataclass

import numpy as np
from benchmarks.credit._agents import exact_gradient, example_tasks, list_groups
from benchmarks.credit._check import group_gradients, mean_gradient, turn_bias

from gdpo.advantages import turn_broadcast

_BATCHES = 400
"""Number of batches that are drawn if the estimator uses statistics of the batch."""

_EXCEEDED = 0.005 / 7
"""Probability that sampling alone exceeds the noise of a reward. All seven rewards that are
measured on drawn batches stay below theirs nominally in 199 of 200 measurements."""

_EXACT = 1e-9
"""Bias that is rounding."""


@dataclass(frozen=True, slots=True)
class Row:
    """Stores how the mean gradient of an estimator differs from the gradient of one task."""

    reward: str
    bias: float
    """Difference from the true gradient, as a share of its length."""
    degrees: float
    """Angle to the true gradient. NaN: the mean gradient is 0."""
    noise: float
    """Angle that sampling alone exceeds in one of 1,400 measurements. 0: the mean is exact."""
    turn_bias: tuple[float, ...]
    """Bias of the logits of each turn, as a share of the length of the whole true gradient."""
    variance: float
    """Variance of the gradient of a group, relative to `turn_broadcast`. NaN: unknown, or the
    estimator is biased, because smaller gradients have less variance."""


def rows_of(subject, rollouts, *, size, batch=None, any_factor=False, tasks=example_tasks):
    """Return one row for each task that has a gradient.

    Args:
        subject: The estimator, as returned by `with_options`.
        rollouts: The rollouts of an agent.
        size: Number of rollouts per group.
        batch: Number of groups per batch, for estimators whose advantages depend on the batch.
            Draws 400 batches and compares directions, one reward at a time. None: all groups.
        any_factor: Whether only the direction of the mean gradient counts.
        tasks: Function that returns the tasks for the rollouts.
    """
    groups = None if batch else list_groups(rollouts, size)
    found = []
    for task in tasks(rollouts):
        wanted = exact_gradient(rollouts, task)
        if np.linalg.norm(wanted) < _EXACT or (batch and len(task.weights) > 1):
            continue
        if batch:
            mean, noise = sampled_gradient(subject, rollouts, task, size=size, batch=batch)
        else:
            mean, noise = mean_gradient(subject, rollouts, task, *groups), 0.0
        off = turn_bias(mean, wanted, any_factor=any_factor or batch is not None)
        bias = float(np.linalg.norm(off))
        exact = groups is not None and bias < _EXACT
        variance = _variance(subject, rollouts, task, *groups) if exact else np.nan
        degrees = angle(mean, wanted)
        found.append(Row(task.name, bias, degrees, noise, tuple(off), variance))
    return found


def _variance(subject, rollouts, task, groups, chance):
    """Return the total variance of the gradient of a group, relative to `turn_broadcast`."""
    found = []
    for each in (subject, _broadcast):
        gradients = group_gradients(each, rollouts, task, groups)
        apart = gradients - np.tensordot(chance, gradients, 1)
        found.append(np.einsum("g,gtsa->", chance, apart**2))
    return found[0] / found[1]


def _broadcast(rewards, weights, *, turns):
    return turn_broadcast(rewards, weights, turns=turns, scales=[1.0] * rewards.shape[3])


def sampled_gradient(subject, rollouts, task, *, size, batch):
    """Return the mean gradient over batches that are drawn with seed 0, and its noise in degrees.

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
    return mean, _noise(mean, wanted, wider * (flat - design @ slopes), rng)


def _noise(mean, wanted, residual, rng):
    """Return the angle that an unbiased mean exceeds with probability `_EXCEEDED`."""
    true = wanted.reshape(-1) * np.linalg.norm(mean) / np.linalg.norm(wanted)
    times = rng.multinomial(len(residual), np.full(len(residual), 1 / len(residual)), 10_000)
    found = true + times @ residual / len(residual)
    return float(np.quantile([angle(each, true) for each in found], 1 - _EXCEEDED))


def angle(a, b):
    """Return the angle between two arrays in degrees, or NaN if one of them is 0."""
    lengths = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if min(lengths) < 1e-12:
        return float("nan")
    a, b = a / lengths[0], b / lengths[1]
    # Accurate for small angles, unlike the arc cosine.
    return float(np.degrees(2 * np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b))))
