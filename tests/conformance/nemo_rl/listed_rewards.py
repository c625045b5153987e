"""Defines rewards that read their values from the completion: a JSON list of numbers."""

import json

from gdpo import Reward


def reward(k):
    """Return a reward that reads the k-th number; null: it does not apply."""
    return Reward(f"reward_{k}", lambda text, reference: json.loads(text)[k], low=0.0, high=100.0)


of_2, of_3, of_5 = ([reward(k) for k in range(count)] for count in (2, 3, 5))
