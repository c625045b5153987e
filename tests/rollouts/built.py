"""A rollout of gdpo's record, with a value for everything that a test does not name."""

from gdpo.rollouts import Rollout

REST = {"run": "r", "prompt": "q", "completion": "a", "finish_reason": "stop"}


def rollout(step, group, sample, rewards, **more):
    """A rollout with these rewards by name, each with weight 1."""
    numbers = {"weights": dict.fromkeys(rewards, 1.0), "advantage": 0.0, "num_tokens": 1}
    given = {"step": step, "group_id": group, "sample_id": sample, "rewards": rewards}
    return Rollout(**{**REST, **numbers, **given, **more})
