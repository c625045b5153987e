"""Stands in for the parts of NeMo-RL that gdpo reads and changes (names of commit 7ea279abf).

`tests/conformance/nemo_rl` runs the real NeMo-RL.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field


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


def adv_estimator(**more: Any) -> AdvEstimator:
    return AdvEstimator(**{"name": "gdpo", "gdpo_reward_keys": ["correct", "format"], **more})


def master(estimator: dict[str, Any] | None = None, env=None, loss=None, **grpo: Any) -> Master:
    return Master(
        grpo=Grpo(adv_estimator=adv_estimator(**(estimator or {})), **grpo),
        loss_fn=Loss(**(loss or {})),
        env=env or {},
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

class GDPOAdvantageEstimator:
    def __init__(self, estimator_config, loss_config): ...
    def compute_advantage(self, prompt_ids, rewards, mask, repeated_batch, **kwargs): ...

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

def async_grpo_train(config, batch):
    return _create_advantage_estimator(config).compute_advantage(
        prompt_ids=batch["prompt_ids"], rewards=batch["total_reward"], mask=batch["mask"],
        repeated_batch=batch, sample_mask=None,
    )
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
    return [data_config["default"]["env_name"]]
""",
    "distributed/ray_actor_environment_registry.py": "ACTOR_ENVIRONMENT_REGISTRY = {}",
    "distributed/virtual_cluster.py": """
class PY_EXECUTABLES:
    SYSTEM = "python"
""",
}


def write_package(folder: Path) -> None:
    """Write a package `nemo_rl` into this folder."""
    for name, text in PACKAGE.items():
        file = folder / "nemo_rl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
