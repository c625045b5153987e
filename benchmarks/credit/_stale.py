"""Computes exact gradients from groups that an older policy sampled."""

import numpy as np
from benchmarks.credit._agents import exact_gradient, example_tasks, list_groups, list_rollouts
from benchmarks.credit._measure import angle
from benchmarks.credit._subjects import as_estimator

GAPS = (0.0, 0.1, 0.2, 0.5, 1.0)
"""Standard deviations of the difference between the logits of the older and the trained policy."""

_CLIP = 0.2

FORMS = (
    "no ratio",
    "ratio per turn",
    "ratio per turn, clipped",
    "ratio up to the turn",
    "ratio of the rollout",
)
"""What multiplies advantage times score."""


def shifted(policy, gap, seed):
    """Return an older policy, whose logits differ in a random direction."""
    moved = np.log(policy) + gap * np.random.default_rng(seed).standard_normal(policy.shape)
    return np.exp(moved) / np.exp(moved).sum(axis=2, keepdims=True)


def _ratios(policy, old, rollouts):
    """Return the ratio of each turn's action, and 1 after the last turn."""
    turn = np.arange(policy.shape[0])
    chosen = [each[turn, rollouts.states, rollouts.actions] for each in (policy, old)]
    return np.where(rollouts.actions >= 0, chosen[0] / chosen[1], 1.0)


def divergence(policy, old):
    """Return the KL divergence per turn of the older policy, and how many ratios are clipped."""
    rollouts = list_rollouts(old)
    ratio, there = _ratios(policy, old, rollouts), rollouts.actions >= 0
    weight = rollouts.probability[:, None] * there / rollouts.reached.sum()
    return -np.sum(weight * np.log(ratio)), np.sum(weight * (np.abs(ratio - 1) > _CLIP))


def stale(subject, policy, old, kind, size=3):
    """Return bias, degrees and variance for each form of the gradient."""
    trained = list_rollouts(policy)
    sampled = list_rollouts(old)  # in the same order
    (task,) = (each for each in example_tasks(trained) if each.name == kind)
    groups, chance = list_groups(sampled, size)
    a = as_estimator(subject)(task.rewards[groups], [1.0], turns=trained.turns[groups])
    ratio, wanted = _ratios(policy, old, trained), exact_gradient(trained, task)
    up_to = np.cumprod(ratio, axis=1)[groups]
    whole, ratio = up_to[:, :, -1:], ratio[groups]
    # PPO's minimum has no gradient where the clipped term is the smaller one.
    cut = ((a > 0) & (ratio > 1 + _CLIP)) | ((a < 0) & (ratio < 1 - _CLIP))
    factors = dict(zip(FORMS, (np.ones_like(a), ratio, ratio * ~cut, up_to, whole), strict=True))
    found = {}
    for form, factor in factors.items():
        each = np.einsum("gst,gstxa->gtxa", a * factor, trained.score[groups]) / size
        mean = np.tensordot(chance, each, 1)
        variance = np.dot(chance, np.sum((each - mean) ** 2, axis=(1, 2, 3)))
        off = np.linalg.norm(mean - wanted) / np.linalg.norm(wanted)
        found[form] = off, angle(mean, wanted), variance
    return found
