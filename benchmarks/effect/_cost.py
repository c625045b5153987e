"""Measures the CPU time that the account of 10 in 100 steps adds to a training run."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from benchmarks.forks._fork import trained
from benchmarks.forks._tasks import FORKED
from benchmarks.forks._unit import recipe_of

from gdpo.lab.recipes.resolve import resolve
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
        return trained(prepare(resolve(recipe), rows=4), None, {STEPS}).seconds[STEPS]
