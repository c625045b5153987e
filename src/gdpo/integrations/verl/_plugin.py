"""Registers gdpo's estimators with verl, which imports this module as a plugin.

The entry point is `verl.plugins`. verl 0.8 has none: VERL_USE_EXTERNAL_MODULES names this module.
The plugin looks for the functions that it wraps, and checks no version.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from gdpo.advantages import ESTIMATORS, TURN_ESTIMATORS
from gdpo.integrations.rows import PREFIX
from gdpo.integrations.verl._run import VerlRun
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


def when_imported(changes: Mapping[str, Change]) -> None:
    """Call each change on its module once it is imported, or immediately if it already is."""
    sys.meta_path.insert(0, _Finder(changes))
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])


class _Finder(MetaPathFinder):
    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes
        self._looking_for: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  signature of MetaPathFinder
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in self._changes or fullname in self._looking_for:
            return None
        self._looking_for.add(fullname)  # importlib's find_spec calls this finder again
        try:
            spec = find_spec(fullname)
        finally:
            self._looking_for.discard(fullname)
        if spec is None or spec.loader is None:
            return spec
        change, run = self._changes[fullname], spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


logger = logging.getLogger(__name__)


class _Silenced(logging.StreamHandler[Any]):
    """Writes what the root logger drops, which accepts only errors in verl's task runner."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(record.levelno >= handler.level for handler in logging.root.handlers)


def show_warnings() -> None:
    of_gdpo = logging.getLogger("gdpo")
    if not any(isinstance(handler, _Silenced) for handler in of_gdpo.handlers):
        handler = _Silenced()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        of_gdpo.addHandler(handler)
        of_gdpo.setLevel(logging.WARNING)


def install() -> None:
    """Register the changes to verl's modules. Each change is applied when verl imports the module.

    A change to a function that this verl lacks is skipped, with a warning.
    """
    show_warnings()
    when_imported(changes(VerlRun()))


def changes(run: VerlRun) -> dict[str, Change]:
    through_queue = partial(_carry_through_queue, run)
    return {
        "verl.trainer.ppo.core_algos": partial(_register_all, run),
        "verl.trainer.ppo.utils": partial(
            _wrap,
            "need_critic",
            partial(with_check, run),
            lost="gdpo's settings are not checked before training starts",
        ),
        "verl.trainer.ppo.metric_utils": partial(
            _wrap, "compute_data_metrics", partial(with_metrics, run), lost="gdpo logs no metrics"
        ),
        "verl.trainer.ppo.ray_trainer": partial(_carry, run),
        "verl.trainer.ppo.v1.trainer_base": through_queue,
        "verl.trainer.main_ppo_sync": through_queue,  # verl 0.8's V1 trainer
        "verl.experimental.reward_loop.reward_manager": _add_manager,
        "verl.experimental.agent_loop.agent_loop": _pass_messages,
    }


def _wrap(name: str, wrapper: Callable[[Any], Any], place: Any, *, lost: str) -> None:
    """Replace a function of verl by its wrapper, or log what is lost without it."""
    function = getattr(place, name, None)
    if function is None:
        logger.warning("%s has no %s, which gdpo wraps: %s", place.__name__, name, lost)
    else:
        setattr(place, name, wrapper(function))


def _register_all(run: VerlRun, core_algos: Any) -> None:
    for name in (*ESTIMATORS, *TURN_ESTIMATORS):
        core_algos.ADV_ESTIMATOR_REGISTRY[f"{PREFIX}{name}"] = run.compute_advantages


def _carry(run: VerlRun, ray_trainer: Any) -> None:
    registry = ray_trainer.core_algos.ADV_ESTIMATOR_REGISTRY
    wrapper = partial(with_columns, run, registry=registry)
    lost = "gdpo's estimators and gdpo_watch do not work in any trainer"
    _wrap("compute_advantage", wrapper, ray_trainer, lost=lost)


def _carry_through_queue(run: VerlRun, trainer_base: Any) -> None:
    trainer, queue = trainer_base.PPOTrainer, trainer_base.tq
    _wrap(
        "_compute_advantage",
        partial(with_queue, run, queue=queue),
        trainer,
        lost="gdpo's estimators and gdpo_watch do not work in the V1 trainers",
    )
    _wrap(
        "compute_advantage_for_multi_trajectories",
        partial(with_watch, run),
        trainer_base,
        lost="gdpo_watch does not work in the V1 trainers",
    )
    _wrap(
        "_log_rollout_data",
        partial(with_rewards_dumped, run, queue=queue),
        trainer,
        lost="the files in trainer.rollout_data_dir do not contain the separate rewards",
    )
    _wrap(
        "_val_metrics_update",
        with_totals,
        trainer,
        lost="validation fails if a reward is a list with one number for each turn",
    )


def _pass_messages(agent_loop: Any) -> None:
    lost = "compute_score fails for rollouts with several turns, and ignores <think> in prompts"
    worker = getattr(agent_loop, "AgentLoopWorker", agent_loop)
    _wrap("_compute_score", with_messages, worker, lost=lost)


def _add_manager(reward_manager: Any) -> None:
    naive = reward_manager.NaiveRewardManager
    reward_manager.register(TOKENS_MANAGER)(with_num_tokens(naive))


if "verl" in sys.modules:
    install()
