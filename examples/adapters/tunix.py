"""Registers a gdpo estimator with tunix, and a reward manager that keeps the rewards separate.

Copy this file as gdpo_tunix.py next to your script. docs/how-to/tunix.md has the settings.
"""

import threading
from typing import Any

import numpy as np
from tunix.rl import function_registry

from gdpo import ConfigError
from gdpo.advantages import AdvantageRule
from gdpo.integrations.rows import advantages_of, as_groups, make_settings


class Latest(threading.local):
    """Stores the mode of the groups that the reward manager scored last in this thread.

    tunix calls the reward manager and then, in the same thread, the estimator. Only the manager
    gets the mode.
    """

    mode = "train"


def register(
    name: str = "gdpo",
    *,
    reward_keys: list[str],
    reward_weights: dict[str, float] | list[float] | None = None,
    estimator: str = "gdpo",
    options: dict[str, Any] | None = None,
) -> AdvantageRule:
    """Register an estimator and a reward manager, and return the rule with its state.

    Args:
        name: Name for `advantage_estimator` and `reward_manager` in `GRPOConfig`.
        reward_keys: The `__name__` of each reward function. NaN: the reward does not apply.
        reward_weights: One weight per key, or a dict from name to weight. Default: all 1.
        estimator: Name of a gdpo estimator, or `module:attribute`.
        options: Options of the estimator.
    """
    settings, latest = make_settings(estimator, reward_keys, reward_weights, options), Latest()
    if settings.rule.wants_token_counts:
        raise ConfigError("tunix passes no token counts: remove the option token_counts")

    class KeepingRewards(function_registry.get_reward_manager("sequence-level")):
        """Logs what tunix's manager logs, and returns `rewards[row, reward]`, not their sum."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            names = [getattr(function, "__name__", "") for function in self.reward_fns]
            for key in settings.names:
                if names.count(key) != 1:
                    raise ConfigError(
                        f"reward_keys lists {key!r}, which is not the __name__ of exactly one "
                        f"reward function. Available: {', '.join(names)}"
                    )

        def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            latest.mode = kwargs["mode"]
            info = super().__call__(*args, **kwargs)
            columns = [info["log_metrics"][f"rewards/{key}"][0] for key in settings.names]
            return {**info, "rewards": np.stack(columns, axis=-1)}

    def computed(rewards: Any, num_generations: int) -> np.ndarray:
        values = np.asarray(rewards, dtype=np.float64)
        if values.shape[1:] != (len(settings.names),):
            raise ConfigError(
                f"the rewards have the shape {values.shape}, but {len(settings.names)} rewards per "
                "row are needed: set reward_manager to the same name as advantage_estimator"
            )
        prompts = [row // num_generations for row in range(len(values))]
        groups = as_groups(values, prompts, np.ones(len(values), dtype=np.int64))
        # An evaluation does not change the state.
        return groups.per_row(advantages_of(groups, settings, update=latest.mode == "train"))

    function_registry.register_reward_manager(name)(KeepingRewards)
    function_registry.register_advantage_estimator(name)(computed)
    return settings.rule
