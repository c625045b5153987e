"""Converts rows of a framework's batch to `[prompt, sample, reward]`, and advantages back to rows.

The rows may be in any order, and each has a prompt id. A batch may contain padding rows, and
several rows of the same rollout. An adapter is `make_settings` for a framework's configuration, and
`advantages_of_rows` for its batches. `examples/adapters` holds six.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdpo._naming import did_you_mean
from gdpo._shapes import Bool, Float, Int
from gdpo.advantages import AdvantageRule, Weights
from gdpo.advantages.arrays import check_finite
from gdpo.advantages.registry import weights_by_name
from gdpo.diagnostics import Watch, diagnose
from gdpo.diagnostics.diagnosis import check_detail
from gdpo.errors import ConfigError, DataError
from gdpo.integrations._turns import is_number, of_rollouts
from gdpo.rewards.scorer import check_distinct
from gdpo.rollouts.table import RewardArrays, RolloutTable, by_group

logger = logging.getLogger(__name__)

FIELDS = ("gdpo_reward_keys", "gdpo_reward_weights", "gdpo_options", "gdpo_diagnostics")
"""Fields of a framework's configuration for rewards, estimator and metrics."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Stores the settings of a framework that concern gdpo."""

    rule: AdvantageRule
    names: tuple[str, ...]
    """Names of the rewards that the reward function returns."""
    weights: tuple[float, ...]
    """One weight per reward, in the order of `names`."""
    detail: str = "brief"
    """Metrics of the diagnosis that are logged: `brief` or `full`."""
    weights_column: str | None = None
    """Column with weights of each prompt. None: the same weights for all prompts."""


def make_settings(
    estimator: str,
    keys: Any,
    weights: Any,
    options: Any,
    *,
    place: str = "",
    detail: Any = None,
    turns: bool = False,
) -> Settings:
    """Check the values of a user's configuration and return them as `Settings`.

    `keys` are the names of the rewards, and `place` is the prefix of the settings in messages.
    `turns` tells whether the caller has rewards for each turn, which estimators for turns need.

    Raises:
        ConfigError: If a value is unknown, or does not match the keys.
    """
    shown = place.lstrip("+")
    if not isinstance(keys, list | tuple) or not keys:
        raise ConfigError(
            f"{shown}reward_keys={keys!r}: write a list of reward names that the reward function "
            f"returns, for example {place}reward_keys=[correct,format]"
        )
    names = [str(key) for key in keys]
    check_distinct(names)
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(
            f"{shown}options={options!r}: write a mapping from option name to value, for "
            f"example {place}options.max_advantage=5"
        )
    rule = AdvantageRule(estimator, names, options, turns=turns)
    if state := rule.state():
        logger.warning(
            "the state of %s (%s) is not saved in checkpoints: a resumed run starts with the "
            "initial state",
            estimator,
            ", ".join(state),
        )
    try:
        numbers = weights_by_name(names, weights)
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{shown}reward_weights={weights!r}: {error}. Write one number per entry of "
            "reward_keys, in the same order, or a mapping from name to weight"
        ) from error
    detail = "brief" if detail is None else detail
    check_detail(detail, f"{shown}diagnostics")
    return Settings(rule=rule, names=tuple(names), weights=tuple(numbers), detail=detail)


__all__ = [
    "Groups",
    "Settings",
    "advantages_of",
    "advantages_of_rows",
    "as_groups",
    "make_settings",
    "reward_columns",
]

NAME = "gdpo"
"""Name of a framework's own GDPO. NeMo-RL's is replaced by `install`, verl's by `gdpo_replace`."""

PREFIX = "gdpo/"
"""Prefix of estimator names in a framework: `gdpo/<name>` or `gdpo/<module>:<attribute>`."""


def is_ours(estimator: Any) -> bool:
    """Return whether a name selects gdpo's estimators, if they replace a framework's GDPO."""
    name = as_text(estimator)
    return name == NAME or name.startswith(PREFIX)


def without_prefix(estimator: Any) -> str:
    return as_text(estimator).removeprefix(PREFIX)


def as_text(estimator: Any) -> str:
    return str(getattr(estimator, "value", estimator))


