"""Converts rows of a framework's batch to `[prompt, sample, reward]`, and advantages back to rows.

The rows may be in any order, and each has a prompt id. A batch may contain padding rows, and
several rows of the same rollout. An adapter is `make_settings` for a framework's configuration, and
`advantages_of_rows` for its batches. `examples/adapters` holds six.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, cast

import numpy as np

from gdpo._naming import did_you_mean
from gdpo._shapes import Bool, Float, Int
from gdpo.advantages import AdvantageRule, Weights
from gdpo.advantages.arrays import check_finite
from gdpo.advantages.registry import weights_by_name
from gdpo.diagnostics import Watch, diagnose
from gdpo.diagnostics.diagnosis import check_detail
from gdpo.errors import ConfigError, DataError
from gdpo.integrations._turns import Turns, is_number
from gdpo.rewards.scorer import check_distinct

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
    names = [str(key) for key in cast("Sequence[Any]", keys)]
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
    """Stores the rewards of a batch, grouped by prompt, and the position of each row."""

    rewards: Float[np.ndarray, "prompt sample reward"]
    """Rewards. NaN means that the reward does not apply, or that the sample does not exist."""
    token_counts: Int[np.ndarray, "prompt sample"]
    """Number of trained tokens of each sample; 0 if the sample does not exist."""
    prompts: Int[np.ndarray, " row"]
    """Prompt index of each row; -1 for padding rows."""
    samples: Int[np.ndarray, " row"]
    """Sample index of each row; -1 for padding rows."""
    weights: Float[np.ndarray, "prompt reward"] | None = None
    """Weights of each prompt. None: the configured weights, for every prompt."""
    turns: Turns | None = None
    """Rewards of each turn, whose totals are `rewards`. None: the rollouts have no turns."""

    def with_weights(self, rows: Float[np.ndarray, "row reward"]) -> "Groups":
        """Return the groups with weights of each prompt, given the weights of each row.

        NaN means that the reward does not apply; its rewards become NaN and its weight 0.
        """
        weights = np.zeros((len(self.rewards), self.rewards.shape[-1]))
        real = self.prompts >= 0
        weights[self.prompts[real]] = rows[real]
        rewards = np.where(np.isnan(weights)[:, None], nan, self.rewards)
        turns = self.turns
        if turns is not None:
            of_turns = np.where(np.isnan(weights)[:, None, None], nan, turns.rewards)
            turns = replace(turns, rewards=of_turns)
        return replace(self, rewards=rewards, weights=np.nan_to_num(weights), turns=turns)

    def per_rollout(
        self, values: Float[np.ndarray, " row"], outputs: Sequence[int] | None
    ) -> Float[np.ndarray, "prompt sample"]:
        """Return the value of each rollout, from the row that represents it. Padding gets 0."""
        rows = np.arange(len(values))
        counted = (rows == (rows if outputs is None else np.asarray(outputs))) & (self.prompts >= 0)
        grid = np.zeros(self.token_counts.shape)
        grid[self.prompts[counted], self.samples[counted]] = values[counted]
        return grid

    def per_row(self, advantages: Float[np.ndarray, "prompt sample *turn"]) -> np.ndarray:
        """Return the advantages of the rollout of each row; padding rows get 0."""
        values = np.zeros((len(self.prompts), *advantages.shape[2:]))
        counted = self.prompts >= 0
        values[counted] = advantages[self.prompts[counted], self.samples[counted]]
        return values

    def per_row_and_turn(
        self, advantages: Float[np.ndarray, "prompt sample turn"]
    ) -> Float[np.ndarray, "row turn"]:
        """Return the advantage of each turn of each row, starting at the row's first turn."""
        assert self.turns is not None, "advantages of turns without turns"
        values = self.per_row(advantages)
        longest = values.shape[1]
        turns = np.minimum(self.turns.starts[:, None] + np.arange(longest), longest - 1)
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
    counted = counted_by == rows if padding is None else (counted_by == rows) & ~padding
    prompts, samples = np.full(len(counted), -1), np.full(len(counted), -1)
    order: dict[Any, int] = {}
    sizes: list[int] = []
    for row in np.flatnonzero(counted).tolist():
        prompt = prompts[row] = order.setdefault(prompt_ids[row], len(order))
        if prompt == len(sizes):
            sizes.append(0)
        samples[row] = sizes[prompt]
        sizes[prompt] += 1
    shape = (len(sizes), max(sizes, default=0))
    grid, counts = np.full((*shape, rewards.shape[1]), nan), np.zeros(shape, dtype=np.int64)
    grid[prompts[counted], samples[counted]] = rewards[counted]
    prompts, samples = prompts[counted_by], samples[counted_by]
    real = prompts >= 0
    np.add.at(counts, (prompts[real], samples[real]), token_counts[real])
    return Groups(grid, counts, prompts, samples)


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
    check_finite(groups.rewards, settings.names)
    rule = settings.rule
    weights = settings.weights if groups.weights is None else groups.weights
    if rule.wants_turns:
        assert groups.turns is not None, "an estimator for turns without turns"
        advantages = rule(groups.turns.rewards, weights, turns=groups.turns.counts)
    else:
        advantages = rule(groups.rewards, weights, token_counts=groups.token_counts)
    if update:
        rule.update(groups.rewards, weights)
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
    weights: Weights
    """The weights in force in this batch, `[reward]` or `[prompt, reward]`."""
    changing: Mapping[str, float]
    """`AdvantageRule.metrics()` of this batch."""
    watched: str | None = None
    """Name of the framework's estimator, if it computed the advantages. None: the settings' rule
    did."""
    of_turns: Float[np.ndarray, "prompt sample turn"] | None = None
    """Advantages of each turn, whose means are `advantages`. None: each rollout has only one."""

    def metrics(self, watch: Watch) -> dict[str, float]:
        """Return the metrics of each reward (`gdpo/<reward>/...`) and of the batch (`gdpo/...`).

        The result contains `Diagnosis.metrics()` with the detail of the settings, the mean of each
        reward, which the frameworks do not log, and the metrics of the estimator's state. Each
        warning of `watch` is logged.
        """
        found = diagnose(
            self.groups.rewards,
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
    rule = settings.rule
    own = groups.weights
    weights = rule.weights_in_force(settings.weights if own is None else own)
    changing = rule.metrics(settings.names, settings.weights)
    advantages = advantages_of(groups, settings)
    if not rule.wants_turns:
        return Computed(settings, groups, advantages, weights, changing)
    assert groups.turns is not None, "an estimator for turns without turns"
    means = groups.turns.means(advantages)
    return Computed(settings, groups, means, weights, changing, of_turns=advantages)
