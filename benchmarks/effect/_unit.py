"""Runs one unit: a task, a warm start, an estimator. Trains, forks, predicts, and accounts."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.effect._account import LENGTHS, Window
from benchmarks.effect._keep import STEPS, Kept, keeping
from benchmarks.effect._state import predicted
from benchmarks.effect._vectors import Gradients
from benchmarks.forks._fork import POINTS
from benchmarks.forks._tasks import FORKED
from benchmarks.forks._unit import Unit, recipe_of, write_record


def run_unit(task: str, warm_start: int, estimator: str, folder: Path) -> dict[str, Any]:
    """Train, fork at every point, predict and account, and return the record."""
    torch.set_num_threads(1)
    kept = Kept()
    recipe = recipe_of(task, warm_start, estimator, folder)
    recipe = recipe.model_copy(update={"trainer": {**recipe.trainer, "max_steps": STEPS}})
    name = f"{task}-{warm_start}-{estimator}"
    unit = Unit(name, recipe, folder, FORKED[task], kept=lambda made: keeping(kept, made))
    trainer = unit.run.trainer
    gradients = Gradients(trainer.model, trainer.processing_class.pad_token_id)
    settings = {
        "names": unit.names,
        "ranges": [unit.ranges[each] for each in unit.names],
        "estimator": estimator,
        "weights": np.array(trainer.reward_weights, np.float64),
        "longest": trainer.args.max_grad_norm,
    }
    states = []
    for point in POINTS:
        found = unit.state(point, switches=False)
        found["predicted"] = predicted(unit.start, kept, point, gradients, settings)
        found["account"] = Window(kept, point, gradients, settings).record()
        found["changes"] = {length: unit.change(point, point + length) for length in LENGTHS}
        states.append(found)
    unit.remove()
    return {
        "task": task,
        "warm_start": warm_start,
        "estimator": estimator,
        "rewards": {name: list(bounds) for name, bounds in unit.ranges.items()},
        "states": states,
        "unchanged forks equal": unit.equal,
        "seconds": unit.seconds,
    }


def record_unit(unit: tuple[int, str, str], folder: Path, record: Path) -> None:
    """Run a unit of warm start, task and estimator, with its output in a file."""
    warm_start, task, estimator = unit
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / f"{record.stem}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    write_record(run_unit(task, warm_start, estimator, folder), record)
