"""The arms of the demo: each is `gdpo train` on a recipe, in a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo.training import Recipe, RunDirectory

ARMS = ("grpo", "gdpo")
"""Estimators that are compared, in the order in which they are shown."""

_GRACE_S = 20.0
"""How long an arm may take to finish its step and save, once it is told to stop."""

_LOG_LINES = 15
"""Lines of a failed arm's output that are shown."""

_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8",
}
"""One thread each: more would wait for each other. Offline: there is nothing to download."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A training that runs beside this process."""

    recipe: Recipe
    recipe_file: Path
    log: Path
    """What it prints."""
    process: "subprocess.Popen[bytes]"

    @property
    def name(self) -> str:
        """The estimator."""
        return self.recipe.name

    @property
    def run(self) -> RunDirectory:
        """Its files."""
        return RunDirectory(self.recipe.run_dir)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error."""
        return self.process.poll() not in (None, 0)

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of its steps so far."""
        return [row for row in self.run.read_metrics() if "loss" in row]

    def why(self) -> str:
        """The end of what a failed arm printed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        shown = "\n".join(lines[-_LOG_LINES:]) or "(it printed nothing)"
        return f"exit code {self.process.returncode}; the end of {self.log}:\n{shown}"


@contextmanager
def side_by_side(recipes: Sequence[Recipe], folder: Path) -> Generator[list[Arm]]:
    """Start an arm per recipe; whatever ends the context stops those that still run.

    Args:
        recipes: What the arms train.
        folder: Where their recipes and logs are written, named after them.
    """
    arms: list[Arm] = []
    try:
        for recipe in recipes:
            arms.append(_start(recipe, folder))  # noqa: PERF401  a started one must be known at once
        yield arms
    finally:
        _stop(arms)


def _start(recipe: Recipe, folder: Path) -> Arm:
    recipe_file = folder / f"{recipe.name}.yaml"
    recipe_file.write_text(recipe.to_yaml(), encoding="utf-8")
    log = folder / f"{recipe.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gdpo", "train", str(recipe_file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,  # a Ctrl-C reaches this process only, which then stops both
        )
    return Arm(recipe, recipe_file, log, process)


def _stop(arms: Sequence[Arm]) -> None:
    for arm in arms:
        if arm.running:
            arm.process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for arm in arms:
        try:
            arm.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            arm.process.kill()
            arm.process.wait()
