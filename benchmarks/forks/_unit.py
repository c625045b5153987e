"""Runs all forks of one run: one task, one warm start, one estimator. Writes one record."""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.forks._fork import (
    HORIZONS,
    POINTS,
    STEPS,
    Callback,
    base_run,
    clips,
    fork,
    named,
    unclipped,
    without,
)
from benchmarks.forks._measure import Fresh, effect, state, weighed
from benchmarks.forks._tasks import FORKED

SWITCHES = ("fresh optimizer", "no clipping")
"""What is switched off in the middle of the run, for up to `SWITCHED` further steps."""

SWITCHED = 10


def recipe_of(task: str, warm_start: int, estimator: str, folder: Path) -> Any:
    """Return the recipe of a run that is forked."""
    recipe = FORKED[task].recipe(folder / "data", warm_start)
    return recipe.model_copy(
        update={
            "advantage": estimator,
            "trainer": {**recipe.trainer, "seed": warm_start, "max_steps": STEPS},
            "runs_dir": str(folder / "runs"),
        }
    )


def run_unit(task: str, warm_start: int, estimator: str, folder: Path, *, switches: bool) -> Any:
    """Train, fork at every point, measure, and return the record."""
    torch.set_num_threads(1)
    recipe = recipe_of(task, warm_start, estimator, folder)
    unit = Unit(f"{task}-{warm_start}-{estimator}", recipe, folder, FORKED[task])
    record = {
        "task": task,
        "warm_start": warm_start,
        "estimator": estimator,
        "rewards": {name: list(bounds) for name, bounds in unit.ranges.items()},
        "states": [unit.state(point, switches=switches) for point in POINTS],
        "clipped": {point: clips(unit.run, point, SWITCHED) for point in POINTS},
        "unchanged forks equal": unit.equal,
        "seconds": unit.seconds,
    }
    unit.remove()
    return record


