"""Reads the estimator, rewards, weights and options from a framework's configuration."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gdpo.advantages import AdvantageRule
from gdpo.advantages.registry import weights_by_name
from gdpo.diagnostics.diagnosis import check_detail
from gdpo.errors import ConfigError
from gdpo.rewards.scorer import check_distinct

logger = logging.getLogger(__name__)

FIELDS = ("gdpo_reward_keys", "gdpo_reward_weights", "gdpo_options", "gdpo_diagnostics")
"""Fields of a framework's configuration for rewards, estimator and metrics."""


@dataclass(frozen=True, slots=True)
class Settings:
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
