"""Registers gdpo's estimators with rLLM. They read the signals that an evaluator returns."""

import logging
from importlib import import_module
from typing import Any

import numpy as np

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
) -> None:
    """Register an estimator with rLLM, for `traj_group_adv_estimator_map={"solver": "gdpo"}`.

    Args:
        name: The estimator's name in the map. rLLM looks up every `algorithm.adv_estimator` of a
            configuration file that it does not know as "other": register that name to use the
            estimator there.
        reward_keys: Names of the trajectories' `signals`. A signal of None or NaN does not apply.
        reward_weights: One number per reward in the order of `reward_keys`, or a dict by name.
            Default: all 1.
        estimator: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        options: Options of the estimator, by name.

    Raises:
        ConfigError: If the settings are invalid. At the first batch: if a key is not a signal of
            any trajectory.
    """
    settings = make_settings(estimator, reward_keys, reward_weights, options)
    advantage = import_module("rllm.trainer.algorithms.advantage")
    advantage.register_rllm_adv_estimator(name)(Estimator(settings))


class Estimator:
    """Computes advantages. rLLM calls it with all groups of one role."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._warned = False

    def __call__(
        self,
        rewards: list[np.ndarray],
        algorithm_config: Any,  # noqa: ARG002  rLLM passes it by name
        traj_groups: list[Any],
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the advantage of each trajectory, by group. `rewards` (the totals) is not used."""
        if len(traj_groups) == 1 and not self._warned:
            self._warned = True
            logger.warning(
                "the batch holds only one group, so batch normalization is applied to one group: "
                "switch async_training off, or choose an estimator without batch normalization"
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
