"""Defines the rollout record: a file format for completions, rewards and advantages."""

from gdpo.rollouts.record import (
    Rollout,
    Turn,
    read_rollouts,
    reward_arrays,
    rollout_file,
    write_rollouts,
)
from gdpo.rollouts.writing import StepWriter

__all__ = [
    "Rollout",
    "StepWriter",
    "Turn",
    "read_rollouts",
    "reward_arrays",
    "rollout_file",
    "write_rollouts",
]
