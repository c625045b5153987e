"""Registers gdpo's estimators with verl, which imports this module as a plugin.

The entry point is `verl.plugins`. verl 0.8 has none: VERL_USE_EXTERNAL_MODULES names this module.
The plugin looks for the functions that it wraps, and asks for no version. Before a training starts,
`check_itself` compares advantages that go through verl with gdpo's.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from gdpo.integrations.rows import estimator_names, turn_estimator_names
from gdpo.integrations.verl._estimator import compute_advantages
from gdpo.integrations.verl._self_check import check_itself
from gdpo.integrations.verl._trainers import (
    with_check,
    with_columns,
    with_metrics,
    with_queue,
    with_rewards_dumped,
    with_totals,
    with_watch,
)
from gdpo.integrations.verl.scores import TOKENS_MANAGER, with_messages, with_num_tokens

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


class _Silenced(logging.StreamHandler[Any]):
    """Writes the records that no handler of the root logger writes.

    In verl's task runner, the root logger and its handlers only accept errors.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this handler writes the record."""
        return not any(record.levelno >= handler.level for handler in logging.root.handlers)


def show_warnings() -> None:
    """Write gdpo's warnings to stderr, even if the root logger drops warnings."""
    of_gdpo = logging.getLogger("gdpo")
    if not any(isinstance(handler, _Silenced) for handler in of_gdpo.handlers):
        handler = _Silenced()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        of_gdpo.addHandler(handler)
        of_gdpo.setLevel(logging.WARNING)


def install() -> None:
    """Register the changes to verl's modules. Each change is applied when verl imports the module.

    A change whose function this verl does not have is left out, with a warning.
    """
    show_warnings()
    for module, change in (
        ("verl.trainer.ppo.core_algos", _register_all),
        ("verl.trainer.ppo.utils", _check_configuration),
        ("verl.trainer.ppo.metric_utils", _log),
        ("verl.trainer.ppo.ray_trainer", _carry),
        ("verl.trainer.ppo.v1.trainer_base", _carry_through_queue),
        ("verl.trainer.main_ppo_sync", _carry_through_queue),  # verl 0.8's V1 trainer
        ("verl.experimental.reward_loop.reward_manager", _add_manager),
        ("verl.experimental.agent_loop.agent_loop", _pass_messages),
    ):
        when_imported(module, change)


def _wrap(place: Any, name: str, wrapper: Callable[[Any], Any], *, lost: str) -> None:
    """Replace a function of verl by its wrapper. If verl has no such function, log what is lost."""
    function = getattr(place, name, None)
    if function is None:
        logger.warning("%s has no %s, which gdpo wraps: %s", place.__name__, name, lost)
    else:
        setattr(place, name, wrapper(function))


def _register_all(core_algos: Any) -> None:
    for name in (*estimator_names(), *turn_estimator_names()):
        core_algos.ADV_ESTIMATOR_REGISTRY[name] = compute_advantages


def _check_configuration(utils: Any) -> None:
    lost = "gdpo's settings are not checked before a training starts"
    _wrap(utils, "need_critic", lambda wrapped: with_check(wrapped, check_itself), lost=lost)


def _log(metric_utils: Any) -> None:
    _wrap(metric_utils, "compute_data_metrics", with_metrics, lost="gdpo logs no metrics")


def _carry(ray_trainer: Any) -> None:
    registry: dict[str, Any] = ray_trainer.core_algos.ADV_ESTIMATOR_REGISTRY

    def register(name: str) -> None:
        registry.setdefault(name, compute_advantages)

    def wrapper(compute_advantage: Any) -> Any:
        return with_columns(compute_advantage, register)

    lost = "gdpo's estimators and gdpo_watch work in no trainer"
    _wrap(ray_trainer, "compute_advantage", wrapper, lost=lost)


def _carry_through_queue(trainer_base: Any) -> None:
    trainer, queue = trainer_base.PPOTrainer, trainer_base.tq
    lost = "gdpo's estimators and gdpo_watch do not work in the V1 trainers"
    _wrap(trainer, "_compute_advantage", lambda wrapped: with_queue(wrapped, queue), lost=lost)
    name = "compute_advantage_for_multi_trajectories"
    _wrap(trainer_base, name, with_watch, lost="gdpo_watch does not work in the V1 trainers")
    lost = "the files in trainer.rollout_data_dir do not contain each reward"
    name = "_log_rollout_data"
    _wrap(trainer, name, lambda wrapped: with_rewards_dumped(wrapped, queue), lost=lost)
    lost = "validation fails if a reward is a list with one number for each turn"
    _wrap(trainer, "_val_metrics_update", with_totals, lost=lost)


def _pass_messages(agent_loop: Any) -> None:
    lost = "compute_score fails for rollouts with several turns"
    worker = getattr(agent_loop, "AgentLoopWorker", agent_loop)
    _wrap(worker, "_compute_score", with_messages, lost=lost)


def _add_manager(reward_manager: Any) -> None:
    naive = reward_manager.NaiveRewardManager
    reward_manager.register(TOKENS_MANAGER)(with_num_tokens(naive))


if "verl" in sys.modules:
    install()
