"""Computes the `Diagnosis` of a reward array."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter
from math import isnan, nan
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from gdpo._naming import refuse_unknown
from gdpo._shapes import Bool, Float
from gdpo.advantages import ESTIMATORS, AdvantageRule, Advantages, Estimator, Rewards, Weights, grpo
from gdpo.advantages.arrays import as_numpy, check_finite, per_reward, rounded
from gdpo.advantages.registry import check_advantages, keyword_parameters, weights_by_name
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    PreparedWeights,
    Rounded,
    centred,
    correlation,
    mean,
    standardize,
)
from gdpo.diagnostics.diagnosis import Diagnosis, Kind, Range, RewardDiagnosis, Scored
from gdpo.diagnostics.findings import Thresholds, of_batch
from gdpo.diagnostics.influence import (
    Influence,
    PerGroup,
    PreparedStep,
    Scores,
    Square,
    Values,
    Vector,
    influence_of,
)
from gdpo.diagnostics.looks import findings_at_once
from gdpo.errors import ConfigError, DataError

Bounds: TypeAlias = Mapping[str, float | int | None] | Sequence[float | int | None] | None
"""One bound per reward, by name or in the order of the rewards. None or NaN: unknown."""


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

    To first order, it is how fast the update raises the reward, in units of its within-group
    standard deviation. Under GDPO, it is $(C w)_k$ up to a factor, where $C$ is the correlation
    matrix of the rewards. Under GRPO, it also depends on their standard deviations. The diagnosis
    compares the influence share of each reward with its weight share.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`, from any array library, each in its own
            unit. NaN: the reward does not apply.
        weights: One weight per reward, in the order of `names` or by name, or for each prompt,
            `[prompt, reward]`, with NaN where the reward does not apply. None: all are 1.
        names: One name per reward.
        estimator: Name of the estimator of the advantages, or a function of NumPy arrays. With
            `advantages`, only a name for the output, or None: unknown.
        advantages: Advantages used in training, `[prompt, sample]`. None: the estimator computes
            them.
        low: Declared minimum of each reward, in its unit, in the order of `names` or by name. None:
            unknown.
        high: Declared maximum of each reward, in the same form.
        thresholds: Thresholds of the findings. Default: `Thresholds()`.

    Returns:
        A frozen `Diagnosis`. Print it, or log its `metrics()`.

    Raises:
        DataError: If a reward is infinite, the rewards do not have three axes, or the advantages do
            not fit.
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
    batch = PreparedStep.of(r, w)
    x = batch.values
    sum_first = np.asarray(grpo(r, w), dtype=np.float64)
    bounds, ranges = _bounds(low, high, names, x)
    called = estimator if estimator is None or isinstance(estimator, str) else _name(estimator)
    a = sum_first
    if advantages is not None or estimator != "grpo":
        a = _advantages(advantages, estimator, r, w, names, bounds)
    applies = np.any(~np.isnan(x), axis=-1)
    rollouts = int(np.sum(applies))
    related, degrees = _correlations(batch.z, batch.std)
    conflict, chance_conflict = _conflict(batch.z, batch.weights)
    influence = influence_of(a, batch, names)
    diagnosis = Diagnosis(
        estimator=called,
        prompts=x.shape[0],
        samples=x.shape[1],
        rollouts=rollouts,
        rewards=_reward_diagnoses(batch, influence, names, bounds, rollouts),
        correlation=tuple(map(tuple, related.tolist())),
        degrees=tuple(map(tuple, degrees.tolist())),
        conflict=conflict,
        chance_conflict=chance_conflict,
        batch_gain=1 / batch.gain if batch.gain > 0 else None,
        **_of_advantages(a, sum_first, applies),
        influence=influence,
        no_interval=influence.no_interval,
        scored=Scored(tuple(names), r, w),
        ranges=ranges,
        precision=r.dtype.name if r.dtype.kind == "f" else "float64",
    )
    limits = thresholds or Thresholds()
    found = list(of_batch(diagnosis, limits))
    lost = {(each.kind, each.rewards) for each in found if each.kind is Kind.BELOW_RESOLUTION}
    # The values of one batch do not tell the range of a reward.
    declared = {name: known for name, known in ranges.items() if known.declared}
    found += findings_at_once(influence, declared, limits, hidden=lost, sizes=ranges)
    return replace(diagnosis, findings=tuple(sorted(found, key=attrgetter("rank"))))


def _reward_diagnoses(
    batch: PreparedStep,
    influence: Influence,
    names: Sequence[str],
    bounds: tuple[Vector, Vector],
    rollouts: int,
) -> tuple[RewardDiagnosis, ...]:
    (low, high), values, std, weights = bounds, batch.values, batch.std, batch.prompt_weights
    missing, applies = np.isnan(values), ~np.isnan(std)
    groups = np.sum(applies, axis=0)
    never = groups == 0
    # Each reward's weight is averaged over the prompts that it applies to.
    weight = np.sum(np.where(applies, weights, 0.0), axis=0) / np.maximum(groups, 1)
    highest = np.max(np.where(missing, -np.inf, values), axis=SAMPLES)
    lowest = np.min(np.where(missing, np.inf, values), axis=SAMPLES)
    live = np.sort(np.where(std > 0, std, nan), axis=0)
    count, means = np.sum(std > 0, axis=0), mean(values, over=BATCH)[0, 0]
    middle = np.stack([(count - 1) // 2, count // 2])
    of_groups = np.stack([std == 0, std, (std == 0) & (highest > lowest)])
    constant, group_std, lost = mean(np.where(applies, of_groups, nan), over=1)[:, 0, :]
    columns = {
        "weight": batch.weights if batch.weights.ndim == 1 else weight,
        "low": low,
        "high": high,
        "mean": means,
        "missing": np.mean(missing, axis=BATCH),
        "zero_variance_groups": constant,
        "group_std": group_std,
        "varying_std": np.mean(np.take_along_axis(live, middle, axis=0), axis=0),
        "saturation": (means - low) / (high - low),
        "weight_share": influence.weight_shares,
        "influence": np.where(never, nan, influence.sums.influence / max(rollouts, 1)),
        "influence_share": np.where(never, nan, influence.shares),
        "influence_margin": np.where(never, nan, influence.margins),
        "below_resolution": lost,
    }
    rewards: list[RewardDiagnosis] = []
    for k, name in enumerate(names):
        row = {what: float(column[k]) for what, column in columns.items()}
        known: dict[str, Any] = {what: None if isnan(x) else x for what, x in row.items()}
        rewards.append(RewardDiagnosis(name=name, groups=int(groups[k]), **known))
    return tuple(rewards)


def _advantages(
    given: Any,
    estimator: str | Estimator | None,
    rewards: Any,
    weights: Weights,
    names: Sequence[str],
    bounds: tuple[Vector, Vector],
) -> Scores:
    if given is not None:
        a = as_numpy(given)
        if a.shape != rewards.shape[:2] or not np.all(np.isfinite(a)):
            raise DataError(
                f"advantages must be a finite array [prompt, sample] of shape {rewards.shape[:2]}, "
                f"like the rewards; got an array of shape {a.shape}. Pass one finite number per "
                "rollout"
            )
    elif estimator is None:
        raise ConfigError("diagnose needs estimator= or advantages=: pass one of them")
    elif isinstance(estimator, str) and estimator in _WITHOUT_OPTIONS:
        a = ESTIMATORS[estimator](rewards, weights)
    else:
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


def _name(estimator: Estimator) -> str | None:
    if isinstance(estimator, AdvantageRule):
        return estimator.name
    function = estimator.func if isinstance(estimator, partial) else estimator
    return getattr(function, "__name__", None)


def weights_of(names: Sequence[str], weights: Any) -> Weights:
    """Return one weight per reward as floats, or the array of weights for each prompt."""
    if weights is not None and not isinstance(weights, Mapping):
        array = as_numpy(weights) if is_array_api_obj(weights) else np.asarray(weights, np.float64)
        if array.ndim == 2:
            return array
        weights = array.tolist()
    return weights_by_name(names, weights)


def _bounds(
    low: Bounds, high: Bounds, names: Sequence[str], rewards: Values
) -> tuple[tuple[Vector, Vector], dict[str, Range]]:
    """Return the declared bounds, and the range of each reward: as declared, or of its values."""
    found: list[Vector] = []
    for what, values in (("low", low), ("high", high)):
        if isinstance(values, Mapping):
            refuse_unknown(values, names, f"{what}: unknown reward")
            values = [values.get(name) for name in names]
        if values is not None:
            values = [nan if value is None else value for value in values]
        found.append(np.asarray(per_reward(values, rewards, name=what), dtype=np.float64))
    seen = (each.reduce(rewards, BATCH) for each in (np.fmin, np.fmax))
    columns = [each.tolist() for each in (*found, *seen)]
    ranges: dict[str, Range] = {}
    for name, bottom, top, least, largest in zip(names, *columns, strict=True):
        if bottom < top:
            ranges[name] = Range(bottom, top)
        elif not isnan(least):
            ranges[name] = Range(least, largest, declared=False)
        if bottom >= top:
            raise ConfigError(
                f"reward {name!r}: the range must have low < high, got [{bottom:g}, {top:g}]. "
                "Correct one of the bounds"
            )
    return (found[0], found[1]), ranges


def _group_spread(rewards: Rewards) -> Float[Any, "prompt reward"]:
    """Return the standard deviation of each reward in each group, NaN where it does not apply."""
    x = rounded(rewards)
    std, applies = centred(x, over=SAMPLES)[1][:, 0, :], ~x.xp.isnan(x.values)
    return x.xp.where(x.xp.any(applies, axis=SAMPLES), std, x.xp.nan)


_SAME = 1e-5
"""Advantages count as equal if they differ by less than this fraction of the largest one, which is
the size of rounding errors in float32."""


def _of_advantages(
    advantages: Scores, sum_first: Scores, applies: Bool[np.ndarray, "prompt sample"]
) -> dict[str, Any]:
    live = np.any(advantages != 0, axis=SAMPLES)
    largest = float(np.max(np.abs(advantages), where=applies, initial=0.0))
    numbers = {
        "zero_advantage_groups": float(np.mean(~live)),
        "largest": largest,
        **dict.fromkeys(("signal_rms", "distinct", "distinct_grpo", "same_as_grpo")),
    }
    if largest > 0:
        ratios = np.where(applies & live[:, None], advantages / largest, np.nan)
        numbers["signal_rms"] = largest * float(np.sqrt(np.nanmean(ratios * ratios)))
    for name, each in (("distinct", advantages), ("distinct_grpo", sum_first)):
        if np.any(live):
            ordered = np.sort(np.where(applies, each, np.nan), axis=SAMPLES)
            steps = np.diff(ordered, axis=SAMPLES) > _SAME * np.max(np.abs(each))
            numbers[name] = float(np.mean(1.0 + np.sum(steps, axis=SAMPLES)[live]))
    pair = np.moveaxis(np.where(applies, np.stack([advantages, sum_first]), np.nan), 0, -1)
    z = standardize(Rounded(pair, np.zeros_like(pair)), over=BATCH)
    if np.all(np.any(z.values != 0, axis=BATCH, where=applies[..., None])):
        numbers["same_as_grpo"] = float(correlation(z)[0, 1])
    return numbers


def _correlations(z: Values, std: PerGroup) -> tuple[Square, Square]:
    r"""Return the correlation of each pair of rewards, and the degrees of freedom.

    $$ \rho_{kl} = \frac{\sum z_k z_l}{\sqrt{\sum z_k^2 \sum z_l^2}} $$

    The sums are over the groups in which both rewards vary (NaN without any), unlike those of
    `stages.correlation`. The degrees of freedom are the square root in the denominator.
    """
    known = np.nan_to_num(z)
    columns = known.reshape(-1, z.shape[-1])
    squares = np.sum(known * known, axis=SAMPLES).T @ (std > 0)
    degrees = np.sqrt(squares * squares.T)
    together = degrees > 0
    product = columns.T @ columns
    return np.where(together, product / np.where(together, degrees, 1.0), np.nan), degrees


def _conflict(z: Values, weights: PreparedWeights) -> tuple[float | None, float | None]:
    r"""Return the share of rollouts with conflicting rewards, and the share expected by chance.

    Rewards conflict if one $w_k z_k$ is positive and another negative. By chance: if each reward
    were shuffled within its group. With $p^+_k$ and $p^-_k$ the shares of samples that reward $k$
    pulls up and down, a sample has no conflict with probability $\prod_k (1 - p^+_k) + \prod_k (1 -
    p^-_k) - \prod_k (1 - p^+_k - p^-_k)$.
    """
    pull = np.sign(weights) * z
    absent = np.all(np.isnan(z), axis=-1)
    if np.all(absent):
        return None, None
    up, down = sides = np.stack([pull > 0, pull < 0])
    both = np.any(up, axis=-1) & np.any(down, axis=-1)
    p_up, p_down = mean(np.where(absent[..., None], np.nan, sides), over=1 + SAMPLES)
    escape = (1 - p_up).prod(-1) + (1 - p_down).prod(-1) - (1 - p_up - p_down).prod(-1)
    # With a single reward, rounding can bring the share below 0, which is no share.
    chance = np.broadcast_to(np.clip(1 - escape, 0.0, 1.0), both.shape)
    shares = mean(np.where(absent, np.nan, np.stack([both, chance])), over=(1, 2))
    return float(shares[0, 0, 0]), float(shares[1, 0, 0])


def check_names(names: Sequence[str], rewards: Any) -> None:
    """Raise a ConfigError unless there is one unique name per reward."""
    if len(names) != rewards.shape[-1]:
        raise ConfigError(
            f"the array has {rewards.shape[-1]} rewards, but there are {len(names)} names "
            f"({', '.join(names)}): pass one name per reward"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"reward names must be unique, got {', '.join(names)}: rename one")


def group_std(rewards: Rewards) -> Float[Any, " reward"]:
    """Return each reward's sample standard deviation within a group, averaged over its groups.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.

    Returns:
        One value per reward, in the unit of the reward. NaN if the reward never applies.

    Examples:
        >>> import numpy as np
        >>> group_std(np.array([[[0.0], [1.0]], [[1.0], [1.0]]])).round(3)
        array([0.354])
    """
    return mean(_group_spread(rewards), over=0)[0, :]


def zero_variance_groups(rewards: Rewards) -> Float[Any, " reward"]:
    """Return the share of groups in which each reward does not vary, of those that it applies to.

    Args:
        rewards: Raw rewards, `[prompt, sample, reward]`. NaN: the reward does not apply.

    Returns:
        One share from 0 to 1 per reward. NaN if the reward never applies.

    Examples:
        >>> import numpy as np
        >>> zero_variance_groups(np.array([[[0.0], [1.0]], [[1.0], [1.0]]]))
        array([0.5])
    """
    std = _group_spread(rewards)
    xp = array_namespace(std)
    return mean(xp.where(xp.isnan(std), std, xp.astype(std == 0, std.dtype)), over=0)[0, :]


def zero_advantage_groups(advantages: Advantages) -> float:
    """Return the share of groups in which every advantage is exactly 0.

    A zero-advantage group does not contribute to training.

    Args:
        advantages: Advantages, `[prompt, sample]`.

    Returns:
        A share from 0 to 1.

    Examples:
        >>> import numpy as np
        >>> zero_advantage_groups(np.array([[0.0, 0.0], [-1.0, 1.0]]))
        0.5
    """
    xp = array_namespace(advantages)
    zero = xp.all(advantages == 0, axis=1)
    return float(xp.mean(xp.astype(zero, advantages.dtype)))
