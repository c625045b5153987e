"""Finds the likely reason why the mean gradient of an estimator for turns is biased."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gdpo.testing._agents import Rollouts, TurnTask, exact_gradient

_SAME = 1e-6


def likely_reason(
    subject: Any, rollouts: Rollouts, tasks: Sequence[TurnTask], means: Any, size: int
) -> str:
    if reason := _without_later_rewards(subject, rollouts.actions.shape[1]):
        return reason
    known = list(_mistakes(rollouts, tasks, size))
    for any_factor in (False, True):
        for text, gradients in known:
            factor = np.sum(gradients * means) / np.sum(gradients**2) if any_factor else 1.0
            off = np.abs(means - factor * gradients).max(axis=(1, 2, 3))
            if factor > 0 and np.all(off <= _SAME * np.maximum(np.abs(means).max((1, 2, 3)), 1e-3)):
                return text.format(factor=factor)
    return _by_probing(subject, rollouts.actions.shape[1])


def _without_later_rewards(subject: Any, longest: int) -> str:
    """Return the reason if rollouts that differ only in a later reward are alike before it."""
    later = np.arange(1, longest)
    paid = 1.0 * (np.arange(longest) == later[:, None])[:, None, :, None] * np.eye(3)[:, :1, None]
    a = subject(paid, np.ones(1), turns=np.full((longest - 1, 3), longest))
    alike = (np.abs(a[:, 0] - a[:, 1]) <= _SAME) & (np.arange(longest) < later[:, None])
    if not alike.any():
        return ""
    at, turn = np.argwhere(alike)[-1] + (2, 1)
    return (
        f"rollouts that differ only in their reward at turn {at} have the same advantage at turn "
        f"{turn}, which is not computed from the return-to-go. Add the rewards of all later turns"
    )


def _mistakes(
    rollouts: Rollouts, tasks: Sequence[TurnTask], size: int
) -> Iterator[tuple[str, Any]]:
    q, late = rollouts.reached, rollouts.actions.shape[1]
    wanted = np.array([exact_gradient(rollouts, task) for task in tasks])
    earning = np.array([gradient_of_earning(rollouts, task) for task in tasks])
    itself = 1 - (1 - (1 - q) ** size) / (size * q)
    others = 1 - (1 - q) ** (size - 1)
    yield (
        "only the size is wrong: the mean gradient is {factor:.3g} times the true gradient. With a "
        f"rollout in its own mean, the factor is {1 - 1 / size:.3g}: multiply by n / (n - 1), or "
        "accept any factor (any_factor=True)",
        wanted,
    )
    yield (
        f"each rollout is in the mean that is subtracted from it, which multiplies the gradient of "
        f"turn {late} by {itself[-1]:.2f} and of turn 1 by {itself[0]:.2f}. Use the mean of the "
        "other rollouts",
        itself[:, None, None] * wanted,
    )
    yield (
        f"the only rollout that takes a turn gets the advantage 0, which multiplies the gradient "
        f"of turn {late} by {others[-1]:.2f}. Give this rollout a baseline, such as its previous "
        "baseline minus its previous reward",
        others[:, None, None] * wanted,
    )
    for factor in (np.ones(late), itself, others):
        yield (
            "the gradient through reaching turn 2 is missing: the action determines how many means "
            "of turn indices are subtracted. Subtract one baseline from the return-to-go",
            np.einsum("s,kstxa->ktxa", factor, earning),
        )


def gradient_of_earning(rollouts: Rollouts, task: TurnTask) -> Any:
    """Return the gradient through what turns pay if reached, `[paid turn, turn, state, action]`."""
    p, there, q = rollouts.probability, 1.0 * (rollouts.actions >= 0), rollouts.reached
    earned = there * (task.rewards @ np.asarray(task.weights))
    mean = p @ earned / np.where(q > 0, q, 1.0)
    return np.einsum("n,ns,ntxa->stxa", p, earned - there * mean, rollouts.score)


def _by_probing(subject: Any, longest: int) -> str:
    """Return how the rollout's own later turns change its advantages, except by rewards."""
    one, base = np.ones(1), np.random.default_rng(0).integers(1, 9, (2, 3, longest, 1)) / 8
    turns, at = np.array([[longest] * 3, [longest, 1, 1]]), np.arange(longest)
    for later in at[:0:-1]:
        paid, shorter, longer = base.copy(), turns.copy(), turns.copy()
        paid[:, 0, later:], shorter[:, 0], longer[:, 0] = 0.0, later, later + 1
        change = subject(paid, one, turns=longer) - subject(paid, one, turns=shorter)
        largest = max(change[:, 0, :later].ravel(), key=abs)
        if abs(largest) > _SAME:
            return (
                f"one more turn without a reward, turn {later + 1}, changes the rollout's "
                f"advantage of an earlier turn by {largest:.3g}: the baseline depends on the "
                "number of turns that the rollout takes"
            )
    rise = np.ones((longest, longest, 2))  # [later turn, turn, group]
    for later in at:
        paid = base.copy()
        paid[:, 0, later] += 1.0
        change = subject(paid, one, turns=turns) - subject(base, one, turns=turns)
        rise[later, : later + 1] = change[:, 0, : later + 1].T
    rate = rise[1, 0, 0]
    powers = np.where(np.tri(longest) > 0, rate ** np.maximum(at[:, None] - at, 0), 1.0)
    if 0 < rate < 1 and np.abs(rise - powers[:, :, None]).max() <= _SAME:
        return f"later rewards are discounted by {rate:.3g} per turn: do not discount"
    later, turn, group = np.unravel_index(np.abs(rise - 1).argmax(), rise.shape)
    if abs(rise[later, turn, group] - 1) <= _SAME:
        return ""
    return (
        f"a reward of 1 at turn {later + 1} changes the rollout's advantage of turn {turn + 1} by "
        f"{rise[later, turn, group]:.3g} instead of 1: the rollout's own later rewards are in its "
        "baseline, or its rewards are divided or spread over turns"
    )
