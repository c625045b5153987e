"""Registers gdpo's estimators with verl, which imports this module as a plugin.

The entry point is `verl.plugins`. If the version of verl is not supported, the plugin logs a
warning and changes nothing.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from gdpo.integrations.rows import NAME, estimator_names
from gdpo.integrations.verl._estimator import compute_advantages
from gdpo.integrations.verl._trainers import (
    with_check,
    with_columns,
    with_metrics,
    with_queue,
    with_rewards_dumped,
)
from gdpo.integrations.verl.scores import TOKENS_MANAGER, with_num_tokens
from gdpo.integrations.verl.settings import KNOWN

Change = Callable[[ModuleType], None]


def when_imported(name: str, change: Change) -> None:
    """Call `change` on module `name` once it is imported, or immediately if it already is."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        _FINDER.changes[name] = change


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}
        self._looking_for: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  signature of MetaPathFinder
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        change = self.changes.get(fullname)
        if change is None or fullname in self._looking_for:
            return None
        self._looking_for.add(fullname)  # importlib's find_spec calls this finder again
        try:
            spec = find_spec(fullname)
        finally:
            self._looking_for.discard(fullname)
        if spec is not None and spec.loader is not None:
            _change_after(spec.loader, change)
        return spec


def _change_after(loader: Any, change: Change) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        change(module)

    loader.exec_module = exec_module


_FINDER = _Finder()


sys.meta_path.insert(0, _FINDER)


logger = logging.getLogger(__name__)


def install(version: str) -> bool:
    """Register the changes to verl's modules. Each change is applied when verl imports the module.

    Returns:
        False if this version of verl is not supported. In that case nothing is changed.
    """
    if version not in KNOWN:
        logger.warning(
            "verl %s is not supported by this version of gdpo, so gdpo changes nothing and "
            "algorithm.adv_estimator=%s is verl's own estimator. Install verl %s, or a newer gdpo",
            version,
            NAME,
            " or ".join(KNOWN),
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
