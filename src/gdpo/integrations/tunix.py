"""tunix: a reward manager that keeps the rewards apart, and an estimator that takes them."""

from importlib import import_module
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from gdpo._naming import did_you_mean
from gdpo.advantages.arrays import check_finite
from gdpo.errors import ConfigError
from gdpo.integrations._settings import Settings, make_settings


def register(
    name: str = "gdpo",
    *,
    reward_keys: list[str],
    reward_weights: dict[str, float] | list[float] | None = None,
    estimator: str = "gdpo",
    options: dict[str, Any] | None = None,
) -> None:
    """Give tunix `GRPOConfig(advantage_estimator="gdpo", reward_manager="gdpo")`.

    Args:
        name: What the configuration calls both.
        reward_keys: `__name__` of reward functions. NaN: does not apply.
        reward_weights: A number for each in their order, or by name; left out, all 1.
        estimator: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        options: Of the estimator, by name.

    Raises:
        ConfigError: Wrong settings, or an estimator with a state: tunix calls it for evaluation
            too. From the learner also a key that is no reward function's name.
    """
    settings = make_settings(estimator, reward_keys, reward_weights, options)
    if settings.rule.duals is not None or settings.rule.wants_token_counts:
        raise ConfigError(
            f"estimator {estimator!r} with the options {options}: tunix passes no token counts, "
            "and calls estimators for evaluation too, so that they cannot learn from a batch"
        )
    registry = import_module("tunix.rl.function_registry")
    sequence_level = registry.get_reward_manager("sequence-level")
    registry.register_reward_manager(name)(keeping_rewards(sequence_level, settings))
    registry.register_advantage_estimator(name)(advantages_by(settings))


def keeping_rewards(manager: type[Any], settings: Settings) -> type[Any]:
    """A reward manager of tunix, with the rewards by name in place of their sum."""

    class KeepingRewards(manager):
        """Logs what it did, and returns `rewards[row, reward]`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            names = [function.__name__ for function in self.reward_fns]
            for key in settings.names:
                if names.count(key) != 1:
                    raise ConfigError(
                        f"reward_keys names {key!r}, which must be the __name__ of one reward "
                        f"function: {did_you_mean(key, names)}"
                    )

        def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            info = super().__call__(*args, **kwargs)
            columns = [info["log_metrics"][f"rewards/{key}"][0] for key in settings.names]
            return {**info, "rewards": np.stack(columns, axis=-1)}

    return KeepingRewards


def advantages_by(settings: Settings) -> Any:
    """`(rewards, num_generations) -> advantages`, as tunix calls it for one batch."""

    def advantages(rewards: Any, num_generations: int) -> Any:
        if rewards.ndim != 2 or rewards.shape[1] != len(settings.names):
            raise ConfigError(
                f"the rewards have the shape {tuple(rewards.shape)}, and {len(settings.names)} per "
                "row are needed: set reward_manager to the name of advantage_estimator (agentic "
                "learners have only the sum of theirs)"
            )
        xp = array_namespace(rewards)
        groups = xp.reshape(rewards, (-1, num_generations, rewards.shape[1]))
        check_finite(groups, settings.names)
        return xp.reshape(settings.rule(groups, settings.weights), (-1,))

    return advantages
