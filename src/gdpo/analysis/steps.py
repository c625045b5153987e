"""Analyzes one step of a run: rewards, completion lengths and truncation."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo._shapes import Float
from gdpo.advantages import AdvantageRule
from gdpo.advantages.stages import BATCH, SAMPLES, mean
from gdpo.analysis.trend import known_mean
from gdpo.diagnostics import Diagnosis, TurnsDiagnosis, diagnose, diagnose_turns
from gdpo.rollouts.table import Bounds, Ends, RewardArrays, RolloutTable


@dataclass(frozen=True, slots=True)
class StepAnalysis:
    """Stores the results for the rollouts that were trained on in one step. NaN: unknown."""

    run: str
    step: int
    rollouts: int
    diagnosis: Diagnosis
    recorded: bool
    """Whether the advantages are recorded. False: an estimator computed them."""
    weights_from: str
    """Source of the weights, as a phrase."""
    left_out: int
    """Number of rollouts that were scored but not trained on."""
    cut: float
    """Share of completions that were truncated at the token limit."""
    num_tokens: float
    with_length: tuple[float, ...]
    """Correlation of each reward with the number of tokens, both centered within groups."""
    turns: TurnsDiagnosis | None = None

    @staticmethod
    def of(diagnosis: Diagnosis, step: int) -> "StepAnalysis":
        """Return the results for the batch of a running training, without lengths."""
        return StepAnalysis(
            run="",
            step=step,
            rollouts=diagnosis.rollouts,
            diagnosis=diagnosis,
            recorded=True,
            weights_from="as trained",
            left_out=0,
            cut=nan,
            num_tokens=nan,
            with_length=(nan,) * len(diagnosis.rewards),
        )


def batch_of(
    table: RolloutTable, weights: Mapping[str, float] | None = None
) -> RewardArrays | None:
    """Return the arrays of one step, or None without rewards or trained rollouts."""
    rows, used = np.flatnonzero(table.trained), table
    if not table.names or not len(rows):
        return None
    if len(rows) < len(table):
        used = replace(table.take(rows), left_out=len(table) - len(rows))
    return (used if weights is None else used.weighted(weights)).grouped()


def analyze_steps(
    tables: Iterable[RolloutTable],
    *,
    weights: Mapping[str, float] | None = None,
    estimator: str = "grpo",
    low: Bounds = None,
    high: Bounds = None,
) -> Iterator[StepAnalysis]:
    """Yield the diagnosis of each step that has rewards and trained rollouts, as it is read.

    Args:
        tables: One table per step, from `read_rollout_files`.
        weights: As in `analyze`.
        estimator: Estimator for steps without recorded advantages.
        low: As in `analyze`.
        high: As in `analyze`.

    Raises:
        ConfigError: If a weight refers to an unknown reward, or the estimator is unknown.
        DataError: If group sizes differ so much that the arrays would be mostly padding.
    """
    names: dict[str, None] = {}
    for table in tables:
        batch = batch_of(table, weights)
        names |= dict.fromkeys(table.names)
        if batch is not None:
            yield analyze_step(batch, estimator=estimator, low=low, high=high)
    refuse_unnamed(weights, names, "weights")


def analyze_step(
    batch: RewardArrays,
    *,
    estimator: str = "grpo",
    recorded_by: str | None = None,
    low: Bounds,
    high: Bounds,
) -> StepAnalysis:
    """Return the diagnosis of one step. The arguments are those of `analyze_steps`.

    `recorded_by` is the estimator that computed the recorded advantages, or None.
    """
    used, recorded = batch.table, batch.advantages is not None
    by, ends = recorded_by if recorded else estimator, used.bounds(low, high)
    diagnosis = diagnose(
        batch.rewards,
        batch.weights,
        used.names,
        estimator=by,
        advantages=batch.advantages,
        low=ends[0],
        high=ends[1],
    )
    return StepAnalysis(
        run=used.run,
        step=int(used.steps[0]),
        rollouts=len(used),
        diagnosis=diagnosis,
        recorded=recorded,
        weights_from=batch.weights_from,
        left_out=used.left_out,
        cut=known_mean(used.cut),
        num_tokens=known_mean(used.num_tokens),
        with_length=tuple(_with_length(batch).tolist()),
        turns=None if used.turns is None else _diagnose_turns(batch, by, ends),
    )


def _diagnose_turns(
    batch: RewardArrays, estimator: str | None, ends: Ends
) -> TurnsDiagnosis | None:
    """Return the diagnosis of the turns of a step, or None if no number of turns is known.

    If some turn has no recorded advantages, that of the rollout, recorded or computed from the
    totals, counts for all turns.
    """
    names, turns = batch.names, batch.turns
    if not np.any(turns.counts):
        return None
    advantages: Any = turns.advantages
    if not np.all(np.isfinite(advantages[turns.taken])):
        advantages = batch.advantages
    if advantages is None:
        assert estimator is not None, "a step without recorded advantages has an estimator"
        rule = AdvantageRule(estimator, names, low=ends[0], high=ends[1])
        advantages = rule(batch.rewards, batch.weights)
    return diagnose_turns(
        turns.rewards,
        batch.weights,
        names,
        turns=turns.counts,
        advantages=advantages,
        estimator=estimator,
    )


def refuse_unnamed(rewards: Iterable[str] | None, names: Iterable[str], what: str) -> None:
    """Raise a ConfigError if an option (`what`) names an unknown reward, unless none is known."""
    if known := list(names):
        refuse_unknown(rewards or (), known, f"{what}: unknown reward")


def _with_length(batch: RewardArrays) -> Float[np.ndarray, " reward"]:
    r"""Return $\sum a b / \sqrt{\sum a^2 \sum b^2}$ for rewards and tokens, centered per group."""
    tokens = batch.num_tokens[..., None]
    known = ~np.isnan(batch.rewards) & ~np.isnan(tokens)
    values = np.where(known, np.stack(np.broadcast_arrays(batch.rewards, tokens)), nan)
    centred = values - mean(values, over=1 + SAMPLES)
    largest = np.max(np.abs(values), axis=(1, 2), keepdims=True, initial=0.0, where=known)
    # In a constant group, the remainder is rounding error and must not count as correlation.
    a, b = np.where(np.abs(centred) > 1e-12 * largest, centred, 0.0)
    products = np.sum(a * b, axis=BATCH)
    scale = np.sqrt(np.sum(a * a, axis=BATCH) * np.sum(b * b, axis=BATCH))
    return np.where(scale > 0, products / np.where(scale > 0, scale, 1.0), nan)
