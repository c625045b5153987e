"""One step of a run: the diagnosis of its rewards, and what else its rollouts say."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, nan
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from gdpo._naming import did_you_mean
from gdpo.advantages.stages import BATCH, SAMPLES, mean
from gdpo.diagnostics import Diagnosis, Finding, Thresholds, diagnose
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.errors import ConfigError
from gdpo.rollouts.readers import RolloutTable

Bounds: TypeAlias = Mapping[str, float] | None
"""By the name of the reward, for those whose bound is known."""

UNKNOWN_WEIGHTS = "not recorded, so 1 for each reward"


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
    """`as given`, `recorded` or `UNKNOWN_WEIGHTS`, and `others ...` if only some were given."""
    left_out: int
    """Rollouts that were scored and not trained on."""
    cut: float
    """Share of completions that ended at their limit of tokens."""
    num_tokens: float
    """Of a completion, mean."""
    with_length: tuple[float, ...]
    """Of each reward with the number of tokens: correlation in groups, after both lost the mean of
    their group."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rollouts that one step trained on, as arrays."""

    table: RolloutTable
    rewards: Float[np.ndarray, "prompt sample reward"]
    """NaN: does not apply, or there is no such rollout."""
    weights: tuple[float, ...]
    weights_from: str
    advantages: Float[np.ndarray, "prompt sample"] | None
    """Those of the dump; None: it lacks some."""
    left_out: int
    placed: Int[np.ndarray, "prompt sample"]
    """Which rollout of the table stands where; -1: none."""

    @property
    def there(self) -> Bool[np.ndarray, "prompt sample"]:
        """Where there is a rollout."""
        return self.placed >= 0

    @property
    def num_tokens(self) -> Float[np.ndarray, "prompt sample"]:
        """Tokens of each completion; NaN: not known, or there is no such rollout."""
        return np.where(self.there, self.table.num_tokens[self.placed], nan)


