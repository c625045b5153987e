"""What a configuration of any framework asks for: estimator, rewards, weights, options."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gdpo.advantages import AdvantageRule
from gdpo.advantages.registry import weights_by_name
from gdpo.errors import ConfigError
from gdpo.rewards.scorer import check_distinct

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """An estimator that is ready to be called, and which rewards it takes."""

    rule: AdvantageRule
    names: tuple[str, ...]
    """Of the rewards, as the reward function returns them."""
    weights: tuple[float, ...]


def make_settings(
    estimator: str, keys: Any, weights: Any, options: Any, *, place: str = ""
) -> Settings:
    """Settings of what a user wrote.

    Args:
        estimator: A key of `ESTIMATORS`, or `module:attribute`.
        keys: Names of the rewards.
        weights: A number for each in their order, or by name, or None: all 1.
        options: Of the estimator, by name, or None.
        place: What the user writes before `reward_keys`, `reward_weights` and `options`.

    Raises:
        ConfigError: An unknown estimator or option, or keys or weights that do not fit.
    """
    shown = place.lstrip("+")
    if not isinstance(keys, list | tuple) or not keys:
        raise ConfigError(
            f"{shown}reward_keys={keys!r}: list the rewards that the reward function returns, for "
            f"example {place}reward_keys=[correct,format]"
        )
    names = [str(key) for key in cast("Sequence[Any]", keys)]
    check_distinct(names)
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(
            f"{shown}options={options!r}: options of the estimator go by their names, for "
            f"example {place}options.max_advantage=5"
        )
    rule = AdvantageRule(estimator, names, options)
    if rule.duals is not None:
        logger.warning(
            "checkpoints do not hold the multipliers of %s: a run that is resumed starts them anew",
            estimator,
        )
    try:
        numbers = weights_by_name(names, _floats(weights))
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{shown}reward_weights={weights!r}: {error}. Give a number for each of reward_keys in "
            "their order, or a mapping by name"
        ) from error
    return Settings(rule=rule, names=tuple(names), weights=tuple(numbers))


def _floats(weights: Any) -> Any:
    if isinstance(weights, Mapping):
        by_name = cast("Mapping[str, Any]", weights)
        return {name: float(weight) for name, weight in by_name.items()}
    return None if weights is None else [float(weight) for weight in weights]
