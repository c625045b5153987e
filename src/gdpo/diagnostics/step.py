"""Computes the `Diagnosis` of a reward array."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter
from math import isnan, nan
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import (
    array_namespace,
    is_array_api_obj,
    is_cupy_array,
    is_torch_array,
    to_device,
)

from gdpo._naming import did_you_mean
from gdpo.advantages import ESTIMATORS, AdvantageRule, Estimator, Rewards, Weights, grpo
from gdpo.advantages.arrays import check_finite, per_reward
from gdpo.advantages.registry import check_advantages, keyword_parameters, weights_by_name
from gdpo.advantages.stages import BATCH
from gdpo.diagnostics import _measures as measures
from gdpo.diagnostics._findings import findings_of
from gdpo.diagnostics._measures import Batch, Scored
from gdpo.diagnostics._thresholds import Thresholds
from gdpo.diagnostics.diagnosis import Diagnosis, RewardDiagnosis
from gdpo.diagnostics.influence import Influence, Scores, Vector, influence_of
from gdpo.errors import ConfigError, DataError

Bounds: TypeAlias = Mapping[str, float | int | None] | Sequence[float | int | None] | None
"""One bound per reward, keyed by name or in the order of the rewards. None or NaN if a bound is
unknown."""


def diagnose(  # noqa: PLR0913 (two arrays and their description)
    rewards: Rewards,
    weights: Any,
    names: Sequence[str],
    *,
    estimator: str | Estimator | None = "gdpo",
    advantages: Any = None,
    low: Bounds = None,
    high: Bounds = None,
    thresholds: Thresholds | None = None,
) -> Diagnosis:
    r"""Measure the influence of each reward in a batch and report problems.

    The influence of a reward is the mean of its z-score times the advantage:

    $$ \mathrm{influence}_k = \mathrm{mean}(A\, z_k). $$

    To first order, the influence is how fast the update raises the reward, in units of the
    reward's standard deviation within a group. Under GDPO, the influence is $(C w)_k$ up to a
    factor, where $C$ is the correlation matrix of the rewards. Under GRPO, the influence also
    depends on the standard deviations of the rewards. The diagnosis compares the influence share of
    each reward with its weight share.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, as an array from any array library. Each
            reward has its own unit. NaN means that the reward does not apply.
        weights: One weight per reward in the order of `names`, or a dict from reward name to
            weight. Or weights for each prompt, `[prompt, reward]`, where NaN means that the reward
            does not apply. None: all weights are 1.
        names: One name per reward.
        estimator: Estimator that computes the advantages: a name, or a function that takes NumPy
            arrays. If `advantages` is passed, this argument only sets the estimator name in the
            output, and None means that the estimator is unknown.
        advantages: Advantages that were used in training, `[prompt, sample]`. None: the estimator
            computes the advantages.
        low: Declared minimum of each reward, in the unit of the reward, in the order of `names` or
            keyed by name. None: unknown.
        high: Declared maximum of each reward, in the unit of the reward, in the order of `names` or
            keyed by name. None: unknown.
        thresholds: Thresholds of the findings. Default: `Thresholds()`.

    Returns:
        A frozen `Diagnosis`, which can be printed, or logged with `metrics()`.

    Raises:
        DataError: If a reward is infinite, the rewards do not have three axes, or the shape of the
            advantages does not match the rewards.
        ConfigError: If the names, weights, bounds or estimator do not match the rewards.

    Examples:
        >>> import numpy as np
        >>> rewards = np.random.default_rng(0).random((256, 8, 2)) * [10, 1]
        >>> diagnosis = diagnose(rewards, [1, 1], ["steps", "style"], estimator="grpo")
        >>> [round(reward.influence_share, 2) for reward in diagnosis.rewards]
        [0.95, 0.05]
        >>> [(finding.kind.value, finding.rewards) for finding in diagnosis.findings]
        [('ignored', ('style',))]
    """
    r = as_numpy(rewards)
    if r.ndim == 3:  # otherwise, the estimator reports the wrong number of axes
        check_names(names, r)
        check_finite(r, names)
    w = weights_of(names, weights)
    batch = Batch.of(r, w)
    x = batch.values
    sum_first = np.asarray(grpo(r, w), dtype=np.float64)
    bounds = _bounds(low, high, names, x)
    called = _name(estimator)
    if advantages is None and estimator == "grpo":
        a = sum_first
    elif advantages is not None:
        a = as_numpy(advantages)
        if a.shape != r.shape[:2] or not np.all(np.isfinite(a)):
            raise DataError(
                f"advantages must be a finite array [prompt, sample] of shape {r.shape[:2]}, like "
                f"the rewards; got an array of shape {a.shape}. Pass one finite number per rollout"
            )
        a = np.asarray(a, dtype=np.float64)
    else:
        a = _computed(estimator, r, w, names, bounds)
    applies = np.any(~np.isnan(x), axis=-1)
    correlation, degrees = measures.pooled_correlation(batch.z, batch.std)
    conflict, chance_conflict = measures.conflict(batch.z, batch.weights)
    influence = influence_of(a, batch.z, batch.std, batch.prompt_weights, names, x)
    diagnosis = Diagnosis(
        estimator=called,
        prompts=x.shape[0],
        samples=x.shape[1],
        rollouts=int(np.sum(applies)),
        rewards=_reward_diagnoses(batch, influence, names, bounds),
        correlation=tuple(map(tuple, correlation.tolist())),
        degrees=tuple(map(tuple, degrees.tolist())),
        conflict=conflict,
        chance_conflict=chance_conflict,
        batch_gain=1 / batch.gain if batch.gain > 0 else None,
        **measures.of_advantages(a, sum_first, applies),
        influence=influence,
        scored=Scored(tuple(names), r, w, called),
        precision=r.dtype.name if r.dtype.kind == "f" else "float64",
    )
    return replace(diagnosis, findings=findings_of(diagnosis, thresholds or Thresholds()))


def _reward_diagnoses(
    batch: Batch, influence: Influence, names: Sequence[str], bounds: tuple[Vector, Vector]
) -> tuple[RewardDiagnosis, ...]:
    (low, high), numbers = bounds, measures.of_rewards(batch)
    never = np.all(np.isnan(batch.values), axis=BATCH)
    rollouts = max(int(np.sum(~np.all(np.isnan(batch.values), axis=-1))), 1)
    columns = {
        **numbers,
        "low": low,
        "high": high,
        "saturation": (numbers["mean"] - low) / (high - low),
        "weight_share": influence.weight_shares,
        "influence": np.where(never, nan, influence.sums.influence / rollouts),
        "influence_share": np.where(never, nan, influence.shares),
        "influence_margin": np.where(never, nan, influence.margins),
    }
    groups = np.sum(~np.isnan(batch.std), axis=0)
    rewards: list[RewardDiagnosis] = []
    for k, name in enumerate(names):
        row = {what: float(column[k]) for what, column in columns.items()}
        known: dict[str, Any] = {what: None if isnan(x) else x for what, x in row.items()}
        rewards.append(RewardDiagnosis(name=name, groups=int(groups[k]), **known))
    return tuple(rewards)


def _computed(
    estimator: str | Estimator | None,
    rewards: Any,
    weights: Weights,
    names: Sequence[str],
    bounds: tuple[Vector, Vector],
) -> Scores:
    """Return the advantages that an estimator computes."""
    if estimator is None:
        raise ConfigError("diagnose needs estimator= or advantages=: pass one of them")
    if isinstance(estimator, str) and estimator in _WITHOUT_OPTIONS:
        return np.asarray(ESTIMATORS[estimator](rewards, weights), dtype=np.float64)
    if isinstance(estimator, str):
        low, high = (None if np.all(np.isnan(bound)) else bound.tolist() for bound in bounds)
        estimator = AdvantageRule(estimator, names, low=low, high=high)
    a = estimator(rewards, weights)
    check_advantages(a, rewards, _name(estimator) or "estimator")
    return np.asarray(a, dtype=np.float64)


_WITHOUT_OPTIONS = {
    name
    for name, function in ESTIMATORS.items()
    if all(p.default is not Parameter.empty for p in keyword_parameters(function).values())
}
"""Estimators that need no ranges and no options."""


def _name(estimator: str | Estimator | None) -> str | None:
    if isinstance(estimator, AdvantageRule):
        return estimator.name
    function = estimator.func if isinstance(estimator, partial) else estimator
    return function if isinstance(function, str) else getattr(function, "__name__", None)


def weights_of(names: Sequence[str], weights: Any) -> Weights:
    """Return one weight per reward as floats, or the array of weights for each prompt."""
    if isinstance(weights, Mapping):
        return weights_by_name(names, {name: float(weight) for name, weight in weights.items()})
    if weights is not None:
        array = as_numpy(weights) if is_array_api_obj(weights) else np.asarray(weights, np.float64)
        if array.ndim == 2:
            return array
        weights = array.tolist()
    return weights_by_name(names, weights)


def _bounds(low: Bounds, high: Bounds, names: Sequence[str], rewards: Any) -> tuple[Vector, Vector]:
    """Return the lowest and the highest value of each reward, NaN where it is not declared."""
    found: list[Vector] = []
    for what, values in (("low", low), ("high", high)):
        if isinstance(values, Mapping):
            for name in values:
                if name not in names:
                    raise ConfigError(
                        f"{what} has an entry for {name!r}, which is not a reward: "
                        f"{did_you_mean(name, names)}"
                    )
            values = [values.get(name) for name in names]
        if values is not None:
            values = [nan if value is None else value for value in values]
        found.append(np.asarray(per_reward(values, rewards, name=what), dtype=np.float64))
    for bottom, top, name in zip(found[0].tolist(), found[1].tolist(), names, strict=True):
        if bottom >= top:
            raise ConfigError(
                f"reward {name!r}: the range must have low < high, got [{bottom:g}, {top:g}]. "
                "Correct one of the bounds"
            )
    return found[0], found[1]


def check_names(names: Sequence[str], rewards: Any) -> None:
    """Raise a ConfigError if there is not one unique name per reward."""
    if len(names) != rewards.shape[-1]:
        raise ConfigError(
            f"the array has {rewards.shape[-1]} rewards, but there are {len(names)} names "
            f"({', '.join(names)}): pass one name per reward"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"reward names must be unique, got {', '.join(names)}: rename one")


def as_numpy(array: Any) -> Any:
    """Return the array as a NumPy array of the same precision, which determines the rounding error.

    Half precision is converted to single precision, which does not change any value.
    """
    xp = array_namespace(array)
    if xp.isdtype(array.dtype, "real floating") and xp.finfo(array.dtype).bits < 32:
        array = xp.astype(array, xp.float32)
    if is_torch_array(array):
        array = array.detach()
    if is_torch_array(array) or is_cupy_array(array):
        array = to_device(array, "cpu")
    return np.asarray(array)
