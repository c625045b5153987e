"""Runs rLLM's own code from trajectory groups to the advantage of each step, with our estimator.

    PYTHONPATH=<checkout of rLLM> python tests/conformance/others/rllm_paths.py

Prints one line of JSON per path and number of rewards. `--own` leaves the estimator to rLLM's grpo,
over the sum of the rewards.
"""

import asyncio
import sys

import numpy as np
from adapters import adapter
from batches import HALF_LIFE, ONE_BY_ONE, print_lines
from omegaconf import OmegaConf
from rllm.trainer.algorithms import (
    AlgorithmConfig,
    CompactFilteringConfig,
    RejectionSamplingConfig,
    TransformConfig,
)
from rllm.trainer.algorithms.advantage import collect_reward_and_advantage_from_trajectory_groups
from rllm.trainer.buffer import TrajectoryGroupBuffer
from rllm.trainer.metrics_aggregator import MetricsAggregator
from rllm.trainer.sync_coordinator import SyncCoordinator, SyncCoordinatorConfig
from rllm.types import Episode, Step, Trajectory, TrajectoryGroup

register = adapter("rllm").register
OWN = "--own" in sys.argv


def trajectories_of(batch):
    return [
        Trajectory(
            name="solver",
            reward=float(np.nansum(row * batch.weights)),
            signals=dict(zip(batch.names, row.tolist(), strict=True)),
            steps=[Step(response_ids=[1] * int(n)), Step(response_ids=[2])],
        )
        for row, n in zip(batch.values, batch.lengths, strict=True)
    ]


def advantages_of(trajectories):
    first, last = ([t.steps[i].advantage for t in trajectories] for i in (0, -1))
    assert first == last
    return first


def collected(batch, name, config):
    if not OWN:
        register(name, reward_keys=batch.names, reward_weights=batch.weights)
    trajectories = trajectories_of(batch)
    groups = [
        TrajectoryGroup(
            group_id=f"task{p}:solver",
            trajectories=[t for t, q in zip(trajectories, batch.prompts, strict=True) if q == p],
        )
        for p in range(len(batch.sizes))
    ]
    collect_reward_and_advantage_from_trajectory_groups(groups, config)
    return advantages_of(trajectories)


def by_buffer(batch):
    """Use the buffer of asynchronous training, which computes advantages per finished task."""
    name = "grpo" if OWN else "gdpo"
    if not OWN:
        register(reward_keys=batch.names, reward_weights=batch.weights, options=HALF_LIFE)
    config = AlgorithmConfig(estimator_map={"solver": name})
    trajectories = trajectories_of(batch)
    asyncio.run(fill(batch, trajectories, config))
    return advantages_of(trajectories)


async def fill(batch, trajectories, config):
    for prompt, size in enumerate(batch.sizes):
        buffer = TrajectoryGroupBuffer(
            group_size=int(size),
            coordinator=SyncCoordinator(SyncCoordinatorConfig(1, int(size), 0.0, 1)),
            aggregator=MetricsAggregator(),
            algorithm_config=config,
            transform_config=TransformConfig(),
            cf_config=CompactFilteringConfig(),
            rs_config=RejectionSamplingConfig(min_trajs_per_group=1),
        )
        for row in np.flatnonzero(batch.prompts == prompt).tolist():
            episode = Episode(id=f"task{prompt}:{row}", trajectories=[trajectories[row]])
            await buffer.add_episode(f"task{prompt}", episode)
        assert len((await buffer.get()).groups) == 1


def by_map(batch):
    name = "grpo" if OWN else "gdpo"
    return collected(batch, name, AlgorithmConfig(estimator_map={"solver": name}))


def by_file(batch):
    """Use a configuration file with `adv_estimator: gdpo`, which rLLM looks up as "other"."""
    section = OmegaConf.create({"adv_estimator": "grpo" if OWN else "gdpo"})
    return collected(batch, "other", AlgorithmConfig.from_config(section))


if __name__ == "__main__":
    paths = {
        "traj_group_adv_estimator_map": by_map,
        "adv_estimator: gdpo": by_file,
        f"async_training, {ONE_BY_ONE}": by_buffer,
    }
    print_lines("rllm", paths)
