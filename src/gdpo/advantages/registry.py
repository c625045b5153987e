"""Finds estimators by name, and checks reward weights and returned advantages."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from gdpo._naming import find, refuse_unknown
from gdpo.advantages._turns import TURN_ESTIMATORS
from gdpo.advantages._types import Number
from gdpo.advantages.estimators import ESTIMATORS, Estimator
from gdpo.errors import ConfigError


def resolve_estimator(name: str, *, turns: bool = False) -> Estimator:
    """Return the estimator with this name.

    Args:
        name: A key in `ESTIMATORS`, or `module:attribute` for an estimator of your own.
        turns: Whether the caller has rewards for each turn, so that estimators for turns are
            allowed.

    Raises:
        ConfigError: If the name is unknown, its object cannot be called with rewards and weights,
            or it is for turns and the caller has no turn rewards.
    """
    known = {**ESTIMATORS, **TURN_ESTIMATORS} if turns or name in TURN_ESTIMATORS else ESTIMATORS
    estimator = find(name, known, "estimator")
    if not callable(estimator):
        raise ConfigError(
            f"estimator {name!r} is a {type(estimator).__name__}: use a function "
            f"(rewards[prompt, sample, reward], weights[reward]) -> advantages[prompt, sample]"
        )
    keywords = keyword_parameters(estimator)
    try:
        signature(estimator).bind(None, None, **dict.fromkeys(keywords))
    except TypeError as error:
        raise ConfigError(
            f"estimator {name!r} cannot be called with (rewards, weights), because its signature "
            f"is {signature(estimator)}: use a function (rewards, weights) -> advantages, whose "
            "options are keyword-only arguments"
        ) from error
    if "turns" in keywords and not turns:
        raise ConfigError(
            f"estimator {name!r} computes an advantage for each turn, but there are no turn "
            "rewards here: use it with GDPOTrainer (TRL) or in verl, or choose an estimator for "
            "rollouts, such as gdpo"
        )
    return estimator


def keyword_parameters(estimator: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the keyword-only parameters of an estimator, by name."""
    try:
        parameters = signature(estimator).parameters.values()
    except ValueError as error:
        raise ConfigError(
            f"{estimator!r} cannot be an estimator: {error}. Wrap it in a Python function"
        ) from error
    return {p.name: p for p in parameters if p.kind is Parameter.KEYWORD_ONLY}


def check_advantages(advantages: Any, rewards: Any, name: str) -> None:
    """Raise a ConfigError unless an estimator's result is a finite array that fits the rewards."""
    shape = tuple(rewards.shape[:-1])
    expected = (
        f"an array [{', '.join(('prompt', 'sample', 'turn')[: len(shape)])}] of shape {shape}"
    )
    if type(advantages) is not type(rewards):
        raise ConfigError(
            f"estimator {name!r} returned a {type(advantages).__name__}: return {expected}, "
            f"of the same type as the rewards ({type(rewards).__name__})"
        )
    if tuple(advantages.shape) != shape:
        raise ConfigError(
            f"estimator {name!r} returned an array of shape {tuple(advantages.shape)}: return "
            f"{expected}"
        )
    xp = array_namespace(advantages)
    if not bool(xp.all(xp.isfinite(advantages))):
        raise ConfigError(
            f"estimator {name!r} returned advantages that are not finite: return finite numbers, "
            f"and 0 where no reward applies (all NaN)"
        )


def check_unchanged(given: Mapping[str, Any], before: Mapping[str, Any], what: str) -> None:
    """Raise a ConfigError if an estimator changed one of its arguments."""
    for name, array in given.items():
        if not np.array_equal(np.asarray(array), before[name], equal_nan=True):
            raise ConfigError(
                f"{what} changes its argument {name!r}, which gdpo uses again: change a copy, such "
                f"as {name}.copy() (NumPy) or {name}.clone() (torch)"
            )


def weights_by_name(
    names: Sequence[str], weights: Mapping[str, Number] | Sequence[Number] | None
) -> list[float]:
    """Return one weight per reward, in the order of `names`. None: all weights are 1."""
    if weights is None:
        return [1.0] * len(names)
    if not isinstance(weights, Mapping):
        if len(weights) != len(names):
            raise ConfigError(
                f"reward_weights has {len(weights)} entries for {len(names)} rewards "
                f"({', '.join(names)}): set one number per reward in this order, or use a dict "
                "keyed by reward name"
            )
        return [float(weight) for weight in weights]
    refuse_unknown(weights, names, "reward_weights: unknown reward")
    if left_out := [name for name in names if name not in weights]:
        raise ConfigError(
            f"reward_weights leaves out {', '.join(map(repr, left_out))}: give each of "
            f"{', '.join(names)} a weight. With weight 0, a reward is only watched"
        )
    return [float(weights[name]) for name in names]
