"""Registers gdpo's estimators with rLLM. Rewards are read from the evaluator's signals."""

import logging
from importlib import import_module
from typing import Any

import numpy as np

from gdpo.advantages import AdvantageRule
from gdpo.integrations._settings import Settings, make_settings
from gdpo.integrations.rows import advantages_of, as_groups, by_name, reward_columns

logger = logging.getLogger(__name__)


def register(
    name: str = "gdpo",
    *,
    reward_keys: list[str],
    reward_weights: dict[str, float] | list[float] | None = None,
    estimator: str = "gdpo",
    options: dict[str, Any] | None = None,
) -> AdvantageRule:
    """Register an estimator with rLLM.

    Select the estimator with `traj_group_adv_estimator_map={"solver": "gdpo"}`. With
    `async_training`, rLLM passes one task at a time: set `options={"scale_half_life": 128}` for
    GDPO.

    Args:
        name: The estimator's name in the map. If a configuration file sets
            `algorithm.adv_estimator` to a name that rLLM does not know, rLLM uses the estimator
            that is registered as "other". Use `name="other"` to select the estimator in a
            configuration file.
        reward_keys: Names of the trajectory `signals` to use as rewards. None or NaN means that a
            reward does not apply to the trajectory.
        reward_weights: One weight per reward, in the order of `reward_keys`, or a dict from reward
            name to weight. Default: all 1.
        estimator: The estimator's key in `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        options: The estimator's options, as a dict from name to value.

    Returns:
        The rule that computes the advantages. rLLM's checkpoints do not contain its state: save
        `state()` and pass it to `restore()` to resume with the same running scale or multipliers.

    Raises:
        ConfigError: If the settings are invalid. This error is also raised at the first batch if no
            trajectory has a signal for one of the keys.
    """
    settings = make_settings(estimator, reward_keys, reward_weights, options)
    advantage = import_module("rllm.trainer.algorithms.advantage")
    advantage.register_rllm_adv_estimator(name)(Estimator(settings))
    return settings.rule


class Estimator:
    """Computes advantages when rLLM calls the object with all groups of one role."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._warned = False

    def __call__(
        self,
        rewards: list[np.ndarray],
        algorithm_config: Any,  # noqa: ARG002  rLLM passes it by name
        traj_groups: list[Any],
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the advantages and the returns, one array per group of trajectories.

        Args:
            rewards: Scalar rewards of each group. Only the group sizes are read from this list.
            algorithm_config: Not used.
            traj_groups: Groups of trajectories, whose `signals` are the separate rewards.
        """
        normalizes = self._settings.rule.scale is None
        if len(traj_groups) == 1 and normalizes and not self._warned:
            self._warned = True
            logger.warning(
                "the batch contains only one group, so batch normalization uses only that group: "
                'for GDPO with async_training, set options={"scale_half_life": 128}. For other '
                "estimators, switch async_training off or choose one without batch normalization"
            )
        rows = [t for group in traj_groups for t in group.trajectories]
        prompts = [i for i, group in enumerate(traj_groups) for _ in group.trajectories]
        columns = by_name([trajectory.signals for trajectory in rows])
        signals = reward_columns(
            columns, self._settings.names, given_by="the evaluator, as a Signal"
        )
        counts = np.array([sum(len(step.response_ids) for step in t.steps) for t in rows])
        groups = as_groups(signals, prompts, counts)
        advantages = groups.per_row(advantages_of(groups, self._settings))
        ends = np.cumsum([len(group_rewards) for group_rewards in rewards])
        by_group = np.split(advantages, ends[:-1])
        return by_group, by_group
