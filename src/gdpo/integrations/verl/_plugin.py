"""What verl loads by the entry point `verl.plugins`: importing it registers our estimators.

On a verl that it does not know, it says so and changes nothing.
"""

import logging
import sys
from types import ModuleType
from typing import Any

from gdpo.integrations._names import NAME, estimator_names
from gdpo.integrations.verl._compute_score import TOKENS_MANAGER, with_num_tokens
from gdpo.integrations.verl._estimator import compute_advantages
from gdpo.integrations.verl._imports import when_imported
from gdpo.integrations.verl._settings import KNOWN
from gdpo.integrations.verl._trainers import (
    with_check,
    with_columns,
    with_metrics,
    with_queue,
    with_rewards_dumped,
)

logger = logging.getLogger(__name__)


def install(version: str) -> bool:
    """Change verl's modules as they are imported; False, and nothing, for an unknown version."""
    if version not in KNOWN:
        logger.warning(
            "gdpo changes nothing in verl %s: it knows %s. algorithm.adv_estimator=%s is verl's "
            "own here. Install one of these versions, or a newer gdpo",
            version,
            ", ".join(KNOWN),
            NAME,
        )
        return False
    when_imported("verl.trainer.ppo.core_algos", _register_all)
    when_imported("verl.trainer.ppo.utils", _check_configuration)
    when_imported("verl.trainer.ppo.metric_utils", _log)
    when_imported("verl.trainer.ppo.ray_trainer", _carry)
    when_imported("verl.trainer.ppo.v1.trainer_base", _carry_through_queue)
    when_imported("verl.experimental.reward_loop.reward_manager", _add_manager)
    return True


def _register_all(core_algos: Any) -> None:
    for name in estimator_names():
        core_algos.ADV_ESTIMATOR_REGISTRY[name] = compute_advantages


def _check_configuration(utils: Any) -> None:
    utils.need_critic = with_check(utils.need_critic)


def _log(metric_utils: Any) -> None:
    metric_utils.compute_data_metrics = with_metrics(metric_utils.compute_data_metrics)


def _carry(ray_trainer: Any) -> None:
    registry: dict[str, Any] = ray_trainer.core_algos.ADV_ESTIMATOR_REGISTRY

    def register(name: str) -> None:
        registry.setdefault(name, compute_advantages)

    ray_trainer.compute_advantage = with_columns(ray_trainer.compute_advantage, register)


def _carry_through_queue(trainer_base: Any) -> None:
    trainer: Any = trainer_base.PPOTrainer
    queue = trainer_base.tq
    trainer._compute_advantage = with_queue(trainer._compute_advantage, queue)
    trainer._log_rollout_data = with_rewards_dumped(trainer._log_rollout_data, queue)


def _add_manager(reward_manager: Any) -> None:
    naive = reward_manager.NaiveRewardManager
    reward_manager.register(TOKENS_MANAGER)(with_num_tokens(naive))


_verl: ModuleType | None = sys.modules.get("verl")
if _verl is not None:
    install(str(getattr(_verl, "__version__", "?")))
