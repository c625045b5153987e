"""The rollout record: one format for what was sampled, rewarded and learned from."""

from gdpo.rollouts.record import Rollout, read_rollouts, reward_arrays, rollout_file, write_rollouts
from gdpo.rollouts.writing import StepWriter

__all__ = [
    "Rollout",
    "StepWriter",
    "read_rollouts",
    "reward_arrays",
    "rollout_file",
    "write_rollouts",
]
