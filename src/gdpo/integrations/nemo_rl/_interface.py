"""Checks the parts of NeMo-RL's source code that this package relies on.

NeMo-RL is installed from its repository, so the version number does not identify the code.
"""

import ast
import inspect
from importlib import import_module
from typing import Any

KNOWN_COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
"""Supported commit of github.com/NVIDIA-NeMo/RL, used in the conformance tests."""

_PASSED = {"prompt_ids", "rewards", "mask", "repeated_batch"}


class Modules:
    """Imports the modules of NeMo-RL that this package reads or changes.

    Raises:
        ImportError: If NeMo-RL cannot be imported, or if one of these modules is missing.
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
    """Return a description of the first difference from the supported code, or None."""
    try:
        found = _found(nemo_rl)
    except (AttributeError, TypeError, OSError, SyntaxError) as error:
        return str(error)
    for what, (is_so, wanted) in found.items():
        if is_so != wanted:
            return f"{what}: {is_so} instead of {wanted}"
    return None


def _found(nemo_rl: Modules) -> dict[str, tuple[Any, Any]]:
    """Return the actual and the expected value of each checked property of NeMo-RL's code."""
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
        "arguments that trainers pass to compute_advantage": (
            [sorted(call & _PASSED) for call in _calls(grpo, "compute_advantage")],
            [sorted(_PASSED)] * 2,
        ),
        "extra fields of AdvEstimatorConfig": (config.model_config.get("extra"), "allow"),
        "missing fields of AdvEstimatorConfig": (fields - set(config.model_fields), set()),
        "missing fields of GRPOConfig": (settings - set(grpo.GRPOConfig.model_fields), set()),
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
    """Return the keyword arguments of every call to a method with this name."""
    tree = ast.parse(inspect.getsource(module))
    return [
        {str(keyword.arg) for keyword in node.keywords}
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    ]
