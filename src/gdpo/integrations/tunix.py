"""Registers gdpo's estimators with tunix, and a reward manager that keeps rewards separate."""

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
    """Register an estimator and a reward manager with tunix.

    Select both with `GRPOConfig(advantage_estimator="gdpo", reward_manager="gdpo")`.

    Args:
        name: Name of the estimator and of the reward manager in the configuration.
        reward_keys: The `__name__` of each reward function. NaN means that a reward does not apply.
        reward_weights: One weight per reward, in the order of `reward_keys`, or a dict from reward
            name to weight. Default: all 1.
        estimator: The estimator's key in `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        options: The estimator's options, as a dict from name to value.

    Raises:
        ConfigError: If the settings are invalid, or if the estimator has a state or uses token
            counts. This error is also raised when the learner is created if a key is not the name
            of exactly one reward function.
    """
    settings = make_settings(estimator, reward_keys, reward_weights, options)
    if settings.rule.duals is not None or settings.rule.wants_token_counts:
        raise ConfigError(
            f"tunix cannot run estimator {estimator!r} with options {options}: tunix passes no "
            "token counts, and also calls estimators during evaluation. Choose an estimator "
            "without a state and without token_counts"
        )
    registry = import_module("tunix.rl.function_registry")
    sequence_level = registry.get_reward_manager("sequence-level")
    registry.register_reward_manager(name)(keeping_rewards(sequence_level, settings))
    registry.register_advantage_estimator(name)(advantages_by(settings))


def keeping_rewards(manager: type[Any], settings: Settings) -> type[Any]:
    """Return a subclass of a tunix reward manager that returns each reward, not their sum."""

    class KeepingRewards(manager):
        """Logs what the original manager logs, and returns `rewards[row, reward]`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            names = [function.__name__ for function in self.reward_fns]
            for key in settings.names:
                if names.count(key) != 1:
                    raise ConfigError(
                        f"reward_keys lists {key!r}, which is not the __name__ of exactly one "
                        f"reward function: {did_you_mean(key, names)}"
                    )

        def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            info = super().__call__(*args, **kwargs)
            columns = [info["log_metrics"][f"rewards/{key}"][0] for key in settings.names]
            return {**info, "rewards": np.stack(columns, axis=-1)}

    return KeepingRewards


def advantages_by(settings: Settings) -> Any:
    """Return the function `(rewards, num_generations) -> advantages` that tunix calls per batch."""

    def advantages(rewards: Any, num_generations: int) -> Any:
        if rewards.ndim != 2 or rewards.shape[1] != len(settings.names):
            raise ConfigError(
                f"the rewards have the shape {tuple(rewards.shape)}, but {len(settings.names)} "
                "rewards per row are needed: set reward_manager to the same name as "
                "advantage_estimator. Agentic learners pass only the sum and are not supported"
            )
        xp = array_namespace(rewards)
        groups = xp.reshape(rewards, (-1, num_generations, rewards.shape[1]))
        check_finite(groups, settings.names)
        return xp.reshape(settings.rule(groups, settings.weights), (-1,))

    return advantages
