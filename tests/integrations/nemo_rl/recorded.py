"""Stands in for the parts of NeMo-RL that gdpo reads and changes (names of commit 7ea279abf).

`tests/conformance/nemo_rl` runs the real NeMo-RL.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, Field

ENVIRONMENT = "gdpo_environment"
"""Module with the environment of `examples/nemo_rl`."""


class AdvEstimator(BaseModel, extra="allow"):
    name: str = "grpo"
    normalize_rewards: bool = True
    use_leave_one_out_baseline: bool = True
    reward_weights: list[float] | None = None
    minus_baseline: bool = True


class Switch(BaseModel, extra="allow"):
    enabled: bool = False


class Grpo(BaseModel, extra="allow"):
    use_dynamic_sampling: bool = False
    reward_shaping: Switch = Field(default_factory=Switch)
    reward_scaling: Switch = Field(default_factory=Switch)
    adv_estimator: AdvEstimator = Field(default_factory=AdvEstimator)


class Loss(BaseModel, extra="allow"):
    use_kl_in_reward: bool = False


class Master(BaseModel, extra="allow"):
    grpo: Grpo = Field(default_factory=Grpo)
    loss_fn: Loss = Field(default_factory=Loss)
    env: dict[str, Any] = Field(default_factory=dict)
    data: dict[str, Any] = Field(default_factory=dict)


def adv_estimator(**more):
    return AdvEstimator(**{"name": "gdpo", "gdpo_reward_keys": ["correct", "format"], **more})


def master(environments=("math",), loss=None, estimator=None, **grpo):
    return Master(
        grpo=Grpo(adv_estimator=adv_estimator(**(estimator or {})), **grpo),
        loss_fn=Loss(**(loss or {})),
        data={"environments": list(environments)},
    )


PACKAGE = {
    "algorithms/grpo.py": """
from tests.integrations.nemo_rl.recorded import AdvEstimator as AdvEstimatorConfig, Grpo, Loss
from pydantic import BaseModel, Field

class GRPOConfig(Grpo):
    adv_estimator: AdvEstimatorConfig = Field(default_factory=AdvEstimatorConfig)

class MasterConfig(BaseModel, extra="allow"):
    grpo: GRPOConfig
    loss_fn: Loss
    env: dict
    data: dict

def _create_advantage_estimator(master_config):
    return "theirs"

def _log_mixed_rewards_and_advantages_information(
    logger, total_steps, metrics, baseline, advantages
):
    metrics["advantages/mean"] = 0.0

def grpo_train(config, batch, metrics):
    adv_estimator = _create_advantage_estimator(config)
    advantages = adv_estimator.compute_advantage(
        prompt_ids=batch["prompt_ids"], rewards=batch["total_reward"], mask=batch["mask"],
        repeated_batch=batch, logprobs_policy=None, logprobs_reference=None,
    )
    _log_mixed_rewards_and_advantages_information(
        logger=None, total_steps=0, metrics=metrics, baseline=None, advantages=advantages
    )
    return advantages
""",
    "algorithms/grpo_sync.py": """
from nemo_rl.algorithms.grpo import (
    _create_advantage_estimator, _log_mixed_rewards_and_advantages_information
)
""",
    "algorithms/single_controller_utils/config.py": """
from nemo_rl.algorithms.grpo import GRPOConfig
from pydantic import BaseModel

class MasterConfig(BaseModel, extra="allow"):
    grpo: GRPOConfig
""",
    "environments/interfaces.py": """
from typing import Any, NamedTuple

class EnvironmentReturn(NamedTuple):
    observations: Any
    metadata: Any
    next_stop_strings: Any
    rewards: Any
    terminateds: Any
    answers: Any

class EnvironmentInterface: ...
""",
    "environments/utils.py": """
ENV_REGISTRY = {"math": {"actor_class_fqn": "nemo_rl.environments.math.MathEnvironment"}}

def register_env(env_name, actor_class_fqn):
    if env_name in ENV_REGISTRY:
        raise ValueError(f"Env name {env_name} already registered")
    ENV_REGISTRY[env_name] = {"actor_class_fqn": actor_class_fqn}
""",
    "data/utils.py": """
def extract_necessary_env_names(data_config):
    return data_config.get("environments", ["math"])
""",
    "distributed/ray_actor_environment_registry.py": "ACTOR_ENVIRONMENT_REGISTRY = {}",
    "distributed/virtual_cluster.py": """
class PY_EXECUTABLES:
    SYSTEM = "python"
""",
}


def write_package(folder):
    """Write a package `nemo_rl` into this folder."""
    for name, text in PACKAGE.items():
        file = folder / "nemo_rl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def forget():
    """Remove the stand-ins, and what imported them, from the imported modules."""
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("nemo_rl", ENVIRONMENT)
    ]:
        del sys.modules[name]


def environment(monkeypatch, folder, cfg):
    """Return the environment of `examples/nemo_rl` for the section `env.gdpo`, without Ray."""
    forget()
    write_package(folder)
    ray = ModuleType("ray")
    ray.remote = lambda **_: lambda actor: actor
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples" / "nemo_rl")
    return import_module(ENVIRONMENT).GdpoEnvironment(cfg)
