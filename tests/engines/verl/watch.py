"""Measures the plugin inside verl: each process of verl imports this module.

verl does so for VERL_USE_EXTERNAL_MODULES. Two variables select what is written:

- GDPO_TIMES: file with one JSON line per call of the plugin: its CPU and wall seconds.
- GDPO_SEEN: folder of a rollout record with the rewards and advantages of each batch, in the rows
  that verl passes to the estimator. verl's older trainers do not write a record themselves.
"""

import functools
import json
import os
import time
from pathlib import Path

import numpy as np

from gdpo.integrations.verl import _trainers
from gdpo.integrations.verl._run import VerlRun
from gdpo.rollouts import Rollout, rollout_file, write_rollouts

TIMED = (
    (_trainers, "fetch_columns"),
    (VerlRun, "record"),
    (VerlRun, "metrics"),
    (VerlRun, "compute_advantages"),
)


def timed(function, file):
    """Return a function that also writes how long each call took."""

    @functools.wraps(function)
    def measured(*args, **kwargs):
        wall, cpu = time.perf_counter(), time.thread_time()
        done = function(*args, **kwargs)
        taken = {"cpu": time.thread_time() - cpu, "wall": time.perf_counter() - wall}
        with file.open("a") as lines:
            lines.write(json.dumps({"name": function.__name__, **taken}) + "\n")
        return done

    return measured


def seen(function, folder):
    """Return an estimator that also writes each batch as a step of a rollout record."""

    @functools.wraps(function)
    def computed(run, token_level_rewards, response_mask, config, index, *args, **kwargs):
        done = function(run, token_level_rewards, response_mask, config, index, *args, **kwargs)
        if not run.is_checked:  # this batch is made up for the check at start
            return done
        step = len(list(folder.glob("step_*.parquet"))) + 1
        rows = rollouts(run, step, done[0], response_mask, config, list(index))
        write_rollouts(rollout_file(folder, step), rows)
        return done

    return computed


def rollouts(run, step, advantages, response_mask, config, index):
    settings, columns = run.settings(config), run.carried.columns
    numbers = {prompt: i for i, prompt in enumerate(dict.fromkeys(index))}
    # The advantage is the same at all trained tokens of a row, and 0 at the others.
    summed, lengths = advantages.sum(-1).tolist(), response_mask.sum(-1).tolist()
    return [
        Rollout(
            run="",
            step=step,
            group_id=numbers[prompt],
            sample_id=index[:row].count(prompt),
            prompt="",
            completion="",
            rewards={name: float(columns[name][row]) for name in settings.names},
            weights=dict(zip(settings.names, settings.weights, strict=True)),
            advantage=float(np.divide(summed[row], max(lengths[row], 1))),
            num_tokens=int(lengths[row]),
            finish_reason="",
        )
        for row, prompt in enumerate(index)
    ]


if times := os.environ.get("GDPO_TIMES"):
    for place, name in TIMED:
        setattr(place, name, timed(getattr(place, name), Path(times)))

if folder := os.environ.get("GDPO_SEEN"):
    VerlRun.compute_advantages = seen(VerlRun.compute_advantages, Path(folder))
