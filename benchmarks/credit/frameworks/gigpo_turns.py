"""Runs GiGPO of verl-agent's authors, from the checkout in `GIGPO_SOURCE`.

The listed agents have one state per turn. Anchors by state then compare the rollouts of a group at
the same turn.
"""

import os
import sys
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import torch
from bias import Subject, print_lines
from layout import scalars, taken
from verl import DataProto

sys.path.insert(0, os.environ["GIGPO_SOURCE"])

from gigpo.core_gigpo import compute_gigpo_outcome_advantage, compute_step_discounted_returns


def rows_of(rewards, weights, turns):
    """Return one row per turn that was taken: rewards, totals, prompts, rollouts and turns."""
    r = scalars(rewards, weights)
    mask = taken(turns, r.shape[2])
    prompt, sample, turn = np.nonzero(mask)
    totals = np.where(mask, r, 0).sum(2)
    return r[mask], totals[prompt, sample], prompt, prompt * r.shape[1] + sample, turn


def wrapped(mode, step_weight):
    def estimator(rewards, weights, *, turns):
        r, totals, prompt, rollout, turn = rows_of(rewards, weights, turns)
        batch = DataProto.from_dict(
            tensors={"input_ids": torch.zeros(len(r), 1)},
            non_tensors={
                "rewards": r,
                "traj_uid": rollout,
                "active_masks": np.ones(len(r)),
                "env_step": turn,
            },
        )
        returns = compute_step_discounted_returns(batch, 1.0)
        with redirect_stdout(StringIO()):
            advantages, _ = compute_gigpo_outcome_advantage(
                torch.tensor(totals, dtype=torch.float32)[:, None],
                returns,
                torch.ones(len(r), 1),
                anchor_obs=turn.astype(str),
                index=prompt,
                traj_index=rollout,
                step_advantage_w=step_weight,
                mode=mode,
            )
        result = np.zeros(np.asarray(rewards).shape[:3])
        result[taken(turns, result.shape[2])] = advantages[:, 0].numpy()
        return result

    return estimator


if __name__ == "__main__":
    subjects = [
        Subject("gigpo, mean_norm", wrapped("mean_norm", 1.0)),
        Subject("gigpo, mean_std_norm", wrapped("mean_std_norm", 1.0), scaled=True),
    ]
    print_lines("GiGPO", "3b556f2", subjects)
