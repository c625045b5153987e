"""Runs PipelineRL's `populate_rl_data`, from the checkout in `PIPELINERL_SOURCE`.

PipelineRL trains on one text per turn. A text's reward is the reward of the turn, or, with
`apply_rollout_reward`, the reward of the whole rollout.
"""

import os
import sys

import numpy as np
from bias import Subject, print_lines
from layout import scalars, taken

sys.path.insert(0, os.environ["PIPELINERL_SOURCE"])

from pipelinerl.finetune.rl import RLConfig, populate_rl_data

TOKEN = 7


def text_of(reward, prompt, sample, turn):
    """Return a text of one token, with the fields that the function reads."""
    lists = {"input_ids": TOKEN, "labels": TOKEN, "overflow": 0.0, "advantages": 0.0}
    return {
        "group_id": str(prompt),
        "rollout_index": int(sample),
        "step_index": int(turn),
        "rewards": [float(reward)],
        "group_tokens": [0.0],
        "finished": True,
        **{name: [value] for name, value in lists.items()},
    }


def wrapped(*, whole_rollout, by_std=False):
    config = RLConfig(divide_advantage_by_std=by_std)

    def estimator(rewards, weights, *, turns):
        r = scalars(rewards, weights)
        mask = taken(turns, r.shape[2])
        if whole_rollout:
            r = np.broadcast_to(np.where(mask, r, 0).sum(2, keepdims=True), r.shape)
        texts = [text_of(r[place], *place) for place in zip(*np.nonzero(mask), strict=True)]
        result = np.zeros(r.shape)
        found = populate_rl_data(texts, eos_token_id=TOKEN, config=config)
        result[mask] = [text["advantages"][0] for text in found]
        return result

    return estimator


if __name__ == "__main__":
    name = "populate_rl_data"
    per_turn, by_std = wrapped(whole_rollout=False), wrapped(whole_rollout=False, by_std=True)
    subjects = [
        Subject(f"{name}, rewards of turns", per_turn),
        Subject(f"{name}, reward of the rollout", wrapped(whole_rollout=True)),
        Subject(f"{name}, rewards of turns, divide_advantage_by_std", by_std, scaled=True),
    ]
    print_lines("PipelineRL", "58d3934", subjects)
