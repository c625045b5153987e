"""Runs the advantages of IGPO's fork of verl, from the checkout in `IGPO_SOURCE`."""

import importlib.util
import os
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import torch
from bias import Subject, print_lines
from layout import STEP, of_turns, on_tokens, prompt_of_rows, scalars, taken

PATH = Path(os.environ["IGPO_SOURCE"], "verl/trainer/ppo/core_algos.py")
spec = importlib.util.spec_from_file_location("igpo_core_algos", PATH)
igpo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(igpo)


def estimator(rewards, weights, *, turns, observations):
    r = scalars(rewards, weights)
    values, mask = on_tokens(r, taken(turns, r.shape[2]))
    if not observations:
        values, mask = values[:, ::STEP].copy(), mask[:, ::STEP].copy()
    given = torch.tensor(values), torch.tensor(mask), prompt_of_rows(r.shape)
    with redirect_stdout(StringIO()):
        advantages = igpo.compute_grpo_outcome_advantage(*given)[0].numpy()
    return of_turns(advantages, r.shape) if observations else advantages.reshape(r.shape)


if __name__ == "__main__":
    name = "compute_grpo_outcome_advantage"
    subjects = [
        Subject(f"{name}, masked observations", partial(estimator, observations=True)),
        Subject(f"{name}, no observations", partial(estimator, observations=False)),
    ]
    print_lines("IGPO", "bff163b", subjects)
