"""Estimators by name."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from array_api_compat import array_namespace

from gdpo._naming import did_you_mean, find
from gdpo.advantages._agreement import corr_grpo, gd2po_hard, gd2po_snr, gdpo_decorrelated
from gdpo.advantages._decoupled import gdpo, gdpo_leave_one_out, per_reward_batch_std
from gdpo.advantages._emphasis import sa_mrpo, saw
from gdpo.advantages._sum_first import grpo, grpo_batch_norm, grpo_batch_std, grpo_no_std, rloo
from gdpo.advantages.contrib import (
    constrained_grpo,
    dara_asymmetric,
    dara_symmetric,
    dvao,
    mo_grpo,
    rvpo,
)
from gdpo.errors import ConfigError

Estimator: TypeAlias = Callable[..., Any]
"""`(rewards[prompt, sample, reward], weights[reward], *, options) -> advantages[prompt, sample]`"""

ESTIMATORS: dict[str, Estimator] = {
    estimator.__name__: estimator
    for estimator in (
        # sum first
        grpo,
        grpo_no_std,
        rloo,
        grpo_batch_std,
        grpo_batch_norm,
        # each reward by itself
        mo_grpo,
        gdpo,
        gdpo_leave_one_out,
        per_reward_batch_std,
        # emphasis by what the batch shows
        dvao,
        sa_mrpo,
        saw,
        dara_symmetric,
        dara_asymmetric,
        # agreement among the rewards
        corr_grpo,
        gd2po_hard,
        gd2po_snr,
        gdpo_decorrelated,
        rvpo,
        # constraints
        constrained_grpo,
    )
}


def resolve_estimator(name: str) -> Estimator:
    """The estimator of this name.

    Args:
        name: A key of `ESTIMATORS`, or `module:attribute` for your own.

    Raises:
        ConfigError: There is no such estimator, or it cannot be called.
    """
    estimator = find(name, ESTIMATORS, "estimator")
    if not callable(estimator):
        raise ConfigError(
            f"estimator {name!r} is a {type(estimator).__name__}; it must be a function "
            f"(rewards[prompt, sample, reward], weights[reward]) -> advantages[prompt, sample]"
        )
    return estimator


def check_advantages(advantages: Any, rewards: Any, name: str) -> None:
    """Raise a ConfigError unless an estimator returned what an estimator must.

    Args:
        advantages: What it returned.
        rewards: What it was given, `[prompt, sample, reward]`.
        name: What the user calls it.
    """
    wanted = f"an array [prompt, sample] of shape {tuple(rewards.shape[:2])}"
    if type(advantages) is not type(rewards):
        raise ConfigError(
            f"estimator {name!r} returned a {type(advantages).__name__}; it must return {wanted}, "
            f"of the kind that it was given ({type(rewards).__name__})"
        )
    if tuple(advantages.shape) != tuple(rewards.shape[:2]):
        raise ConfigError(
            f"estimator {name!r} returned an array of shape {tuple(advantages.shape)}; it must "
            f"return {wanted}"
        )
    xp = array_namespace(advantages)
    if not bool(xp.all(xp.isfinite(advantages))):
        raise ConfigError(
            f"estimator {name!r} returned advantages that are not finite; where no reward applies "
            f"(all NaN) an advantage must be 0"
        )


def weights_by_name(
    names: Sequence[str], weights: dict[str, float] | Sequence[float] | None
) -> list[float]:
    """One weight per reward, in the order of the names.

    Args:
        names: The rewards, in the order of the reward array.
        weights: By name (a reward that is not named weighs 1), or in the same order, or None: all
            1.

    Raises:
        ConfigError: A name that is no reward's, or a number of weights that does not fit.
    """
    if weights is None:
        return [1.0] * len(names)
    if not isinstance(weights, dict):
        if len(weights) != len(names):
            raise ConfigError(
                f"reward_weights has {len(weights)} entries for {len(names)} rewards "
                f"({', '.join(names)}): give one each, in this order, or a dict by name"
            )
        return [float(weight) for weight in weights]
    for name in weights:
        if name not in names:
            raise ConfigError(
                f"reward_weights names {name!r}, which is no reward of this run: "
                f"{did_you_mean(name, names)}"
            )
    return [float(weights.get(name, 1.0)) for name in names]
