"""Registers a gdpo estimator with rLLM. The rewards are the evaluator's signals.

Copy this file as gdpo_rllm.py next to your script. docs/how-to/rllm.md has the settings.
"""

import logging
from functools import cache
from typing import Any

import numpy as np
from rllm.trainer.algorithms.advantage import register_rllm_adv_estimator

from gdpo.advantages import AdvantageRule
from gdpo.integrations.rows import advantages_of_rows, make_settings

logger = logging.getLogger(__name__)


def register(
    name: str = "gdpo",
    *,
    reward_keys: list[str],
    reward_weights: dict[str, float] | list[float] | None = None,
    estimator: str = "gdpo",
    options: dict[str, Any] | None = None,
) -> AdvantageRule:
    """Register an estimator, and return the rule that computes the advantages.

    rLLM's checkpoints do not contain the state of the rule: save `rule.state()`, and pass it to
    `rule.restore()` to resume with it.

    Args:
        name: Name for `traj_group_adv_estimator_map`. A configuration file needs "other".
        reward_keys: Names of the `signals` of a trajectory. None or NaN: does not apply.
        reward_weights: One weight per key, or a dict from name to weight. Default: all 1.
        estimator: Name of a gdpo estimator, or `module:attribute`.
        options: Options of the estimator.
    """
    settings = make_settings(estimator, reward_keys, reward_weights, options)

    def computed(
        rewards: list[np.ndarray], algorithm_config: Any, traj_groups: list[Any]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        if len(traj_groups) == 1 and settings.rule.scale is None:
            warn_of_one_group()
        trajectories = [each for group in traj_groups for each in group.trajectories]
        advantages = advantages_of_rows(
            [each.signals for each in trajectories],
            settings,
            [place for place, group in enumerate(traj_groups) for _ in group.trajectories],
            [sum(len(step.response_ids) for step in each.steps) for each in trajectories],
            given_by="the evaluator, as a Signal",
        )
        ends = np.cumsum([len(group.trajectories) for group in traj_groups])
        by_group = np.split(advantages, ends[:-1])
        return by_group, by_group

    register_rllm_adv_estimator(name)(computed)
    return settings.rule


@cache
def warn_of_one_group() -> None:
    """Log once that a batch of one group has no other groups to normalize over."""
    logger.warning(
        "the batch contains only one group, so batch normalization uses only that group: for GDPO "
        'with async_training, set options={"scale_half_life": 128}. For other estimators, switch '
        "async_training off or choose one without batch normalization"
    )
