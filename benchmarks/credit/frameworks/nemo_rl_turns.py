"""Runs the estimator of NeMo-RL's pull request 3543, from the checkout in `NEMO_RL_SOURCE`."""

# ruff: noqa: E402  NeMo-RL is made importable first
import os
import sys
import typing
import warnings
from pathlib import Path

import typing_extensions

warnings.simplefilter("ignore")
if sys.version_info < (3, 12):  # pydantic accepts no other type there
    typing.TypedDict = typing_extensions.TypedDict

SOURCE = Path(os.environ["NEMO_RL_SOURCE"])
sys.path[:0] = [str(SOURCE), str(SOURCE / "research" / "turn_level_credit")]

import numpy as np
import torch
from bias import Subject, print_lines
from layout import STEP, of_turns, on_tokens, prompt_of_rows, scalars, taken
from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GRPOAdvantageEstimator
from turn_level_credit import TurnBatch, TurnCreditConfig, TurnLevelGRPOAdvantageEstimator
from turn_level_credit.trace import attach_turn_batch


def turn_batch(r, mask):
    """Return the rewards of the turns, with a span of one token for each turn."""
    rows, longest = r.shape[0] * r.shape[1], r.shape[2]
    there = torch.tensor(mask.reshape(rows, longest))
    start = torch.arange(0, longest * STEP, STEP).expand(rows, -1)
    spans = torch.stack([start, start + 1], dim=2) * there[..., None]
    last = there & ~torch.cat([there[:, 1:], torch.zeros(rows, 1, dtype=torch.bool)], dim=1)
    paid = torch.tensor(np.where(mask, r, 0).reshape(rows, longest), dtype=torch.float32)
    return TurnBatch(paid, there, there, spans, last)


def wrapped(**options):
    base = GRPOAdvantageEstimator(AdvEstimatorConfig(normalize_rewards=False), None)
    whole = TurnLevelGRPOAdvantageEstimator(
        base_estimator=base, config=TurnCreditConfig(enabled=True, **options)
    )

    def estimator(rewards, weights, *, turns):
        r = scalars(rewards, weights)
        mask = taken(turns, r.shape[2])
        batch: dict[str, typing.Any] = {}
        attach_turn_batch(batch, turn_batch(r, mask))
        totals = np.where(mask, r, 0).sum(2).reshape(-1)
        advantages = whole.compute_advantage(
            torch.tensor(prompt_of_rows(r.shape))[:, None],
            torch.tensor(totals, dtype=torch.float32),
            torch.tensor(on_tokens(r, mask)[1]),
            repeated_batch=batch,
        )
        return of_turns(advantages, r.shape)

    return estimator


if __name__ == "__main__":
    subjects = [
        Subject("immediate, turn_weight 0.2", wrapped(turn_weight=0.2)),
        Subject(
            "return_to_go, turn_weight 0.2",
            wrapped(turn_weight=0.2, environment_mode="return_to_go"),
        ),
        Subject("immediate alone", wrapped(turn_weight=1.0, macro_weight=0.0)),
    ]
    print_lines("NeMo-RL", "#3543, 0ebab92", subjects)
