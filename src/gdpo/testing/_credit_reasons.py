"""Finds the likely reason why the mean gradient of an estimator for turns is biased."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gdpo.testing._agents import Rollouts, TurnTask, exact_gradient, reaching_and_rewards

_SAME = 1e-6
"""Relative difference up to which two gradients have the same direction."""


def likely_reason(
    mean: Any, rollouts: Rollouts, task: TurnTask, *, size: int, tolerance: float = _SAME
) -> str:
    """Return the known mistake whose mean gradient has the direction of this one.

    Args:
        mean: Mean gradient of the estimator, `[turn, state, action]`.
        rollouts: The rollouts of the agent.
        task: The rewards.
        size: Number of rollouts per group.
        tolerance: Relative difference up to which two directions are the same.

    Returns:
        A sentence without its full stop, or an empty string if no known mistake fits.
    """
    fits = [
        (float(np.linalg.norm(mean - gradient)), text)
        for text, gradient in _mistakes(rollouts, task, size)
        if _apart(mean, gradient) <= tolerance
    ]
    return min(fits)[1] if fits else ""


def _apart(a: Any, b: Any) -> float:
    lengths = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if min(lengths) < 1e-12:
        return 0.0 if max(lengths) < 1e-12 else 2.0
    return float(np.linalg.norm(a / lengths[0] - b / lengths[1]))


def _mistakes(rollouts: Rollouts, task: TurnTask, size: int) -> Iterator[tuple[str, Any]]:
    """Yield descriptions of mistakes, and the mean gradient that each of them has."""
    wanted, q = exact_gradient(rollouts, task), rollouts.reached
    reaching, earning = reaching_and_rewards(rollouts, task)
    itself, alone = itself_in_mean(q, size), lone_gets_zero(q, size)
    lost = int((np.linalg.norm(reaching, axis=(2, 3))[:, 0] > 1e-12).argmax())
    for factor in (np.ones(len(q)), itself, alone):
        yield (
            f"the gradient through reaching turn {lost + 1} is missing: the mean is subtracted by "
            "turn index, so that the action determines how many means are subtracted. Subtract "
            "one baseline from the return-to-go instead",
            np.einsum("s,stxa->txa", factor, earning),
        )
    late = len(q) - 1
    yield (
        f"each rollout is in the mean that is subtracted from it, which multiplies the gradient of "
        f"turn {late + 1} by {itself[late]:.2f} and of turn 1 by {itself[0]:.2f}. Use the mean of "
        "the other rollouts",
        itself[:, None, None] * wanted,
    )
    yield (
        f"the only rollout that takes a turn gets the advantage 0, which multiplies the gradient "
        f"of turn {late + 1} by {alone[late]:.2f}. Give this rollout a baseline, such as its "
        "previous baseline minus its previous reward",
        alone[:, None, None] * wanted,
    )


def factor_reason(mean: Any, wanted: Any, size: int) -> str:
    """Return the reason why a mean gradient has the right direction and the wrong length."""
    factor = float(np.sum(mean * wanted) / np.sum(wanted**2))
    return (
        f"only the size is wrong: the mean gradient is {factor:.3g} times the true gradient. "
        f"With a rollout in its own mean, the factor is {1 - 1 / size:.3g}: multiply by "
        "n / (n - 1), or accept any factor (--any-factor, in Python any_factor=True)"
    )


def itself_in_mean(q: Any, size: int) -> Any:
    """Return the factor by which a mean that includes the rollout itself shrinks each turn.

    Args:
        q: Probability of reaching each turn.
        size: Number of rollouts per group.
    """
    return 1 - (1 - (1 - q) ** size) / (size * q)


def lone_gets_zero(q: Any, size: int) -> Any:
    """Return the probability that another rollout of the group reaches each turn."""
    return 1 - (1 - q) ** (size - 1)


def reason_by_probing(subject: Any, longest: int) -> str:
    """Return how a rollout's own later turns change its baseline, or an empty string.

    The baseline of a turn may depend on the other rollouts and on what the rollout earned before
    the turn. So a later reward of 1 must raise the advantage by 1, and a later turn without a
    reward must not change it.
    """
    base = np.random.default_rng(0).integers(1, 9, (2, 3, longest, 1)) / 8
    turns = np.array([[longest] * 3, [longest, 1, 1]])
    for at in range(longest - 1, 0, -1):
        shorter, paid = turns.copy(), base.copy()
        shorter[:, 0], paid[:, 0, at:] = at, 0.0
        longer = shorter.copy()
        longer[:, 0] = at + 1
        change = subject(paid, [1.0], turns=longer) - subject(paid, [1.0], turns=shorter)
        first = np.abs(change[:, 0, :at]).max(axis=0)
        if first.max() > _SAME:
            turn = int(first.argmax())
            return (
                f"one more turn, without a reward, changes the rollout's advantage of turn "
                f"{turn + 1} by {_largest(change[:, 0, turn]):.3g}: the baseline depends on the "
                "number of turns that the rollout takes"
            )
    return _by_later_rewards(subject, base, turns)


def _by_later_rewards(subject: Any, base: Any, turns: Any) -> str:
    """Return the reason if a later reward of the rollout does not raise the advantage by itself."""
    longest = base.shape[2]
    before = subject(base, [1.0], turns=turns)
    rise = np.ones((longest, longest, 2))  # [later turn, turn, group]
    for later in range(longest):
        paid = base.copy()
        paid[:, 0, later] += 1.0
        change = subject(paid, [1.0], turns=turns) - before
        rise[later, : later + 1] = change[:, 0, : later + 1].T
    if np.abs(rise - 1).max() <= _SAME:
        return ""
    rate, later = rise[min(1, longest - 1), 0, 0], np.arange(longest)
    if longest > 1 and np.abs(rise[later[:, None] > later]).max() <= _SAME:
        return (
            "later rewards do not change the advantage of a turn: it uses the turn's own reward, "
            "and not the return-to-go. Add the rewards of the later turns to it"
        )
    steps = np.maximum(later[:, None] - later, 0)
    powers = np.where(later[:, None] >= later, float(rate) ** steps, 1.0)
    if 0 < rate < 1 and np.abs(rise - powers[:, :, None]).max() <= _SAME:
        return (
            f"later rewards are discounted by {rate:.3g} per turn, which changes the objective: do "
            "not discount"
        )
    after, turn, group = np.unravel_index(np.abs(rise - 1).argmax(), rise.shape)
    return (
        f"a reward of 1 at turn {after + 1} changes the rollout's advantage of turn {turn + 1} by "
        f"{rise[after, turn, group]:.3g} instead of 1: the rollout's own later rewards are in its "
        "baseline, or its rewards are divided or spread over turns"
    )


def _largest(values: Any) -> float:
    return float(values[np.abs(values).argmax()])
