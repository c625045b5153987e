"""Computes the mean policy gradient of an estimator for turns over all groups, and its bias."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from benchmarks.credit._agents import Rollouts, TurnTask

from gdpo.advantages.registry import check_advantages, check_unchanged, keyword_parameters
from gdpo.errors import ConfigError

TurnSubject: TypeAlias = Callable[..., Any]
TurnOptions: TypeAlias = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]

_ROUNDING = 1e-6  # advantage that is rounding, even in single precision


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
