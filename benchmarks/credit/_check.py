"""Checks an estimator for turns: its contract, and that its policy gradient is unbiased.

If it is biased, `likely_reason` compares the mean gradient with those of known mistakes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np
from benchmarks.credit._agents import (
    Rollouts,
    TurnTask,
    exact_gradient,
    example_policy,
    example_tasks,
    list_groups,
    list_rollouts,
)

from gdpo.advantages.registry import check_advantages, check_unchanged, keyword_parameters
from gdpo.errors import ConfigError

TurnSubject: TypeAlias = Callable[..., Any]
TurnOptions: TypeAlias = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]

_EXACT, _SINGLE = 1e-9, 1e-5  # bias that is rounding, in double and in single precision
_ROUNDING = 1e-6  # advantage that is rounding, even in single precision
_ALIKE = {
    "no signal": "earn the same at every turn that they share",
    "equal outcomes": "have the same outcome after different numbers of turns",
}


def check_turn_estimator(
    estimator: Callable[..., Any],
    *,
    options: TurnOptions | None = None,
    sizes: tuple[int, ...] = (2, 3),
    any_factor: bool = False,
    bias: float = 0.0,
) -> None:
    """Check that an estimator for turns is unbiased and satisfies the contract for turns.

    The estimator must have these properties:

    - It returns finite advantages, and does not change its arguments.
    - Values beyond a rollout's last turn have no effect, even NaN, and get the advantage 0.
    - The order of prompts and samples, and padding with more turns, have no effect.
    - The mean policy gradient is the true one, for rewards at every turn, at single turns and at
      the end, and for an outcome plus a constant.
    - Groups whose rollouts earn the same at every shared turn, or have the same outcome, get 0.

    The agent has up to 4 turns and 31 rollouts. All groups are listed: the mean is exact. The
    rollouts are independent and on-policy, and the loss divides by a constant.

    Args:
        estimator: A function `(rewards[prompt, sample, turn, reward], weights[reward], *,
            turns[prompt, sample], **options)` that returns advantages `[prompt, sample, turn]`, for
            NumPy arrays.
        options: Keyword options, or a function of the number of rewards. None: `scales=[1.0, ...]`
            if the estimator has this option.
        sizes: Numbers of rollouts per group, from 2 to 5.
        any_factor: Whether to compare only the directions of gradients.
        bias: Accepted bias, as a share of the true gradient's length. 0: only rounding (1e-9). Pass
            1e-5 for advantages in single precision.

    Raises:
        AssertionError: If a property does not hold. For a bias, the message names the reward, the
            turn, the size of the bias and the likely reason.
        ConfigError: If an argument is invalid, or the estimator fails, returns no finite array of
            the right shape, changes its arguments, or uses other groups or calls.

    Examples:
        >>> from gdpo.advantages import turn_gdpo
        >>> check_turn_estimator(turn_gdpo)
    """
    if not sizes or min(sizes) < 2 or max(sizes) > 5 or not 0 <= bias < inf:
        raise ConfigError(
            f"sizes {sizes}, bias {bias}: pass sizes from 2 to 5, and a finite bias from 0"
        )
    subject = with_options(estimator, options)
    _check_contract(subject)
    rollouts = list_rollouts(example_policy())
    for size in sizes:
        _check_bias(subject, rollouts, size, any_factor=any_factor, bias=bias)
        largest = no_signal(subject, rollouts.actions.shape[1], size)
        for what, value in zip(_ALIKE, largest, strict=True):
            assert value <= _ROUNDING, (
                f"{what}: in groups of {size} where all rollouts {_ALIKE[what]}, the largest "
                f"advantage is {value:.3g} instead of 0"
            )


def _check_bias(
    subject: TurnSubject, rollouts: Rollouts, size: int, *, any_factor: bool, bias: float
) -> None:
    tasks, groups = example_tasks(rollouts), list_groups(rollouts, size)
    means = np.array([mean_gradient(subject, rollouts, task, *groups) for task in tasks])
    wanted = [exact_gradient(rollouts, task) for task in tasks]
    off = [turn_bias(*pair, any_factor=any_factor) for pair in zip(means, wanted, strict=True)]
    total = np.linalg.norm(off, axis=1)
    worst = int(total.argmax())
    if total[worst] <= max(bias, _EXACT):
        return
    if total[worst] <= _SINGLE:
        reason = f"the advantages are rounded, as in single precision: accept bias {_SINGLE:.0e}"
    else:
        reason = likely_reason(subject, rollouts, tasks, means, size)
    raise AssertionError(
        f"biased for {np.sum(total > max(bias, _EXACT))} of {len(tasks)} rewards, most for "
        f"{tasks[worst].name!r}: the mean gradient differs from the true gradient by "
        f"{total[worst]:.2g} times its length, most at turn {off[worst].argmax() + 1} (groups of "
        f"{size})" + (f". Likely reason: {reason}" if reason else "")
    )


def turn_bias(mean: Any, wanted: Any, *, any_factor: bool) -> Any:
    if any_factor:
        mean = mean * max(0.0, np.sum(mean * wanted) / max(np.sum(mean * mean), 1e-300))
    return np.linalg.norm(mean - wanted, axis=(1, 2)) / np.linalg.norm(wanted)


def with_options(estimator: Callable[..., Any], options: TurnOptions | None = None) -> TurnSubject:
    name = getattr(estimator, "__name__", repr(estimator))
    if options is None:
        fixed = "scales" in keyword_parameters(estimator)
        options = (lambda count: {"scales": [1.0] * count}) if fixed else {}

    def subject(rewards: Any, weights: Any, *, turns: Any) -> Any:
        more = options(rewards.shape[3]) if callable(options) else options
        given = {"rewards": rewards, "weights": np.array(weights), "turns": turns}
        before = {key: array.copy() for key, array in given.items()}
        try:
            returned = estimator(rewards, given["weights"], turns=turns, **more)
            advantages = np.asarray(returned, dtype=float)
        except (Exception, SystemExit) as error:  # a user's estimator may raise anything
            raise ConfigError(
                f"estimator {name!r}: {type(error).__name__}: {error}. It must accept (rewards, "
                "weights, turns=turns) as NumPy arrays, and return an array [prompt, sample, turn]"
            ) from error
        check_unchanged(given, before, f"estimator {name!r}")
        check_advantages(advantages, rewards, name)
        return advantages

    return subject


def group_gradients(subject: TurnSubject, rollouts: Rollouts, task: TurnTask, groups: Any) -> Any:
    """Return the gradient of each group, `[group, turn, state, action]`, in one call."""
    a = _advantages(subject, rollouts, task, groups)
    found = np.zeros((len(groups), *rollouts.score.shape[1:]))
    for sample in range(groups.shape[1]):  # less memory than all samples at once
        found += a[:, sample, :, None, None] * rollouts.score[groups[:, sample]]
    return found / groups.shape[1]


def mean_gradient(
    subject: TurnSubject, rollouts: Rollouts, task: TurnTask, groups: Any, weight: Any
) -> Any:
    some = groups[:: max(1, len(groups) // 50)]
    a = _advantages(subject, rollouts, task, some)
    for part in (slice(None), slice(len(some) // 2), slice(None, None, -1)):
        change = _advantages(subject, rollouts, task, some[part]) - a[part]
        if np.abs(change).max() > _ROUNDING * max(1.0, np.abs(a).max()):
            raise ConfigError(
                "the advantages of a group depend on other groups or on earlier calls. Turn off "
                "normalization over the batch, random numbers and memory with options"
            )
    return np.tensordot(weight, group_gradients(subject, rollouts, task, groups), 1)


def _advantages(subject: TurnSubject, rollouts: Rollouts, task: TurnTask, groups: Any) -> Any:
    return subject(task.rewards[groups], np.array(task.weights), turns=rollouts.turns[groups])


def no_signal(subject: TurnSubject, longest: int, size: int) -> tuple[float, float]:
    """Return the largest absolute advantages without signal, and with equal outcomes."""
    turns = np.stack(np.meshgrid(*[np.arange(1, longest + 1)] * size), axis=-1).reshape(-1, size)
    at, equal = np.arange(longest), np.all(turns == turns[:, :1], axis=1)
    every, first = 1.0 * (at < turns[equal][..., None]), np.full((*turns.shape, 1), 2.0) * (at == 0)
    last = 1.0 * (at == turns[..., None] - 1)
    largest = [
        float(np.abs(subject(r[..., None], np.ones(1), turns=n.copy())).max())
        for r, n in ((every, turns[equal]), (first, turns), (last, turns))
    ]
    return max(largest[:2]), largest[2]


def _check_contract(subject: TurnSubject) -> None:
    rng, w = np.random.default_rng(0), np.array([1.0, 0.5])
    r = rng.integers(-16, 16, (3, 4, 4, 2), endpoint=True) / 8
    turns = rng.integers(1, 4, (3, 4), endpoint=True)
    turns[0, 0], turns[0, 1] = 1, 4
    a = subject(r, w, turns=turns)
    beyond = np.arange(4) >= turns[:, :, None]
    assert not np.any(a[beyond]), "turns that a rollout did not take must get 0: mask the result"
    p, s = rng.permutation(3), rng.permutation(4)
    wider = np.pad(r, ((0, 0), (0, 0), (0, 2), (0, 0)))
    changes = {"a second call with the same rewards": (r, turns, a)}
    changes["prompts and samples in another order"] = r[p][:, s], turns[p][:, s], a[p][:, s]
    changes["two more turns of padding"] = wider, turns, np.pad(a, ((0, 0), (0, 0), (0, 2)))
    for junk in (1e6, np.nan):
        filled = np.where(beyond[..., None], junk, r)
        changes[f"rewards {junk} beyond the last turn"] = filled, turns, a
    for what, (rewards, counts, wanted) in changes.items():
        difference = float(np.abs(subject(rewards, w, turns=counts) - wanted).max())
        assert difference <= _ROUNDING * max(1.0, float(np.abs(wanted).max())), (
            f"{what} must have no effect: the advantages differ by {difference:.3g}"
        )


def likely_reason(
    subject: TurnSubject, rollouts: Rollouts, tasks: Sequence[TurnTask], means: Any, size: int
) -> str:
    if reason := _without_later_rewards(subject, rollouts.actions.shape[1]):
        return reason
    known = list(_mistakes(rollouts, tasks, size))
    for any_factor in (False, True):
        for text, gradients in known:
            factor = np.sum(gradients * means) / np.sum(gradients**2) if any_factor else 1.0
            off = np.abs(means - factor * gradients).max(axis=(1, 2, 3))
            if factor > 0 and np.all(
                off <= _ROUNDING * np.maximum(np.abs(means).max((1, 2, 3)), 1e-3)
            ):
                return text.format(factor=factor)
    return _by_probing(subject, rollouts.actions.shape[1])


def _without_later_rewards(subject: TurnSubject, longest: int) -> str:
    """Return the reason if rollouts that differ only in a later reward are alike before it."""
    later = np.arange(1, longest)
    paid = 1.0 * (np.arange(longest) == later[:, None])[:, None, :, None] * np.eye(3)[:, :1, None]
    a = subject(paid, np.ones(1), turns=np.full((longest - 1, 3), longest))
    alike = (np.abs(a[:, 0] - a[:, 1]) <= _ROUNDING) & (np.arange(longest) < later[:, None])
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


def _by_probing(subject: TurnSubject, longest: int) -> str:
    """Return how a rollout's later turns change its advantages, except by rewards."""
    one, base = np.ones(1), np.random.default_rng(0).integers(1, 9, (2, 3, longest, 1)) / 8
    turns, at = np.array([[longest] * 3, [longest, 1, 1]]), np.arange(longest)
    for later in at[:0:-1]:
        paid, shorter, longer = base.copy(), turns.copy(), turns.copy()
        paid[:, 0, later:], shorter[:, 0], longer[:, 0] = 0.0, later, later + 1
        change = subject(paid, one, turns=longer) - subject(paid, one, turns=shorter)
        largest = max(change[:, 0, :later].ravel(), key=abs)
        if abs(largest) > _ROUNDING:
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
    if 0 < rate < 1 and np.abs(rise - powers[:, :, None]).max() <= _ROUNDING:
        return f"later rewards are discounted by {rate:.3g} per turn: do not discount"
    later, turn, group = np.unravel_index(np.abs(rise - 1).argmax(), rise.shape)
    if abs(rise[later, turn, group] - 1) <= _ROUNDING:
        return ""
    return (
        f"a reward of 1 at turn {later + 1} changes the rollout's advantage of turn {turn + 1} by "
        f"{rise[later, turn, group]:.3g} instead of 1: the rollout's own later rewards are in its "
        "baseline, or its rewards are divided or spread over turns"
    )
