"""Measures directions of `turn_gdpo` whose advantages are divided by standard deviations."""

import numpy as np
from benchmarks.credit._agents import exact_gradient, list_groups
from benchmarks.credit._measure import angle, sampled_gradient

from gdpo.advantages import turn_gdpo

_AXES = {
    "batch std of each reward": (0, 1, 2),
    "batch std of each reward and turn": (0, 1),
    "group std of each reward": (1, 2),
    "group std of each reward and turn": (1,),
}


def per_reward(rewards, turns):
    """Return the unscaled advantages of each reward, `[prompt, sample, turn, reward]`."""
    each = [
        turn_gdpo(rewards[..., k : k + 1], [1.0], turns=turns, scales=[1.0])
        for k in range(rewards.shape[3])
    ]
    return np.stack(each, axis=3)


def divided(axes, weights):
    """Return an estimator that divides by the std about 0 over these axes of taken turns."""

    def estimator(rewards, _weights, *, turns):
        there = (np.arange(rewards.shape[2]) < turns[:, :, None])[..., None]
        a = per_reward(rewards, turns)
        n = np.maximum(there.sum(axis=axes, keepdims=True) - 1, 1)
        std = np.sqrt((a**2).sum(axis=axes, keepdims=True) / n)
        return np.where(std > 1e-9, a / np.where(std > 1e-9, std, 1.0), 0.0) @ np.array(weights)

    return estimator


def limits(rollouts, task, size):
    """Return the standard deviation of each reward's advantages in an infinite batch."""
    groups, chance = list_groups(rollouts, size)
    a = per_reward(task.rewards[groups], rollouts.turns[groups])
    turns = rollouts.turns[groups].sum(axis=1)
    return np.sqrt(np.einsum("g,gstk->k", chance, a**2) / np.dot(chance, turns))


def scaling(rollouts, task, *, size):
    """Yield each divisor with degrees and noise at 8, 64 and 512 prompts per batch.

    Degrees are those between the mean gradient and that of the sum of w J / std.
    """
    weights = task.weights
    aim = task._replace(weights=tuple(weights / limits(rollouts, task, size)))
    subjects = {name: divided(axes, weights) for name, axes in _AXES.items()}
    subjects["the same, then the batch step (turn_gdpo)"] = lambda rewards, _weights, *, turns: (
        turn_gdpo(rewards, weights, turns=turns)
    )
    for name, subject in subjects.items():
        cells = []
        for batch in (8, 64, 512):
            mean, noise = sampled_gradient(subject, rollouts, aim, size=size, batch=batch)
            cells.append((angle(mean, exact_gradient(rollouts, aim)), noise))
        yield name, cells
