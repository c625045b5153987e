"""Runs a comparison: arms times seeds, each an ordinary `gdpo train` in a process of its own."""

import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import yaml

from gdpo._files import to_json, write_whole
from gdpo.advantages import resolve_estimator
from gdpo.errors import ConfigError
from gdpo.experiments._process import Training, start_training, stop_trainings, terminable
from gdpo.experiments._reading import (
    Plan,
    failure_file,
    read_plan,
    run_name,
)
from gdpo.training import Recipe, RunDirectory
from gdpo.training._lock import is_locked, lock, unlock
from gdpo.training._recipe import differences
from gdpo.training._resolve import resolve

_POLL_S = 0.5
_SEEDS = 2**32
"""How many there are."""


@dataclass(slots=True)
class Cell:
    """One arm with one seed."""

    arm: str
    seed: int
    recipe: Recipe
    failure: Path
    """Where it is kept that it failed."""
    training: Training | None = None
    """While it runs."""
    began: float = 0.0
    """When it did, in this call; seconds of the monotonic clock."""
    steps_before: int = 0
    """Done when it began."""

    @property
    def run(self) -> RunDirectory:
        """Its files."""
        return RunDirectory(self.recipe.run_dir)

    @property
    def begun(self) -> bool:
        """Whether there is a run directory."""
        return self.run.environment.is_file()

    @property
    def finished(self) -> bool:
        """Whether it came to its last step."""
        return self.begun and "finished" in self.run.read_environment()

    @property
    def failed(self) -> bool:
        """Whether it ended with an error, which is a result, too."""
        return self.failure.is_file() and not self.finished

    def why(self) -> str:
        """The last line that a failed run printed."""
        lines = json.loads(self.failure.read_text(encoding="utf-8"))["why"].strip().splitlines()
        return lines[-1] if lines else ""


@dataclass(slots=True)
class Grid:
    """All cells of a comparison."""

    folder: Path
    plan: Plan
    cells: list[Cell]

    def open(self) -> list[Cell]:
        """Those with something left to do, that no other process trains."""
        return [
            cell
            for cell in self.cells
            if not (cell.finished or cell.failed or is_locked(cell.run.path))
        ]

    def running(self) -> list[Cell]:
        """Those that train now."""
        return [cell for cell in self.cells if cell.training is not None]


def make_grid(
    recipe: Recipe,
    arms: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    reach: float,
    retry_failed: bool = False,
) -> Grid:
    """The cells of a comparison. Seeds and arms may be added to one; nothing is written yet.

    Added arms come after those that are there; whoever names all of them decides their order.

    All runs of a seed have the same order of data, the same model to begin with and the same
    settings; only the estimator differs. Its options are the recipe's where the recipe names the
    same estimator, and its defaults elsewhere.

    Args:
        recipe: What all share.
        arms: Estimators; the first is what the others are compared with.
        seeds: Of `trainer.seed`.
        folder: Where the runs lie. A comparison that is there goes on.
        reach: Share of a reward's range whose first crossing is timed.
        retry_failed: Forget that runs failed.

    Raises:
        ConfigError: An estimator does not exist, something is named twice, or the folder holds
            another comparison or something else.
    """
    _check(arms, seeds, reach)
    recipes = {
        (arm, seed): resolve(_recipe_of(recipe, arm, seed, folder)).recipe
        for arm in arms
        for seed in seeds
    }
    plan = Plan(resolve(recipe).recipe.to_yaml(), tuple(arms), tuple(seeds), reach)
    plan = _joined(folder, plan)
    cells = [
        Cell(arm, seed, one, failure_file(folder, arm, seed))
        for (arm, seed), one in recipes.items()
    ]
    if retry_failed:
        for cell in cells:
            cell.failure.unlink(missing_ok=True)
    return Grid(folder, plan, cells)


def run_grid(grid: Grid, *, jobs: int, told: Callable[[], None] = lambda: None) -> None:
    """Train whatever is left to do, several runs at a time.

    A run that was interrupted goes on from its last checkpoint. One that fails is kept as it is,
    with its reason, and counts in the statistics. Ctrl-C lets all finish their step, and saves.

    Args:
        grid: What to train.
        jobs: Runs at a time. With several devices in CUDA_VISIBLE_DEVICES each gets one of them.
        told: Called now and then.
    """
    waiting = iter(grid.open())
    devices = _devices(jobs)
    free: list[Mapping[str, str]] = [next(devices) for _ in range(jobs)]
    used: dict[int, Mapping[str, str]] = {}
    grid.folder.mkdir(parents=True, exist_ok=True)
    with terminable(), _alone(grid.folder), _stopped_at_the_end(grid):
        grid.plan.write(grid.folder)
        while True:
            ended = [cell for cell in grid.running() if _ended(cell)]
            free += [used.pop(id(cell)) for cell in ended]
            while free and (cell := next(waiting, None)) is not None:
                used[id(cell)] = free.pop(0)
                _start(cell, used[id(cell)])
            told()
            if not grid.running():
                return
            time.sleep(_POLL_S)