def batch_of(table: RolloutTable, weights: Mapping[str, float] | None = None) -> Batch | None:
    """The arrays of one step; None: it has no rewards, or nothing of it was trained on.

    Args:
        table: One step.
        weights: By the name of the reward; of others and left out: those of the dump, else 1.

    Raises:
        DataError: Groups of so different a size that they have no common shape.
    """
    trained = np.flatnonzero(table.trained)
    if not table.names or not len(trained):
        return None
    used = table.take(trained) if len(trained) < len(table) else table
    arrays = used.grouped()
    given, weights_from = arrays.weights, UNKNOWN_WEIGHTS if table.weights is None else "recorded"
    if weights is not None:
        others = ""
        if set(table.names) - set(weights):
            others = ", others 1" if table.weights is None else ", others recorded"
        named = zip(table.names, given, strict=True)
        given = tuple(float(weights.get(name, weight)) for name, weight in named)
        weights_from = f"as given{others}"
    numbered = replace(used, names=("number",), weights=None, rewards=np.arange(len(used))[:, None])
    return Batch(
        table=used,
        rewards=arrays.rewards,
        weights=given,
        weights_from=weights_from,
        advantages=arrays.advantages if np.all(np.isfinite(used.advantages)) else None,
        left_out=len(table) - len(trained),
        placed=np.nan_to_num(numbered.grouped().rewards[..., 0], nan=-1).astype(np.int64),
    )


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
        weights: By the name of the reward; of others and left out: those of the dump, else 1.
        estimator: What makes the advantages of a step whose dump has none for some rollout.
        low: Lowest value of each reward, by name; of others and left out: those that the files
            declare.
        high: Highest value, likewise.

    Raises:
        ConfigError: A weight of a reward that no step has, or an unknown estimator.
        DataError: Groups of so different a size that they have no common shape.
    """
    names: dict[str, None] = {}
    ranges = RangesSoFar()
    for table in tables:
        batch = batch_of(table, weights)
        names |= dict.fromkeys(table.names)
        if batch is not None:
            yield analyze_step(batch, ranges, estimator=estimator, low=low, high=high)
    check_weights(weights, names)


def analyze_step(
    batch: Batch,
    ranges: "RangesSoFar",
    *,
    estimator: str = "grpo",
    recorded_by: str | None = None,
    low: Bounds = None,
    high: Bounds = None,
) -> StepAnalysis:
    """Diagnose one step.

    Args:
        batch: The step.
        ranges: Of the steps before it; takes this one in.
        estimator: As in `analyze_steps`.
        recorded_by: The estimator that made the advantages of the dump; None: unknown.
        low: As in `analyze_steps`.
        high: Likewise.
    """
    used, recorded = batch.table, batch.advantages is not None
    diagnosis = diagnose(
        batch.rewards,
        batch.weights,
        used.names,
        estimator=recorded_by if recorded else estimator,
        advantages=batch.advantages,
        low=_known(used, low, 0),
        high=_known(used, high, 1),
    )
    return StepAnalysis(
        run=used.run,
        step=int(used.steps[0]),
        rollouts=len(used),
        diagnosis=ranges.judged(used, diagnosis),
        recorded=recorded,
        weights_from=batch.weights_from,
        left_out=batch.left_out,
        cut=_mean(used.cut),
        num_tokens=_mean(used.num_tokens),
        with_length=tuple(_with_length(batch).tolist()),
    )


def check_weights(
    weights: Mapping[str, float] | None, names: Iterable[str], *, what: str = "weights"
) -> None:
    """Raise a ConfigError if a weight, or `what` they are, is of none of the rewards there are."""
    known = list(names)
    for name in weights or ():
        if known and name not in known:
            raise ConfigError(f"{what}: unknown reward {name!r}: {did_you_mean(name, known)}")


def _known(table: RolloutTable, given: Bounds, end: int) -> dict[str, float]:
    """The bounds of the rewards of a step: those given, and for the rest those declared."""
    bounds = {name: declared[end] for name, declared in table.ranges.items()} | dict(given or {})
    return {name: bound for name, bound in bounds.items() if name in table.names}


def _mean(values: Float[np.ndarray, " rollout"]) -> float:
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else nan


def _with_length(batch: Batch) -> Float[np.ndarray, " reward"]:
    r"""$\sum a b / \sqrt{\sum a^2 \sum b^2}$ of a reward and the tokens, centred in each group."""
    tokens = batch.num_tokens[..., None]
    known = ~np.isnan(batch.rewards) & ~np.isnan(tokens)
    a, b = (_centred(np.where(known, values, nan)) for values in (batch.rewards, tokens))
    products = np.sum(a * b, axis=BATCH)
    scale = np.sqrt(np.sum(a * a, axis=BATCH) * np.sum(b * b, axis=BATCH))
    return np.where(scale > 0, products / np.where(scale > 0, scale, 1.0), nan)


def _centred(
    values: Float[np.ndarray, "prompt sample reward"],
) -> Float[np.ndarray, "prompt sample reward"]:
    """0 where a value is missing."""
    centred = values - mean(values, over=SAMPLES)
    largest = np.max(np.abs(values), axis=BATCH, initial=0.0, where=~np.isnan(values))
    # What is left of a group without spread is rounding, and no correlation.
    return np.where(np.abs(centred) > 1e-12 * largest, centred, 0.0)


class RangesSoFar:
    """The lowest and the highest value of each reward so far, run by run.

    They are the next best thing where the range of a reward is not declared.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], tuple[float, float]] = {}

    def judged(self, table: RolloutTable, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis with a note for each reward that is constant at its highest so far.

        Such a reward is probably learned. Where its range is known, the diagnosis says so already.

        Args:
            table: The next rollouts of the run.
            diagnosis: What was found in them.
        """
        for name, values in zip(table.names, table.rewards.T, strict=True):
            known = values[~np.isnan(values)]
            low, high = self._values.get((table.run, name), (inf, -inf))
            self._values[table.run, name] = (
                float(np.min(known, initial=low)),
                float(np.max(known, initial=high)),
            )
        found = (self._judged(finding, diagnosis, table.run) for finding in diagnosis.findings)
        return replace(diagnosis, findings=tuple(found))

    def _judged(self, finding: Finding, diagnosis: Diagnosis, run: str) -> Finding:
        if finding.kind is not Kind.CONSTANT or "saturation" in finding.evidence:
            return finding
        (reward,) = (each for each in diagnosis.rewards if each.name in finding.rewards)
        low, high = self._values[run, reward.name]
        if reward.mean is None or reward.weight < 0 or low >= high:
            return finding
        if (reward.mean - low) / (high - low) < Thresholds().top:
            return finding
        message = f"{finding.message}. It was never higher in this run, so it is probably learned"
        return replace(finding, severity=Severity.NOTE, message=message)
