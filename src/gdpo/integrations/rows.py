"""Converts rows of a framework's batch to `[prompt, sample, reward]`, and advantages back to rows.

A framework's rows are in any order and carry the id of their prompt. A batch may contain padding
rows and several rows of one rollout. This module computes no statistics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from gdpo._naming import did_you_mean
from gdpo.advantages import ESTIMATORS
from gdpo.advantages.arrays import check_finite
from gdpo.errors import ConfigError, DataError
from gdpo.integrations._settings import Settings

NAME = "gdpo"
"""A framework's own estimator of this name is replaced by ours."""


PREFIX = "gdpo/"
"""Prefix of our estimators' names in a framework, and of `module:attribute` for a user's own."""


def estimator_names() -> list[str]:
    """Return every name under which our estimators are registered in a framework."""
    return [NAME, *(f"{PREFIX}{name}" for name in ESTIMATORS)]


def is_ours(estimator: Any) -> bool:
    """Return whether a name (text or enum member) is one of our estimators."""
    name = as_text(estimator)
    return name == NAME or name.startswith(PREFIX)


def without_prefix(estimator: Any) -> str:
    """Return the key of `ESTIMATORS`, or `module:attribute`, behind one of our names."""
    return as_text(estimator).removeprefix(PREFIX)


def as_text(estimator: Any) -> str:
    """Return the name as text, also if a framework passes an enum member."""
    return str(getattr(estimator, "value", estimator))


Columns = Mapping[str, Any]
"""Maps a reward's name to one number or None per row."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Stores a batch of rewards by prompt, and the position of each row in it."""

    rewards: Float[np.ndarray, "prompt sample reward"]
    """Rewards. NaN: the reward does not apply, or the sample does not exist."""
    token_counts: Int[np.ndarray, "prompt sample"]
    """Trained tokens of each sample; 0 if the sample does not exist."""
    prompts: Int[np.ndarray, " row"]
    """Prompt index of each row; -1 for a row that is not counted."""
    samples: Int[np.ndarray, " row"]
    """Sample index of each row; -1 for a row that is not counted."""

    def per_row(self, advantages: Float[np.ndarray, "prompt sample"]) -> np.ndarray:
        """Return the advantage of each row; 0 for a row that is not counted."""
        values, counted = np.zeros(len(self.prompts)), self.prompts >= 0
        values[counted] = advantages[self.prompts[counted], self.samples[counted]]
        return values


def by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the rows as columns, with None where a row lacks a value."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def reward_columns(
    columns: Columns,
    names: Sequence[str],
    *,
    asked_by: str = "reward_keys",
    given_by: str = "the reward function",
) -> Float[np.ndarray, "row reward"]:
    """Return the rewards with these names, in this order. None and NaN: the reward does not apply.

    Args:
        columns: One number or None per row, by reward name.
        names: Names of the rewards.
        asked_by: The setting that names the rewards, for messages.
        given_by: What must return the rewards, for messages.

    Raises:
        ConfigError: If a column is missing. The message lists the existing ones.
        DataError: If a column contains a value that is not a number.
    """
    for name in names:
        if name not in columns:
            scores = [key for key, column in columns.items() if _holds_numbers(column)]
            raise ConfigError(
                f"{asked_by} names {name!r}, but no rollout of this batch has this reward: "
                f"{did_you_mean(name, scores)}. Correct the name, or return it from {given_by}"
            )
    return np.stack([_numbers(name, columns[name]) for name in names], axis=-1)


def as_groups(
    rewards: Float[np.ndarray, "row reward"],
    prompt_ids: Sequence[Any],
    token_counts: Int[np.ndarray, " row"],
    *,
    outputs: Sequence[int] | None = None,
    padding: Bool[np.ndarray, " row"] | None = None,
) -> Groups:
    """Return the rows grouped by prompt. Prompts and samples keep the order of the rows.

    Args:
        rewards: Rewards of each row.
        prompt_ids: Prompt id of each row. Rows of one prompt have equal ids.
        token_counts: Number of trained tokens of each row.
        outputs: For each row, the row that represents its rollout. None: every row is a rollout of
            its own.
        padding: True for padding rows, which are not counted. None: no padding.
    """
    rows = np.arange(len(rewards))
    counted_by = rows if outputs is None else np.asarray(outputs)
    counted = counted_by == rows if padding is None else (counted_by == rows) & ~padding
    prompts, samples, shape = _places(prompt_ids, counted)
    grid, counts = np.full((*shape, rewards.shape[1]), nan), np.zeros(shape, dtype=np.int64)
    grid[prompts[counted], samples[counted]] = rewards[counted]
    prompts, samples = prompts[counted_by], samples[counted_by]
    real = prompts >= 0
    np.add.at(counts, (prompts[real], samples[real]), token_counts[real])
    return Groups(grid, counts, prompts, samples)


def advantages_of(groups: Groups, settings: Settings) -> Float[np.ndarray, "prompt sample"]:
    """Return the advantages of a batch, and update the state of an estimator that has one.

    Raises:
        DataError: If a reward is infinite. The message names it.
    """
    check_finite(groups.rewards, settings.names)
    rule = settings.rule
    advantages = rule(groups.rewards, settings.weights, token_counts=groups.token_counts)
    rule.update(groups.rewards)
    return advantages


def _places(
    prompt_ids: Sequence[Any], counted: Bool[np.ndarray, " row"]
) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Return prompt and sample index of each row (-1: not counted), and the number of both."""
    prompts, samples = np.full(len(counted), -1), np.full(len(counted), -1)
    order: dict[Any, int] = {}
    sizes: list[int] = []
    for row in np.flatnonzero(counted).tolist():
        prompt = prompts[row] = order.setdefault(prompt_ids[row], len(order))
        if prompt == len(sizes):
            sizes.append(0)
        samples[row] = sizes[prompt]
        sizes[prompt] += 1
    return prompts, samples, (len(sizes), max(sizes, default=0))


def _numbers(name: str, column: Any) -> Float[np.ndarray, " row"]:
    if not _holds_numbers(column):
        odd = next(value for value in column if not _is_number(value))
        raise DataError(
            f"reward {name!r} has the value {odd!r:.80} ({type(odd).__name__}): return a number, "
            "or None if the reward does not apply"
        )
    return np.asarray(column, dtype=np.float64)


def _holds_numbers(column: Any) -> bool:
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    return kind in "biuf" or all(_is_number(value) for value in column)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float | np.number | np.bool_)
