"""Runs SkyRL's estimators on rewards per turn, from the package in `SKYRL_SOURCE`.

SkyRL places the reward of each `env.step` on the last token of the turn. Its `response_mask` also
covers the tokens of the environment, and responses end at the right edge.
"""

# ruff: noqa: E402  SkyRL is made importable first
import os
import sys
import typing
from pathlib import Path

import typing_extensions

if sys.version_info < (3, 12):  # SkyRL needs Python 3.12
    typing.TypedDict = typing_extensions.TypedDict

SOURCE = Path(os.environ["SKYRL_SOURCE"])
sys.path[:0] = [str(SOURCE), str(SOURCE / "skyrl-gym")]

import numpy as np
import torch
from bias import Subject, print_lines
from layout import STEP, on_tokens, prompt_of_rows, scalars, taken
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import AlgorithmConfig


def to_the_right(rows, lengths):
    """Return the rows moved so that each one ends at the right edge."""
    return np.stack([np.roll(row, len(row) - n) for row, n in zip(rows, lengths, strict=True)])


def wrapped(name, **options):
    def estimator(rewards, weights, *, turns):
        r = scalars(rewards, weights)
        values, own = on_tokens(r, taken(turns, r.shape[2]))
        # A response ends with the model's token of its last turn.
        lengths = np.asarray(turns).reshape(-1) * STEP - 1
        shape = values.shape
        values, own = to_the_right(values, lengths), to_the_right(own, lengths)
        mask = np.arange(shape[1]) >= shape[1] - lengths[:, None]
        advantages, _ = ppo_utils.compute_advantages_and_returns(
            token_level_rewards=torch.tensor(values),
            response_mask=torch.tensor(mask.astype(np.int64)),
            index=[str(prompt) for prompt in prompt_of_rows(r.shape)],
            adv_estimator=name,
            config=AlgorithmConfig(),
            values=torch.zeros(shape),
            **({"grpo_norm_by_std": True, "gamma": 1.0, "lambd": 1.0} | options),
        )
        result = np.zeros(r.shape)
        result[taken(turns, r.shape[2])] = advantages.numpy()[own > 0]
        return result

    return estimator


if __name__ == "__main__":
    subjects = [
        Subject("grpo, grpo_norm_by_std false", wrapped("grpo", grpo_norm_by_std=False)),
        Subject("grpo", wrapped("grpo"), scaled=True),
        Subject("rloo", wrapped("rloo")),
        Subject("reinforce++, gamma 1", wrapped("reinforce++"), batch=True),
        Subject("gae, values 0, lambd 1", wrapped("gae"), batch=True),
    ]
    print_lines("SkyRL", "0.4.0", subjects)
