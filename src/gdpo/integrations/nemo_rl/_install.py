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

    Call this function at the start of the training script. A second call has no effect.

    Returns:
        False if the installed NeMo-RL differs from the code that gdpo supports. In that case
        nothing is changed, and a warning describes the difference.

    Raises:
        ImportError: If NeMo-RL cannot be imported, or if a required module is missing.
        ConfigError: If NeMo-RL already has a different environment named `gdpo`.
    """
    nemo_rl = Modules()
    create = getattr(nemo_rl.grpo, _CREATE, None)
    if isinstance(create, Create):
        return True
    differs = difference(nemo_rl)
    if differs is not None:
        logger.warning(
            "this NeMo-RL is not supported by this version of gdpo (%s), so gdpo changes nothing "
            "and grpo.adv_estimator.name=%s is NeMo-RL's own estimator. Use NeMo-RL's commit %s, "
            "or a newer gdpo",
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
    """The estimator in use. None: one of NeMo-RL's own estimators is in use."""

    def __call__(self, master_config: Any) -> Any:
        config = master_config.grpo.adv_estimator
        if not is_ours(config.name):
            self.latest = None
            return self.theirs(master_config)
        self.latest = AdvantageEstimator(config, master_config.loss_fn)
        return self.latest


def with_metrics(log: Function, create: Create) -> Function:
    """Wrap NeMo-RL's function that logs advantages so that it also logs each reward's metrics.

    Args:
        log: NeMo-RL's function.
        create: Object whose `latest` attribute is the estimator in use.
    """

    @functools.wraps(log)
    def logged(
        logger: Any, total_steps: int, metrics: dict[str, Any], baseline: Any, advantages: Any
    ) -> None:
        log(logger, total_steps, metrics, baseline, advantages)
        if create.latest is not None:
            # The values are arrays because NeMo-RL prints a line for every value of another type.
            ours = create.latest.last_metrics
            metrics.update({key: np.array(value) for key, value in ours.items()})

    return logged


def with_check(init: Function, environments_of: Callable[[Any], Any]) -> Function:
    """Wrap `MasterConfig.__init__` to check the configuration before the script starts anything.

    Args:
        init: NeMo-RL's method.
        environments_of: Function that returns the names of the environments that a configuration's
            `data` section needs.
    """

    @functools.wraps(init)
    def checked(self: Any, /, **fields: Any) -> None:
        init(self, **fields)
        check_run(self, list(environments_of(self.data)))

    return checked


def refusing(init: Function) -> Function:
    """Wrap the single controller's `MasterConfig.__init__` to reject gdpo's estimators."""

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
    """Replace NeMo-RL's two functions in every module that has already imported them."""
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
            f"{known['actor_class_fqn']}: register that environment under a different name"
        )
    nemo_rl.actors.ACTOR_ENVIRONMENT_REGISTRY[PATH] = nemo_rl.cluster.PY_EXECUTABLES.SYSTEM
