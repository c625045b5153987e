"""Runs the MT-GRPO advantages of Atropos, from the checkout in `ATROPOS_SOURCE`.

The rewards are rewards of turns, and the outcome is 0. The method divides the rewards of each turn
index by their standard deviation. `times_std` multiplies by the same standard deviation again.
"""

import os
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
from bias import Subject, print_lines
from layout import scalars, taken

sys.path.insert(0, os.environ["ATROPOS_SOURCE"])

from environments.tool_use_turnlevel_advantage_server import BaseMTGRPOEnv

# The method reads nothing else of its environment, which needs a tokenizer and a server.
ENVIRONMENT = SimpleNamespace(config=SimpleNamespace(turn_level_advantage_lambda=1.0))


def estimator(rewards, weights, *, turns, times_std=False):
    r = scalars(rewards, weights)
    result = np.zeros(r.shape)
    for prompt, (paid, mask) in enumerate(zip(r, taken(turns, r.shape[2]), strict=True)):
        own = [row[there].tolist() for row, there in zip(paid, mask, strict=True)]
        found = BaseMTGRPOEnv._compute_mt_grpo_advantages(ENVIRONMENT, own, [0.0] * len(own))
        result[prompt][mask] = np.concatenate(found)
        if times_std:
            std = np.std(np.where(mask, paid, 0.0), axis=0)
            result[prompt] *= np.where(std > 0, std, 1.0)
    return result


if __name__ == "__main__":
    name = "_compute_mt_grpo_advantages"
    subjects = [
        Subject(f"{name}, times std", partial(estimator, times_std=True)),
        Subject(name, estimator, scaled=True),
    ]
    print_lines("Atropos", "296a0bc", subjects)