def _check(arms: Sequence[str], seeds: Sequence[int], reach: float) -> None:
    for what, values in (("arms", arms), ("seeds", seeds)):
        if not values:
            raise ConfigError(f"--{what} names none")
        if twice := sorted({str(v) for v in values if list(values).count(v) > 1}):
            raise ConfigError(f"--{what} names {', '.join(twice)} twice")
    if outside := [seed for seed in seeds if not 0 <= seed < _SEEDS]:
        raise ConfigError(f"--seeds names {outside[0]}; a seed is from 0 to {_SEEDS - 1}")
    if not 0 < reach <= 1:
        raise ConfigError(f"--reach is a share of a reward's range, above 0 and at most 1: {reach}")
    names = [run_name(arm, 0) for arm in arms]
    if len(set(names)) < len(names):
        raise ConfigError(f"two arms have the same folder: {', '.join(names)}; rename one")
    for arm in arms:
        resolve_estimator(arm)


def _recipe_of(recipe: Recipe, arm: str, seed: int, folder: Path) -> Recipe:
    same = arm == recipe.advantage
    return recipe.model_copy(
        update={
            "name": run_name(arm, seed),
            "runs_dir": str(folder),
            "advantage": arm,
            "advantage_options": recipe.advantage_options if same else {},
            "trainer": {**recipe.trainer, "seed": seed, "logging_steps": 1},
        }
    )


def _joined(folder: Path, plan: Plan) -> Plan:
    """The plan with what the folder's comparison has already."""
    there = read_plan(folder)
    if there is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"{folder} holds something else, and nothing is overwritten: --output"
            )
        return plan
    if not any(RunDirectory(path).environment.is_file() for path in folder.iterdir()):
        return plan  # nothing was trained: the one before was a mistake
    _refuse_other(folder, there.recipe, plan.recipe)
    named_all = set(there.arms) <= set(plan.arms)
    return Plan(
        plan.recipe,
        plan.arms if named_all else tuple(dict.fromkeys((*there.arms, *plan.arms))),
        tuple(dict.fromkeys((*there.seeds, *plan.seeds))),
        plan.reach,
    )


def _refuse_other(folder: Path, old: str, new: str) -> None:
    before, after = (Recipe.model_validate(yaml.safe_load(text)) for text in (old, new))
    changed = differences(before, after)
    if changed:
        shown = "\n".join(f"  {key}: {a!r} → {b!r}" for key, (a, b) in changed.items())
        raise ConfigError(
            f"{folder} holds a comparison of another recipe:\n{shown}\nName another folder: "
            "--output"
        )


def _start(cell: Cell, environment: Mapping[str, str]) -> None:
    cell.began = time.monotonic()
    cell.steps_before = len(cell.run.read_metrics()) if cell.begun else 0
    logs = cell.failure.parent
    cell.training = start_training(cell.recipe, logs, resume=cell.begun, environment=environment)


def _ended(cell: Cell) -> bool:
    """Whether it has; a failure is written down."""
    training = cell.training
    assert training is not None
    if training.running:
        return False
    if training.failed and not training.interrupted:
        told = {"exit_code": training.process.returncode, "why": training.why()}
        write_whole(cell.failure, to_json(told, indent=2))
    cell.training = None
    return True


def _devices(jobs: int) -> Iterator[Mapping[str, str]]:
    """The environment of each of the runs that train at a time."""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if len(named) < 2 or jobs < 2:
        return cycle([dict[str, str]()])
    return cycle({"CUDA_VISIBLE_DEVICES": name} for name in named)


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Keep a second `gdpo compare` out of the folder."""
    lock(folder)
    try:
        yield
    finally:
        unlock(folder)


@contextmanager
def _stopped_at_the_end(grid: Grid) -> Generator[None]:
    try:
        yield
    finally:
        running = [cell.training for cell in grid.running() if cell.training is not None]
        stop_trainings(running)
        for cell in grid.cells:
            cell.training = None
