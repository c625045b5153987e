"""Runs rLLM's own code from trajectory groups to the advantage of each step, with our estimator.

    PYTHONPATH=<checkout of rLLM> python tests/conformance/others/rllm_paths.py

Prints one line of JSON per path and number of rewards. `--own` leaves the estimator to rLLM's grpo,
over the sum of the rewards.
"""

import sys

import numpy as np
from batches import print_lines
from omegaconf import OmegaConf
from rllm.trainer.algorithms import AlgorithmConfig
from rllm.trainer.algorithms.advantage import collect_reward_and_advantage_from_trajectory_groups
from rllm.types import Step, Trajectory, TrajectoryGroup

from gdpo.integrations.rllm import register

OWN = "--own" in sys.argv


def collected(batch, name, config):
    if not OWN:
        register(name, reward_keys=batch.names, reward_weights=batch.weights)
    trajectories = [
        Trajectory(
            name="solver",
            reward=float(np.nansum(row * batch.weights)),
            signals=dict(zip(batch.names, row.tolist(), strict=True)),
            steps=[Step(response_ids=[1] * int(n)), Step(response_ids=[2])],
        )
        for row, n in zip(batch.values, batch.lengths, strict=True)
    ]
    groups = [
        TrajectoryGroup(
            group_id=f"task{p}:solver",
            trajectories=[t for t, q in zip(trajectories, batch.prompts, strict=True) if q == p],
        )
        for p in range(len(batch.sizes))
    ]
    collect_reward_and_advantage_from_trajectory_groups(groups, config)
    first, last = ([t.steps[i].advantage for t in trajectories] for i in (0, -1))
    assert first == last
    return first


def by_map(batch):
    name = "grpo" if OWN else "gdpo"
    return collected(batch, name, AlgorithmConfig(estimator_map={"solver": name}))


def by_file(batch):
    """Use a configuration file with `adv_estimator: gdpo`, which rLLM looks up as "other"."""
    section = OmegaConf.create({"adv_estimator": "grpo" if OWN else "gdpo"})
    return collected(batch, "other", AlgorithmConfig.from_config(section))


if __name__ == "__main__":
    print_lines("rllm", {"traj_group_adv_estimator_map": by_map, "adv_estimator: gdpo": by_file})
