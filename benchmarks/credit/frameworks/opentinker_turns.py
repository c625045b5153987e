"""Runs the `grpo_per_step` estimator of OpenTinker, from the checkout in `OPENTINKER_SOURCE`."""

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bias import Subject, print_lines
from layout import of_turns, on_tokens, prompt_of_rows, scalars, taken

INSIDE = "opentinker/backend_patch/verl/trainer/ppo"
sys.path.insert(0, str(Path(os.environ["OPENTINKER_SOURCE"], INSIDE)))

from per_step_core_algos import compute_grpo_per_step_advantage  # noqa: E402


def estimator(rewards, weights, *, turns, by_std=False):
    r = scalars(rewards, weights)
    values, mask = on_tokens(r, taken(turns, r.shape[2]))
    rows = zip(r.reshape(-1, r.shape[2]), np.asarray(turns).reshape(-1), strict=True)
    scores = np.empty(len(values), dtype=object)
    scores[:] = [list(map(float, row[:count])) for row, count in rows]
    advantages, _ = compute_grpo_per_step_advantage(
        torch.tensor(values),
        torch.tensor(mask),
        prompt_of_rows(r.shape),
        turn_scores=scores,
        norm_adv_by_std_in_grpo=by_std,
    )
    return of_turns(advantages, r.shape)


if __name__ == "__main__":
    name = "grpo_per_step"
    subjects = [
        Subject(f"{name}, norm_adv_by_std_in_grpo=False", estimator),
        Subject(name, partial(estimator, by_std=True), scaled=True),
    ]
    print_lines("OpenTinker", "f87fe25", subjects)