Columns = Mapping[str, Any]
"""Maps a reward name to a column, which has a number or None for each row."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Stores the rollouts of a batch by group, and the rollout of each row of the batch."""

    arrays: RewardArrays
    """The rollouts. `row` of their table is the row that represents each of them."""
    rollouts: Int[np.ndarray, " row"]
    """Index of the rollout of each row; -1 for padding rows."""
    starts: Int[np.ndarray, " row"]
    """Index, in the rollout, of the first turn of each row."""

    def per_row(self, advantages: Float[np.ndarray, "prompt sample *turn"]) -> np.ndarray:
        """Return the advantages of each row, starting at its first turn; padding rows get 0."""
        none = np.zeros((1, *advantages.shape[2:]))
        values = np.concatenate([self.arrays.by_rollout(advantages), none])[self.rollouts]
        if advantages.ndim == 2:
            return values
        longest = values.shape[1]
        turns = np.minimum(self.starts[:, None] + np.arange(longest), longest - 1)
        return np.take_along_axis(values, turns, axis=1)


def by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Convert rows to columns, with None where a row has no value."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def reward_columns(
    columns: Columns,
    names: Sequence[str],
    *,
    asked_by: str = "reward_keys",
    given_by: str = "the reward function",
) -> Float[np.ndarray, "row reward"]:
    """Return the named rewards as an array, with NaN where a reward does not apply.

    Args:
        columns: Maps each reward name to a number or None for each row.
        names: Names of the rewards, in the order of the returned columns.
        asked_by: Setting that lists the rewards, for error messages.
        given_by: Function that must return the rewards, for error messages.

    Raises:
        ConfigError: If a column is missing.
        DataError: If a column contains anything but numbers.
    """
    for name in names:
        if name not in columns:
            scores = [key for key, column in columns.items() if _holds_numbers(column)]
            raise ConfigError(
                f"{asked_by} lists {name!r}, but no rollout in this batch has this reward: "
                f"{did_you_mean(name, scores)}. Correct the name, or return the reward from "
                f"{given_by}"
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
    """Group the rows by prompt. Prompts and samples keep the order of the rows.

    Args:
        rewards: Rewards of each row.
        prompt_ids: Prompt id of each row.
        token_counts: Number of trained tokens of each row.
        outputs: For each row, the index of the row that represents its rollout. None: itself.
        padding: True for rows that are left out. None: no row.
    """
    rows = np.arange(len(rewards))
    counted_by = rows if outputs is None else np.asarray(outputs)
    counted = np.flatnonzero(
        counted_by == rows if padding is None else (counted_by == rows) & ~padding
    )
    rollouts = np.full(len(rows), -1)
    rollouts[counted] = np.arange(len(counted))
    rollouts = rollouts[counted_by]
    order: dict[Any, int] = {}
    groups = [order.setdefault(prompt_ids[row], len(order)) for row in counted.tolist()]
    real = rollouts >= 0
    table = RolloutTable.of(
        tuple(map(str, range(rewards.shape[1]))),
        rewards[counted],
        np.array(groups, np.int64),
        num_tokens=np.bincount(rollouts[real], token_counts[real], len(counted)).astype(float),
        row=counted,
    )
    return Groups(table.grouped(), rollouts, np.zeros_like(rows))


def advantages_of_rows(
    rows: Sequence[Mapping[str, Any]],
    settings: Settings,
    prompt_ids: Sequence[Any],
    token_counts: Sequence[int],
    *,
    rollout_ids: Sequence[Any] | None = None,
    asked_by: str = "reward_keys",
    given_by: str = "the reward function",
) -> Float[np.ndarray, " row"]:
    """Return the advantage of each row, and update the estimator's state if it has one.

    Args:
        rows: Rewards of each row, by name. A reward that is absent, None or NaN does not apply.
        settings: Estimator, names and weights of the rewards.
        prompt_ids: Prompt id of each row. Rows with the same prompt form a group.
        token_counts: Number of trained tokens of each row.
        rollout_ids: Rollout id of each row. Rows with the same id count as one rollout, and rows
            without one (None) as one each.
        asked_by: Setting that lists the rewards, for error messages.
        given_by: Function that must return the rewards, for error messages.

    Raises:
        ConfigError: If no row has one of the rewards.
        DataError: If a reward is infinite or not a number, or if rows of one rollout have different
            rewards.
    """
    rewards = reward_columns(by_name(rows), settings.names, asked_by=asked_by, given_by=given_by)
    ids = [None] * len(rows) if rollout_ids is None else rollout_ids
    last = {name: row for row, name in enumerate(ids) if name is not None}
    outputs = [last.get(name, row) for row, name in enumerate(ids)]
    if not np.array_equal(rewards, rewards[outputs], equal_nan=True):
        raise DataError(
            "rows with the same rollout_id have different rewards: give them the same rewards, or "
            "different rollout_ids"
        )
    groups = as_groups(rewards, prompt_ids, np.asarray(token_counts), outputs=outputs)
    return groups.per_row(advantages_of(groups, settings))


def advantages_of(
    groups: Groups, settings: Settings, *, update: bool = True
) -> Float[np.ndarray, "prompt sample"] | Float[np.ndarray, "prompt sample turn"]:
    """Return the advantages of a batch (those of turns if the estimator wants turns).

    The estimator's state is updated, except with `update=False`, for an evaluation. An infinite
    reward raises a DataError that identifies it.
    """
    arrays, rule = groups.arrays, settings.rule
    check_finite(arrays.rewards, settings.names)
    weights = arrays.weights_or(settings.weights)
    if rule.wants_turns:
        turns = arrays.turns
        advantages = rule(turns.rewards, weights, turns=turns.counts)
    else:
        tokens = np.nan_to_num(arrays.num_tokens)
        advantages = rule(arrays.rewards, weights, token_counts=tokens)
    if update:
        rule.update(arrays.rewards, weights)
    return advantages


def _numbers(name: str, column: Any) -> Float[np.ndarray, " row"]:
    if not _holds_numbers(column):
        odd = next(value for value in column if not is_number(value))
        raise DataError(
            f"reward {name!r} has the value {odd!r:.80} ({type(odd).__name__}): return a number, "
            "or None if the reward does not apply"
        )
    return np.asarray(column, dtype=np.float64)


def _holds_numbers(column: Any) -> bool:
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    return kind in "biuf" or all(is_number(value) for value in column)


@dataclass(frozen=True, slots=True)
class Computed:
    settings: Settings
    groups: Groups
    advantages: Float[np.ndarray, "prompt sample"]
    of_turns: Float[np.ndarray, "prompt sample *turn"]
    """Advantages of each turn, if the estimator wants turns. Otherwise, those of the rollouts."""
    weights: Weights
    """The weights in force in this batch, `[reward]` or `[prompt, reward]`."""
    recorded: Weights
    """The weights for the record (see `AdvantageRule.recorded_weights`)."""
    changing: Mapping[str, float]
    """`AdvantageRule.metrics()` of this batch."""
    watched: str | None = None
    """Name of the framework's estimator, if it computed the advantages. None: the settings' rule
    did."""

    def record(self) -> RolloutTable:
        """Return the rollouts with what was trained on, for the record."""
        arrays, names = self.groups.arrays, self.settings.names
        table, prompts = arrays.table, len(arrays.rewards)
        weights = np.broadcast_to(self.recorded, (prompts, len(names)))[table.groups]
        columns = {"names": names, "weights": weights, "turns": table.turns}
        if table.turns is not None:
            each = arrays.by_rollout(self.of_turns).reshape(len(table), -1)
            of_turns = np.broadcast_to(each, table.turns.num_tokens.shape)
            columns["turns"] = replace(table.turns, advantages=of_turns)
        return replace(table, advantages=arrays.by_rollout(self.advantages), **columns)

    def metrics(self, watch: Watch) -> dict[str, float]:
        """Return the metrics of each reward (`gdpo/<reward>/...`) and of the batch (`gdpo/...`).

        The result contains `Diagnosis.metrics()` with the detail of the settings, the mean of each
        reward, which the frameworks do not log, and the metrics of the estimator's state. Each
        warning of `watch` is logged.
        """
        found = diagnose(
            self.groups.arrays.rewards,
            self.weights,
            self.settings.names,
            estimator=self.watched or self.settings.rule.name,
            advantages=self.advantages,
        )
        diagnosis = watch.update(found)
        for finding in watch.due:
            logger.warning("gdpo: %s", finding.line)
        metrics = {
            **{f"rewards/{r.name}/mean": r.mean for r in diagnosis.rewards if r.mean is not None},
            **diagnosis.metrics(detail=self.settings.detail),
            **self.changing,
        }
        return {f"gdpo/{key.partition('/')[2]}": value for key, value in metrics.items()}


def compute(groups: Groups, settings: Settings) -> Computed:
    given, rule = groups.arrays.weights_or(settings.weights), settings.rule
    weights, recorded = rule.weights_in_force(given), rule.recorded_weights(given)
    changing = rule.metrics(settings.names, settings.weights)
    of_turns = advantages_of(groups, settings)  # this updates the state of the rule
    counts = by_group(groups.arrays.table.by_turn.counts, groups.arrays.placed, padding=0)
    advantages = of_rollouts(of_turns, counts)
    return Computed(settings, groups, advantages, of_turns, weights, recorded, changing)