class Unit:
    """Forks one run."""

    def __init__(
        self, name: str, recipe: Any, folder: Path, task: Any, kept: Callback | None = None
    ) -> None:
        shutil.rmtree(folder / "runs" / name, ignore_errors=True)
        for left in (folder / "runs").glob(f"{name}-*"):
            shutil.rmtree(left)
        self.name, self.recipe = name, recipe
        self.run = base_run(named(recipe, name), kept)
        self.fresh = Fresh(self.run, task, recipe.batch.samples)
        self.names = self.fresh.names
        rewards = self.run.trainer.scorer.rewards
        self.ranges = {reward.name: (reward.low, reward.high) for reward in rewards}
        self.equal: list[bool] = []
        self.seconds: dict[str, float] = {}
        self.drawn: dict[int, Any] = {}

    def state(self, point: int, *, switches: bool) -> dict[str, Any]:
        """Return the state at a point, and the effect of each reward from there on."""
        self.start = self._samples(point)
        found = state(self.start.rewards, self.names, self.recipe.advantage, self.ranges)
        self.logs = self.fresh.log_probabilities(self.run.models[point], self.start)
        usual = self._of_models(self.run.models, point, HORIZONS, shared=True)
        effects = {"as it is": self._effects(point, self.recipe, usual, HORIZONS)}
        if point == POINTS[0]:
            self._compare_unchanged(point)
        if switches and point == POINTS[1]:
            effects |= self._switched(point)
        return {"step": point, "rewards": found, "effects": effects}

    def _effects(
        self, point: int, recipe: Any, usual: Mapping[int, Any], horizons: Any, **options: Any
    ) -> dict[str, Any]:
        """Return for each reward and horizon what its presence changes in every reward."""
        result: dict[str, Any] = {}
        for name in self.names:
            taken = self._fork(point, without(recipe, name), horizons[-1], **options)
            measured = self._of_models(taken, point, horizons)
            result[name] = {h: effect(usual[h], measured[h]) for h in horizons}
        return result

    def _fork(self, point: int, recipe: Any, further: int, **options: Any) -> Any:
        begun = time.process_time()
        done = fork(named(recipe, f"{self.name}-fork"), self.run, point, further, **options)
        self._spent("forks", time.process_time() - begun)
        self._spent("steps of forks", done.seconds[point + further])
        self._spent("number of steps", further)
        return done.models

    def _of_models(self, models: Any, point: int, horizons: Any, *, shared: bool = False) -> Any:
        """Return the rewards of the policies after each horizon, `[prompt, sample, reward]`."""
        begun = time.process_time()
        found: dict[int, Any] = {}
        for further in horizons:
            weights = models[point + further]
            if further == 1:
                others = self.fresh.log_probabilities(weights, self.start)
                found[1] = weighed(self.start, self.logs, others)
            elif shared:
                found[further] = self._samples(point + further).rewards
            else:
                found[further] = self.fresh.draw(weights).rewards
        self._spent("measuring", time.process_time() - begun)
        return found

    def change(self, before: int, after: int) -> tuple[list[float], list[float]]:
        """Return by how much each reward rises between two steps, and the standard error."""
        return effect(self._samples(after).rewards, self._samples(before).rewards)

    def remove(self) -> None:
        """Remove the files of the run."""
        shutil.rmtree(self.run.checkpoints.parent)

    def _samples(self, step: int) -> Any:
        """Return fresh samples of the run's own policy after a step."""
        if step not in self.drawn:
            self.drawn[step] = self.fresh.draw(self.run.models[step])
        return self.drawn[step]

    def _compare_unchanged(self, point: int) -> None:
        """Note whether the unchanged fork has the weights of the run, bit for bit."""
        models = self._fork(point, self.recipe, HORIZONS[-1])
        for step, weights in models.items():
            own = self.run.models[step]
            self.equal.append(all(torch.equal(weights[key], own[key]) for key in own))

    def _switched(self, point: int) -> dict[str, Any]:
        result = {}
        horizons = tuple(h for h in HORIZONS if h <= SWITCHED)
        for switch in SWITCHES:
            fresh = switch == SWITCHES[0]
            if not fresh and not clips(self.run, point, SWITCHED):
                continue  # this switch changes nothing
            recipe = self.recipe if fresh else unclipped(self.recipe)
            models = self._fork(point, recipe, SWITCHED, fresh_optimizer=fresh)
            usual = self._of_models(models, point, horizons)
            result[switch] = self._effects(point, recipe, usual, horizons, fresh_optimizer=fresh)
        return result

    def _spent(self, what: str, seconds: float) -> None:
        self.seconds[what] = round(self.seconds.get(what, 0.0) + seconds, 2)


def write_record(record: Any, file: Path) -> None:
    """Write a record, with six digits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rounded = json.loads(json.dumps(record), parse_float=lambda text: float(f"{float(text):.6g}"))
    part = file.with_suffix(".part")
    part.write_text(json.dumps(rounded, indent=None) + "\n", encoding="utf-8")
    part.replace(file)


def print_times(folder: Path) -> None:
    """Print the CPU time of an unchanged fork, and of the same steps of its run."""
    torch.set_num_threads(1)
    print("| task | steps of the run | the same steps of a fork | with its start |")
    print("|---|---|---|---|")
    for task in FORKED:
        recipe = recipe_of(task, 1, "gdpo", folder)
        shutil.rmtree(folder / "runs" / f"{task}-time", ignore_errors=True)
        run, (_, point, _), further = base_run(named(recipe, f"{task}-time")), POINTS, HORIZONS[-1]
        begun = time.process_time()
        forked = fork(named(recipe, f"{task}-time-fork"), run, point, further)
        whole = time.process_time() - begun
        own = run.seconds[point + further] - run.seconds[point]
        steps = forked.seconds[point + further]
        print(f"| {task} | {own:.2f} s | {steps / own:.2f} times | {whole / own:.2f} times |")
        shutil.rmtree(run.checkpoints.parent)
