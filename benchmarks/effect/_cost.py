"""Measures the CPU time that the account of 10 in 100 steps adds to a training run."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import torch
from benchmarks.forks._tasks import FORKED
from benchmarks.forks._unit import recipe_of

from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.runs.directory import create_run
from gdpo.lab.training._interrupt import StopRequest
from gdpo.lab.training._loop import Loop, make_trainer
from gdpo.lab.training._progress import RunView
from gdpo.lab.training.preflight import prepare, quiet

STEPS, REPEATS, WARM_START = 100, 5, 11


def print_costs() -> None:
    """Print for each task the share of CPU time that the account adds: median and range."""
    torch.set_num_threads(1)
    for task in FORKED:
        added = [_seconds(task, STEPS) / _seconds(task, None) - 1 for _ in range(REPEATS)]
        print(f"{task}: + {median(added):.0%} CPU time ({min(added):.0%} to {max(added):.0%})")


def _seconds(task: str, every: int | None) -> float:
    """Return the CPU seconds of a training run. `every` is `effect_every`."""
    with TemporaryDirectory() as folder, quiet():
        recipe = recipe_of(task, WARM_START, "gdpo", Path(folder))
        settings = {"max_steps": STEPS, "save_strategy": "no", "effect_every": every}
        recipe = recipe.model_copy(update={"trainer": {**recipe.trainer, **settings}})
        job, run = prepare(resolve(recipe), rows=4), create_run(recipe, {})
        loop = Loop(job, run, RunView(recipe.name, [], STEPS), StopRequest())
        trainer = make_trainer(loop, None)
        begun = process_time()
        with trainer.scorer:
            trainer.train()
        return process_time() - begun
