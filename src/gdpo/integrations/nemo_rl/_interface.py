"""What of NeMo-RL's source this package relies on, and whether it is so.

NeMo-RL is installed from its repository, where a version says little: its code is looked at.
"""

import ast
import inspect
from importlib import import_module
from typing import Any

KNOWN_COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
"""Of github.com/NVIDIA-NeMo/RL, that the conformance tests have run with."""

_PASSED = {"prompt_ids", "rewards", "mask", "repeated_batch"}


class Modules:
    """The modules of NeMo-RL that are read or changed.

    Raises:
        ImportError: NeMo-RL cannot be imported, or lacks one of them.
    """

    def __init__(self) -> None:
        self.grpo: Any = import_module("nemo_rl.algorithms.grpo")
        self.controller: Any = import_module("nemo_rl.algorithms.single_controller_utils.config")
        self.data: Any = import_module("nemo_rl.data.utils")
        self.interfaces: Any = import_module("nemo_rl.environments.interfaces")
        self.environments: Any = import_module("nemo_rl.environments.utils")
        self.actors: Any = import_module("nemo_rl.distributed.ray_actor_environment_registry")
        self.cluster: Any = import_module("nemo_rl.distributed.virtual_cluster")


def difference(nemo_rl: Modules) -> str | None:
    """The first thing that is not as it is known; None if all of it is."""
    try:
        found = _found(nemo_rl)
    except (AttributeError, TypeError, OSError, SyntaxError) as error:
        return str(error)
    for what, (is_so, wanted) in found.items():
        if is_so != wanted:
            return f"{what}: {is_so}, not {wanted}"
    return None


def _found(nemo_rl: Modules) -> dict[str, tuple[Any, Any]]:
    """What is there, beside what is known."""
    grpo, config = nemo_rl.grpo, nemo_rl.grpo.AdvEstimatorConfig
    fields = {"name", "normalize_rewards", "use_leave_one_out_baseline", "reward_weights"}
    settings = {"reward_scaling", "reward_shaping", "use_dynamic_sampling", "adv_estimator"}
    answer = ["observations", "metadata", "next_stop_strings", "rewards", "terminateds", "answers"]
    return {
        "arguments of _create_advantage_estimator": (
            _arguments(grpo._create_advantage_estimator),
            ["master_config"],
        ),
        "arguments of an estimator": (
            _arguments(grpo.GDPOAdvantageEstimator),
            ["estimator_config", "loss_config"],
        ),
        "arguments of _log_mixed_rewards_and_advantages_information": (
            _arguments(grpo._log_mixed_rewards_and_advantages_information),
            ["logger", "total_steps", "metrics", "baseline", "advantages"],
        ),
        "what trainers pass to compute_advantage": (
            [sorted(call & _PASSED) for call in _calls(grpo, "compute_advantage")],
            [sorted(_PASSED)] * 2,
        ),
        "further fields of AdvEstimatorConfig": (config.model_config.get("extra"), "allow"),
        "fields that AdvEstimatorConfig lacks": (fields - set(config.model_fields), set()),
        "fields that GRPOConfig lacks": (settings - set(grpo.GRPOConfig.model_fields), set()),
        "fields of EnvironmentReturn": (list(nemo_rl.interfaces.EnvironmentReturn._fields), answer),
        "arguments of register_env": (
            _arguments(nemo_rl.environments.register_env),
            ["env_name", "actor_class_fqn"],
        ),
        "arguments of extract_necessary_env_names": (
            _arguments(nemo_rl.data.extract_necessary_env_names),
            ["data_config"],
        ),
    }


def _arguments(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _calls(module: Any, name: str) -> list[set[str]]:
    """The keywords of every call of a method of this name."""
    tree = ast.parse(inspect.getsource(module))
    return [
        {str(keyword.arg) for keyword in node.keywords}
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    ]
