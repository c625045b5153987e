"""One step of a run: the diagnosis of its rewards, and what else its rollouts say."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from jaxtyping import Float

from gdpo._naming import did_you_mean
from gdpo.diagnostics import Bounds, Diagnosis, diagnose
from gdpo.errors import ConfigError
from gdpo.rollouts.readers import RolloutTable


@dataclass(frozen=True, slots=True)
class StepAnalysis:
    """What was found in the rollouts that one step trained on. NaN: not known."""

    run: str
    step: int
    rollouts: int
    """That were trained on."""
    diagnosis: Diagnosis
    recorded: bool
    """Whether the advantages are those of the dump; else they are the estimator's."""
    weights_from: str
    """`asked for`, `the dump` or `nobody: all 1`."""
    left_out: int
    """Rollouts that were scored and not trained on."""
    cut: float
    """Share of completions that ended at their limit of tokens."""
    num_tokens: float
    """Of a completion, mean."""
    with_length: tuple[float, ...]
    """Of each reward with the number of tokens: correlation in groups, after both lost the mean of
    their group."""


def analyze_steps(
    tables: Iterable[RolloutTable],
    *,
    weights: Mapping[str, float] | None = None,
    estimator: str = "grpo",
    low: Bounds = None,
    high: Bounds = None,
) -> Iterator[StepAnalysis]:
    """Diagnose every step as it is read; those without rewards or training are passed over.

    Args:
        tables: As `read_rollout_files` gives them, one per step.
        weights: By the name of the reward; left out: those of the dump, else all 1.
        estimator: What makes the advantages of a step whose dump has none for some rollout.
        low: Declared lowest value of each reward, by name.
        high: Declared highest value.

    Raises:
        ConfigError: A weight of a reward that is not there, or an unknown estimator.
        DataError: Groups of so different a size that they have no common shape.
    """
    for table in tables:
        trained = np.flatnonzero(table.trained)
        if not table.names or not len(trained):
            continue
        left_out = len(table) - len(trained)
        used = table if not left_out else table.take(trained)
        given, said_by = _weights(used, weights)
        arrays = used.grouped()
        recorded = bool(np.all(np.isfinite(used.advantages)))
        diagnosis = diagnose(
            arrays.rewards,
            given,
            used.names,
            estimator=None if recorded else estimator,
            advantages=arrays.advantages if recorded else None,
            low=_known(low, used.names),
            high=_known(high, used.names),
        )
        yield StepAnalysis(
            run=used.run,
            step=int(used.steps[0]),
            rollouts=len(used),
            diagnosis=diagnosis,
            recorded=recorded,
            weights_from=said_by,
            left_out=left_out,
            cut=_mean(used.cut),
            num_tokens=_mean(used.num_tokens),
            with_length=tuple(_with_length(used, column) for column in used.rewards.T),
        )


def _weights(table: RolloutTable, asked: Mapping[str, float] | None) -> tuple[list[float], str]:
    if asked is None:
        said_by = "nobody: all 1" if table.weights is None else "the dump"
        return list(table.weights or [1.0] * len(table.names)), said_by
    for name in asked:
        if name not in table.names:
            raise ConfigError(
                f"weights name {name!r}, which is no reward of step {table.steps[0]}: "
                f"{did_you_mean(name, table.names)}"
            )
    return [float(asked.get(name, 1.0)) for name in table.names], "asked for"


def _known(bounds: Bounds, names: Sequence[str]) -> Bounds:
    """The bounds of the rewards that this step has."""
    if not isinstance(bounds, Mapping):
        return bounds
    return {name: bound for name, bound in bounds.items() if name in names}


def _mean(values: Float[np.ndarray, " rollout"]) -> float:
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else nan


def _with_length(table: RolloutTable, reward: Float[np.ndarray, " rollout"]) -> float:
    known = ~np.isnan(reward) & ~np.isnan(table.num_tokens)
    _, group = np.unique(table.groups[known], return_inverse=True)
    a, b = _centred(reward[known], group), _centred(table.num_tokens[known], group)
    scale = np.sqrt(np.sum(a**2) * np.sum(b**2))
    return float(np.sum(a * b) / scale) if scale > 0 else nan


def _centred(
    values: Float[np.ndarray, " rollout"], group: np.ndarray
) -> Float[np.ndarray, " rollout"]:
    if not len(values):
        return values
    means = np.bincount(group, weights=values) / np.bincount(group)
    centred = values - means[group]
    # What is left of a group without spread is rounding, and no correlation.
    return np.where(np.abs(centred) > 1e-12 * np.max(np.abs(values)), centred, 0.0)
