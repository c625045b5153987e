"""Rewards that read their value from the completion: a list of numbers as JSON."""

import json

from gdpo import Reward


def reward(k):
    """The number at this place; null: does not apply."""
    return Reward(f"reward_{k}", lambda text, reference: json.loads(text)[k], low=0.0, high=100.0)
