"""Provides `install()`, which makes gdpo's estimators and environment available in NeMo-RL."""

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpo.errors import ConfigError
from gdpo.integrations.nemo_rl._actor import PATH
from gdpo.integrations.nemo_rl._estimator import AdvantageEstimator
from gdpo.integrations.nemo_rl._interface import KNOWN_COMMIT, Modules, difference
from gdpo.integrations.nemo_rl._settings import ENVIRONMENT, check_run
from gdpo.integrations.rows import NAME, is_ours

logger = logging.getLogger(__name__)

Function = Callable[..., Any]

_CREATE = "_create_advantage_estimator"
_LOG = "_log_mixed_rewards_and_advantages_information"


def install() -> bool:
    """Make gdpo's estimators and environment available by name in NeMo-RL's configuration.

    Call it at the start of the training script. Calling it again has no effect.

    Returns:
        False if NeMo-RL's code is not the code that gdpo supports. Then nothing is changed, and a
        warning names the difference.

    Raises:
        ImportError: If NeMo-RL cannot be imported, or lacks a required module.
        ConfigError: If NeMo-RL has another environment with the name `gdpo`.
    """
    nemo_rl = Modules()
    create = getattr(nemo_rl.grpo, _CREATE, None)
    if isinstance(create, Create):
        return True
    differs = difference(nemo_rl)
    if differs is not None:
        logger.warning(
            "this NeMo-RL is not supported by this version of gdpo, which changes nothing (%s). "
            "grpo.adv_estimator.name=%s is NeMo-RL's own estimator. Use NeMo-RL's commit %s, or a "
            "newer gdpo",
            differs,
            NAME,
            KNOWN_COMMIT[:9],
        )
        return False
    _register_environment(nemo_rl)
    _replace_functions(nemo_rl.grpo)
    master, controller = nemo_rl.grpo.MasterConfig, nemo_rl.controller.MasterConfig
    master.__init__ = with_check(master.__init__, nemo_rl.data.extract_necessary_env_names)
    controller.__init__ = refusing(controller.__init__)
    return True


@dataclass
class Create:
    """Wraps `_create_advantage_estimator`, which every trainer calls before its first step."""

    theirs: Function
    """NeMo-RL's function."""
    latest: AdvantageEstimator | None = None
    """The estimator in use, if it is one of ours."""

    def __call__(self, master_config: Any) -> Any:
        config = master_config.grpo.adv_estimator
        if not is_ours(config.name):
            self.latest = None
            return self.theirs(master_config)
        self.latest = AdvantageEstimator(config, master_config.loss_fn)
        return self.latest


def with_metrics(log: Function, create: Create) -> Function:
    """Wrap NeMo-RL's function that logs advantages: add the metrics of each reward.

    Args:
        log: NeMo-RL's function.
        create: Knows the estimator in use.
    """

    @functools.wraps(log)
    def logged(
        logger: Any, total_steps: int, metrics: dict[str, Any], baseline: Any, advantages: Any
    ) -> None:
        log(logger, total_steps, metrics, baseline, advantages)
        if create.latest is not None:
            # As arrays: NeMo-RL sums arrays, and prints a line for every other value.
            ours = create.latest.last_metrics
            metrics.update({key: np.array(value) for key, value in ours.items()})

    return logged


def with_check(init: Function, environments_of: Callable[[Any], Any]) -> Function:
    """Wrap `MasterConfig.__init__`: check the configuration before the script starts anything.

    Args:
        init: NeMo-RL's method.
        environments_of: Returns the names of the environments that a configuration's `data` needs.
    """

    @functools.wraps(init)
    def checked(self: Any, /, **fields: Any) -> None:
        init(self, **fields)
        check_run(self, list(environments_of(self.data)))

    return checked


def refusing(init: Function) -> Function:
    """Wrap `MasterConfig.__init__` of the single controller: raise if it names our estimator."""

    @functools.wraps(init)
    def refused(self: Any, /, **fields: Any) -> None:
        init(self, **fields)
        if is_ours(self.grpo.adv_estimator.name):
            raise ConfigError(
                f"grpo.adv_estimator.name={self.grpo.adv_estimator.name} does not work with "
                "NeMo-RL's single controller, which does not pass the separate rewards to an "
                "estimator: train with examples/run_grpo.py"
            )

    return refused


def _replace_functions(grpo: Any) -> None:
    """Replace both functions in every module of NeMo-RL that has already imported them."""
    create = Create(getattr(grpo, _CREATE))
    log = getattr(grpo, _LOG)
    changes = [(_CREATE, create.theirs, create), (_LOG, log, with_metrics(log, create))]
    for module in [m for name, m in sys.modules.items() if name.startswith("nemo_rl.")]:
        for name, old, new in changes:
            if vars(module).get(name) is old:
                setattr(module, name, new)


def _register_environment(nemo_rl: Modules) -> None:
    known = nemo_rl.environments.ENV_REGISTRY.get(ENVIRONMENT)
    if known is None:
        nemo_rl.environments.register_env(ENVIRONMENT, PATH)
    elif known["actor_class_fqn"] != PATH:
        raise ConfigError(
            f"NeMo-RL already has an environment named {ENVIRONMENT!r}, "
            f"{known['actor_class_fqn']}: register that one under another name"
        )
    nemo_rl.actors.ACTOR_ENVIRONMENT_REGISTRY[PATH] = nemo_rl.cluster.PY_EXECUTABLES.SYSTEM
