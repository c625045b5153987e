"""Registers gdpo's estimators with tunix, and a reward manager that keeps rewards separate."""

import threading
from importlib import import_module
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from gdpo._naming import did_you_mean
from gdpo.advantages import AdvantageRule
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
) -> AdvantageRule:
    """Register an estimator and a reward manager with tunix.

    Select both with `GRPOConfig(advantage_estimator="gdpo", reward_manager="gdpo")`, of
    `tunix.rl.grpo` or of `tunix.rl.agentic`. An agentic learner passes one group at a time: set
    `options={"scale_half_life": 128}` for GDPO.

    Args:
        name: Name of the estimator and of the reward manager in the configuration.
        reward_keys: The `__name__` of each reward function. NaN means that a reward does not apply.
        reward_weights: One weight per reward, in the order of `reward_keys`, or a dict from reward
            name to weight. Default: all 1.
        estimator: The estimator's key in `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        options: The estimator's options, as a dict from name to value.

    Returns:
        The rule that computes the advantages. tunix's checkpoints do not contain its state: save
        `state()` and pass it to `restore()` to resume with the same running scale or multipliers.

    Raises:
        ConfigError: If the settings are invalid, or if the estimator uses token counts. This error
            is also raised when the learner is created if a key is not the name of exactly one
            reward function.
    """
    settings = make_settings(estimator, reward_keys, reward_weights, options)
    if settings.rule.wants_token_counts:
        raise ConfigError(
            f"tunix cannot run estimator {estimator!r} with options {options}: tunix passes no "
            "token counts. Remove the option token_counts"
        )
    registry = import_module("tunix.rl.function_registry")
    sequence_level = registry.get_reward_manager("sequence-level")
    computes = Estimator(settings)
    registry.register_reward_manager(name)(keeping_rewards(sequence_level, settings, computes))
    registry.register_advantage_estimator(name)(computes)
    return settings.rule


class _Latest(threading.local):
    """Stores the mode of the groups that the reward manager scored last in this thread."""

    mode = "train"


class Estimator:
    """Computes advantages when tunix calls the object, and updates the estimator's state.

    tunix calls the reward manager and then, in the same thread, the estimator. Only the reward
    manager gets the mode, training or evaluation, and stores it here.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._latest = _Latest()

    def set_mode(self, mode: str) -> None:
        """Store the mode, `train` or `eval`, of the groups that the next call is about."""
        self._latest.mode = mode

    def __call__(self, rewards: Any, num_generations: int) -> Any:
        """Return the advantage of each row.

        Args:
            rewards: Rewards `[row, reward]` from the reward manager.
            num_generations: Number of samples per prompt. The rows of a prompt are adjacent.
        """
        names, weights, rule = self._settings.names, self._settings.weights, self._settings.rule
        if rewards.ndim != 2 or rewards.shape[1] != len(names):
            raise ConfigError(
                f"the rewards have the shape {tuple(rewards.shape)}, but {len(names)} rewards per "
                "row are needed: set reward_manager to the same name as advantage_estimator"
            )
        xp = array_namespace(rewards)
        groups = xp.reshape(rewards, (-1, num_generations, rewards.shape[1]))
        check_finite(groups, names)
        advantages = rule(groups, weights)
        if self._latest.mode == "train":
            rule.update(groups, weights)
        return xp.reshape(advantages, (-1,))


def keeping_rewards(manager: type[Any], settings: Settings, estimator: Estimator) -> type[Any]:
    """Return a subclass of a tunix reward manager that returns each reward, not their sum.

    Args:
        manager: tunix's reward manager.
        settings: Names of the rewards.
        estimator: Object that gets the mode of each batch.
    """

    class KeepingRewards(manager):
        """Logs what the original manager logs, and returns `rewards[row, reward]`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            names = [getattr(function, "__name__", "") for function in self.reward_fns]
            for key in settings.names:
                if names.count(key) != 1:
                    raise ConfigError(
                        f"reward_keys lists {key!r}, which is not the __name__ of exactly one "
                        f"reward function: {did_you_mean(key, names)}"
                    )

        def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            estimator.set_mode(kwargs["mode"])
            info = super().__call__(*args, **kwargs)
            columns = [info["log_metrics"][f"rewards/{key}"][0] for key in settings.names]
            return {**info, "rewards": np.stack(columns, axis=-1)}

    return KeepingRewards
