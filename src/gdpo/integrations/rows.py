"""Rows of a framework's batch on their way into `[prompt, sample, reward]`, and advantages back.

Frameworks have rows in any order, with a prompt's id on each; a batch may hold rows that only fill
it up, and several rows of one rollout. No statistics in here.
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
"""The estimator that a framework has under this name is replaced by ours."""


PREFIX = "gdpo/"
"""Before the name of each of our estimators; before `module:attribute` for one of the user's."""


def estimator_names() -> list[str]:
    """Every name that one of ours stands behind."""
    return [NAME, *(f"{PREFIX}{name}" for name in ESTIMATORS)]


def is_ours(estimator: Any) -> bool:
    """Whether a name is for us; it may be a member of a framework's enumeration."""
    name = as_text(estimator)
    return name == NAME or name.startswith(PREFIX)


def without_prefix(estimator: Any) -> str:
    """A key of `ESTIMATORS`, or `module:attribute`, of a name that is for us."""
    return as_text(estimator).removeprefix(PREFIX)


def as_text(estimator: Any) -> str:
    """The name, where a framework has an enumeration of them."""
    return str(getattr(estimator, "value", estimator))


Columns = Mapping[str, Any]
"""By name of the reward, one number or None for each row."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A batch of rewards by prompt, and where its rows went."""

    rewards: Float[np.ndarray, "prompt sample reward"]
    """NaN: does not apply, or there is no such sample."""
    token_counts: Int[np.ndarray, "prompt sample"]
    """Tokens that are trained, of each sample; 0 where there is none."""
    prompts: Int[np.ndarray, " row"]
    """Of each row; -1 of one that is not counted."""
    samples: Int[np.ndarray, " row"]

    def per_row(self, advantages: Float[np.ndarray, "prompt sample"]) -> np.ndarray:
        """The advantage of each row; 0 of one that is not counted."""
        values, counted = np.zeros(len(self.prompts)), self.prompts >= 0
        values[counted] = advantages[self.prompts[counted], self.samples[counted]]
        return values


def by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Columns of rows; None where a row lacks one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def reward_columns(
    columns: Columns,
    names: Sequence[str],
    *,
    asked_by: str = "reward_keys",
    given_by: str = "the reward function must return",
) -> Float[np.ndarray, "row reward"]:
    """The rewards of these names, in this order. `None` and NaN: does not apply.

    Args:
        columns: Numbers of each row, by name.
        names: Of the rewards.
        asked_by: The setting that names them, for messages.
        given_by: What must hold them, for messages.

    Raises:
        ConfigError: There is no such column; the message says which there are.
        DataError: A column holds what is no number.
    """
    for name in names:
        if name not in columns:
            scores = [key for key, column in columns.items() if _holds_numbers(column)]
            raise ConfigError(
                f"{asked_by} names {name!r}, which no rollout of this batch has: "
                f"{did_you_mean(name, scores)}. {given_by} one entry per reward"
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
    """Rows by prompt; prompts, and the samples of each, in the order in which they come.

    Args:
        rewards: Of each row.
        prompt_ids: Rows of one prompt have equal ones.
        token_counts: Tokens of each row that are trained.
        outputs: For each row, the row that its rollout is counted by; None: each by its own.
        padding: Rows that only fill the batch up.
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
    """What the estimator makes of a batch; a rule with state learns from it.

    Raises:
        DataError: An infinite reward; the message names it.
    """
    check_finite(groups.rewards, settings.names)
    rule = settings.rule
    advantages = rule(groups.rewards, settings.weights, token_counts=groups.token_counts)
    rule.update(groups.rewards)
    return advantages


def _places(
    prompt_ids: Sequence[Any], counted: Bool[np.ndarray, " row"]
) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Prompt and sample of each row, -1 where it is not counted; their numbers in all."""
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
            f"reward {name!r} is {odd!r:.80} on some rollout, a {type(odd).__name__}: "
            "it must be a number, or None where it does not apply"
        )
    return np.asarray(column, dtype=np.float64)


def _holds_numbers(column: Any) -> bool:
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    return kind in "biuf" or all(_is_number(value) for value in column)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float | np.number | np.bool_)
