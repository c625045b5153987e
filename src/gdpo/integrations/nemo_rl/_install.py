"""`install()`: our estimators and our environment behind the names of NeMo-RL's configuration."""

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
    """Put our estimators and our environment behind the names of NeMo-RL's configuration.

    Call it at the start of the script that trains. Calling it again changes nothing.

    Returns:
        False, after a warning that says why, for a NeMo-RL whose code is not as it is known;
        nothing is changed then.

    Raises:
        ImportError: NeMo-RL cannot be imported, or lacks a module that is needed.
        ConfigError: NeMo-RL has another environment under our name.
    """
    nemo_rl = Modules()
    create = getattr(nemo_rl.grpo, _CREATE, None)
    if isinstance(create, Create):
        return True
    differs = difference(nemo_rl)
    if differs is not None:
        logger.warning(
            "gdpo changes nothing in this NeMo-RL, whose code is not as it is known (%s). "
            "grpo.adv_estimator.name=%s is NeMo-RL's own here. Use its commit %s, or a newer gdpo",
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
    """`_create_advantage_estimator`, which every trainer calls before its first step."""

    theirs: Function
    latest: AdvantageEstimator | None = None
    """The estimator that trains, if it is one of ours."""

    def __call__(self, master_config: Any) -> Any:
        config = master_config.grpo.adv_estimator
        if not is_ours(config.name):
            self.latest = None
            return self.theirs(master_config)
        self.latest = AdvantageEstimator(config, master_config.loss_fn)
        return self.latest


def with_metrics(log: Function, create: Create) -> Function:
    """The function that logs what it is told of advantages, with the numbers of each reward.

    Args:
        log: NeMo-RL's.
        create: Knows the estimator that trains.
    """

    @functools.wraps(log)
    def logged(
        logger: Any, total_steps: int, metrics: dict[str, Any], baseline: Any, advantages: Any
    ) -> None:
        log(logger, total_steps, metrics, baseline, advantages)
        if create.latest is not None:
            # NeMo-RL sums arrays, and prints a line for each number that is none.
            ours = create.latest.last_metrics
            metrics.update({key: np.array(value) for key, value in ours.items()})

    return logged


def with_check(init: Function, environments_of: Callable[[Any], Any]) -> Function:
    """`MasterConfig.__init__`, by which a script reads its configuration before it starts anything.

    Args:
        init: NeMo-RL's.
        environments_of: Names of the environments that `data` of a configuration needs.
    """

    @functools.wraps(init)
    def checked(self: Any, /, **fields: Any) -> None:
        init(self, **fields)
        check_run(self, list(environments_of(self.data)))

    return checked


def refusing(init: Function) -> Function:
    """`MasterConfig.__init__` of the single controller, which passes no rewards to an estimator."""

    @functools.wraps(init)
    def refused(self: Any, /, **fields: Any) -> None:
        init(self, **fields)
        if is_ours(self.grpo.adv_estimator.name):
            raise ConfigError(
                f"grpo.adv_estimator.name={self.grpo.adv_estimator.name} needs the rewards one by "
                "one, which NeMo-RL's single controller does not pass to an estimator: train with "
                "examples/run_grpo.py"
            )

    return refused


def _replace_functions(grpo: Any) -> None:
    """In every module of NeMo-RL that has imported them already."""
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
            f"NeMo-RL has another environment called {ENVIRONMENT!r}: {known['actor_class_fqn']}. "
            "Register it under another name"
        )
    nemo_rl.actors.ACTOR_ENVIRONMENT_REGISTRY[PATH] = nemo_rl.cluster.PY_EXECUTABLES.SYSTEM
