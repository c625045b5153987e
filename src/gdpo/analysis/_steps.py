"""One step of a run: the diagnosis of its rewards, and what else its rollouts say."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from jaxtyping import Float, Int

from gdpo._naming import did_you_mean
from gdpo.advantages.stages import BATCH, SAMPLES, mean
from gdpo.analysis._seen import Seen
from gdpo.diagnostics import Diagnosis, diagnose
from gdpo.diagnostics.step import Bounds
from gdpo.errors import ConfigError
from gdpo.rollouts.readers import RolloutTable
from gdpo.rollouts.readers.table import places

UNKNOWN_WEIGHTS = "all 1, as none are known"


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
    """`asked for`, `the dump` or `UNKNOWN_WEIGHTS`, and of both where some were asked for."""
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
    left_out = len(table) - len(trained)
    used = table if not left_out else table.take(trained)
    arrays = used.grouped()
    given, said_by = arrays.weights, UNKNOWN_WEIGHTS if table.weights is None else "the dump"
    if weights is not None:
        others = ""
        if set(table.names) - set(weights):
            others = ", others 1" if table.weights is None else ", others by the dump"
        named = zip(table.names, given, strict=True)
        given = tuple(float(weights.get(name, weight)) for name, weight in named)
        said_by = f"asked for{others}"
    recorded = bool(np.all(np.isfinite(used.advantages)))
    advantages = arrays.advantages if recorded else None
    placed = np.full(arrays.rewards.shape[:2], -1)
    placed[places(used.groups)] = np.arange(len(used))
    return Batch(used, arrays.rewards, given, said_by, advantages, left_out, placed)


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
    seen = Seen()
    for table in tables:
        batch = batch_of(table, weights)
        names |= dict.fromkeys(table.names)
        if batch is not None:
            yield analyze_step(batch, seen, estimator=estimator, low=low, high=high)
    check_weights(weights, names)


def analyze_step(
    batch: Batch, seen: Seen, *, estimator: str = "grpo", low: Bounds = None, high: Bounds = None
) -> StepAnalysis:
    """Diagnose one step; `seen` is of the steps before it, the others are as in `analyze_steps`."""
    used, recorded = batch.table, batch.advantages is not None
    low, high = bounds_of(used, low, high)
    diagnosis = diagnose(
        batch.rewards,
        batch.weights,
        used.names,
        estimator=None if recorded else estimator,
        advantages=batch.advantages,
        low=low,
        high=high,
    )
    return StepAnalysis(
        run=used.run,
        step=int(used.steps[0]),
        rollouts=len(used),
        diagnosis=seen.judged(used, diagnosis),
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
            raise ConfigError(
                f"{what} name {name!r}, which is no reward: {did_you_mean(name, known)}"
            )


def bounds_of(table: RolloutTable, low: Bounds, high: Bounds) -> tuple[Bounds, Bounds]:
    """Return the bounds of the rewards of a step: those given, and for the rest those declared."""
    lowest = {name: known[0] for name, known in table.ranges.items()}
    highest = {name: known[1] for name, known in table.ranges.items()}
    return _completed(low, lowest, table.names), _completed(high, highest, table.names)


def _completed(given: Bounds, declared: Mapping[str, float], names: Sequence[str]) -> Bounds:
    if given is not None and not isinstance(given, Mapping):
        return given
    return {name: bound for name, bound in {**declared, **(given or {})}.items() if name in names}


def _mean(values: Float[np.ndarray, " rollout"]) -> float:
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else nan


def _with_length(batch: Batch) -> Float[np.ndarray, " reward"]:
    r"""$\sum a b / \sqrt{\sum a^2 \sum b^2}$ of a reward and the tokens, centred in each group."""
    tokens = np.where(batch.placed >= 0, batch.table.num_tokens[batch.placed], nan)[..., None]
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
