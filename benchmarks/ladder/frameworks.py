"""Computes advantages with the GDPO that a framework ships today, without our plugin.

    PYTHON benchmarks/ladder/frameworks.py verl|nemo_rl FILE

Runs in the framework's environment of `python -m tests.conformance`. FILE (.npz) holds
`rewards[rollout, reward]`, `weights[reward]`, `mask[rollout, token]` and `group[rollout]`. The
advantages of the rollouts and the framework's version take their place.
"""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import torch


def verl(rewards, weights, mask, group):
    """Call the function as verl's `compute_advantage` does."""
    from verl import __version__
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    columns = {f"reward_{k}": rewards[:, k] for k in range(len(weights))}
    prompts = torch.ones(len(mask), 1, dtype=torch.long)
    advantages, _ = get_adv_estimator_fn("gdpo")(
        token_level_rewards=torch.zeros(mask.shape),
        response_mask=mask,
        index=group,
        config={"gdpo_reward_keys": list(columns), "gdpo_reward_weights": weights.tolist()},
        non_tensor_batch=columns,
        batch={"prompts": prompts, "attention_mask": torch.cat([prompts, mask], 1)},
    )
    return __version__, advantages


def nemo_rl(rewards, weights, mask, group):
    """Create and call the estimator as NeMo-RL's trainer does, with its configuration for GDPO."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "conformance" / "nemo_rl"))
    configured = import_module("source").configured  # before any module of NeMo-RL
    from nemo_rl import __version__
    from nemo_rl.algorithms import grpo

    columns = {f"reward/{k}": torch.tensor(rewards[:, k]) for k in range(len(weights))}
    estimator = grpo._create_advantage_estimator(configured(reward_weights=weights.tolist()))
    return __version__, estimator.compute_advantage(
        prompt_ids=torch.tensor(group)[:, None],
        rewards=torch.tensor(rewards.sum(-1)),
        mask=mask,
        repeated_batch=columns,
    )


if __name__ == "__main__":
    name, file = sys.argv[1:]
    with np.load(file) as given:
        inputs = {key: given[key] for key in given}
    inputs["mask"] = torch.tensor(inputs["mask"])
    version, advantages = {"verl": verl, "nemo_rl": nemo_rl}[name](**inputs)
    np.savez(file, version=version, advantages=advantages[:, 0].numpy())
