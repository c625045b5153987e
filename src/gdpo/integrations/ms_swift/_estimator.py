"""ms-swift's two functions for advantages, replaced where `--scale_rewards gdpo` is set."""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np

from gdpo.advantages import resolve_estimator
from gdpo.advantages.registry import check_advantages
from gdpo.errors import ConfigError
from gdpo.integrations.rows import as_groups

VERSIONS = ("4.6.",)
"""Of ms-swift: those whose functions are known here."""


def use_estimator(name: str = "gdpo") -> None:
    """Compute advantages by an estimator of ours wherever `--scale_rewards gdpo` is set.

    Args:
        name: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`; one without options.

    Raises:
        ConfigError: An unknown estimator, or a version of ms-swift that is not known here.
    """
    version = import_module("swift").__version__
    if not version.startswith(VERSIONS):
        raise ConfigError(
            f"use_estimator replaces functions of ms-swift {VERSIONS[0]}x; this is {version}. "
            "Leave it out: --scale_rewards gdpo is then ms-swift's own"
        )
    advantage = import_module("swift.rl_core.advantage")
    swift = [module for key, module in sys.modules.items() if key.partition(".")[0] == "swift"]
    for function in (advantage.compute_advantages, advantage.compute_advantages_dynamic):
        replaced = with_estimator(function, name)
        for module in swift:
            if vars(module).get(function.__name__) is function:
                setattr(module, function.__name__, replaced)


def with_estimator(compute: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`compute_advantages`, or its form for samples with ids; both get the rewards one by one."""
    estimator = resolve_estimator(name)

    @wraps(compute)
    def computed(**given: Any) -> tuple[Any, Any]:
        if given["scale_rewards"] != "gdpo":
            return compute(**given)
        if given["advantage_estimator"] != "grpo" or (given["kl_in_reward"] and given["beta"]):
            raise ConfigError(
                f"--advantage_estimator {given['advantage_estimator']} and --kl_in_reward "
                f"{given['kl_in_reward']} have no effect on the estimator {name!r}, which takes "
                "their place: leave them at grpo and false"
            )
        _, totals = compute(**given)  # they are logged
        rows = range(len(given["rewards_per_func"]))
        requests = given.get("request_ids", rows)
        prompts = given.get("prompt_ids") or [row // given["num_generations"] for row in rows]
        last = {request: row for row, request in enumerate(requests)}
        rewards = given["rewards_per_func"].double().cpu().numpy()
        ones = np.ones(len(rewards), dtype=np.int64)
        groups = as_groups(rewards, prompts, ones, outputs=[last[request] for request in requests])
        advantages = estimator(groups.rewards, given["reward_weights"].double().cpu().numpy())
        check_advantages(advantages, groups.rewards, name)
        return given["rewards_per_func"].new_tensor(groups.per_row(advantages)), totals

    return computed
