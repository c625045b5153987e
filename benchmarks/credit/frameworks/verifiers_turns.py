"""Runs `apply_step_advantages` of verifiers' pull request 1554, from `VERIFIERS_SOURCE`.

The function centers the returns-to-go of all turns of a group and divides them by their standard
deviation. It has no option without the division. `times_std` multiplies by the same standard
deviation again, so that the size of the gradient can be compared as well.
"""

import os
import sys
from functools import partial

import numpy as np
from bias import Subject, print_lines
from layout import scalars, taken

sys.path.insert(0, os.environ["VERIFIERS_SOURCE"])

from verifiers.utils.step_reward_utils import apply_step_advantages

EPS = 1e-8
"""What the function adds to the standard deviation."""


def estimator(rewards, weights, *, turns, gamma=1.0, times_std=False):
    r = scalars(rewards, weights)
    result = np.zeros(r.shape)
    for prompt, (paid, mask) in enumerate(zip(r, taken(turns, r.shape[2]), strict=True)):
        pairs = zip(paid, mask, strict=True)
        steps = [[{"reward": float(each)} for each in row[there]] for row, there in pairs]
        states = [{"trajectory": trajectory} for trajectory in steps]
        apply_step_advantages(states, gamma=gamma)
        flat = [step for trajectory in steps for step in trajectory]
        # The function replaces the rewards by the returns-to-go.
        std = np.std([step["reward"] for step in flat]) + EPS if times_std else 1.0
        result[prompt][mask] = [step["advantage"] * std for step in flat]
    return result


if __name__ == "__main__":
    name = "apply_step_advantages"
    subjects = [
        Subject(f"{name}, gamma 1, times std", partial(estimator, times_std=True)),
        Subject(f"{name}, gamma 1", estimator, scaled=True),
    ]
    print_lines("verifiers", "#1554, cb2c520", subjects)
