"""Prepares and concludes `gdpo compare` and `gdpo report`. Contains the slow imports."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gdpo._files import is_full
from gdpo._terminal import say
from gdpo.errors import FAILED, INTERRUPTED, ConfigError, MissingExtraError
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.grid import Cell, Grid, visible_devices
from gdpo.lab.experiments.reading import LOGS, read_experiment
from gdpo.lab.recipes.models import locate_model
from gdpo.lab.recipes.trainer_fields import check_fields
from gdpo.lab.report import summary, write_report
from gdpo.lab.runs.directory import read_metrics
from gdpo.lab.training.preflight import prepare


def check_trainer_fields(grid: Grid, *, dry_run: bool) -> list[str]:
    """Check the trainer's fields. Return what a dry run cannot check, because TRL is missing."""
    try:
        for cell in grid.cells:
            check_fields(cell.recipe)
    except MissingExtraError as error:
        if not dry_run:
            raise
        return [f"not checked: the fields under `trainer:`. {error}"]
    return []


def conclude(grid: Grid, console: Console) -> int:
    """Write the report, print the failed and remaining runs, and return the exit code."""
    failed = [cell for cell in grid.cells if cell.failed]
    say(console, *(f"{cell.name} failed: {cell.why()}" for cell in failed))
    if failed:
        say(console, f"logs: {grid.folder / LOGS}. To train failed runs again: --retry-failed")
    if any(read_metrics(cell.run) for cell in grid.cells if cell.begun):
        make_report(grid.folder, None, console)
    if left := grid.open():
        say(console, grid.conclusion())
    return FAILED if failed else INTERRUPTED if left else 0


def make_report(
    folder: Path, output: Path | None, console: Console, *, export: Path | None = None
) -> None:
    """Write the HTML report of the runs in a folder, and print the summary.

    The arguments are those of `gdpo report`.

    Raises:
        DataError: If the folder contains no run, or if a run's file cannot be read.
        ConfigError: If the page or the export cannot be written.
    """
    file = output or folder / "report.html"
    comparison = analyse(read_experiment(folder))
    try:
        write_report(comparison, file, export=export)
    except OSError as error:
        if is_full(error):
            raise
        other = "another file with --output"
        if export is not None:
            other += ", or another folder with --export"
        raise ConfigError(
            f"{error.filename or file} cannot be written: {error.strerror}. Choose {other}"
        ) from error
    console.print(summary(comparison))
    say(console, f"report: {file}")
    if export is not None:
        say(console, f"numbers: {export}")


def read_seeds(text: str) -> list[int]:
    """Return the seeds: 1 to 5 for the text `5`, or the listed seeds if there is a comma."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(
            f"--seeds {text}: pass the number of seeds (5), or comma-separated seeds (1,2,3)"
        ) from error
    if "," in text:
        return numbers
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"--seeds {text}: use at least 1 seed")
    return list(range(1, numbers[0] + 1))


def free_devices() -> int:
    """Return the number of runs to train at once: one per device, or per core without a GPU."""
    devices = visible_devices()
    if devices or shutil.which("nvidia-smi"):
        return max(1, len(devices))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def total_steps(cells: Sequence[Cell]) -> int:
    """Check the data, rewards, trainer and models. Return the number of steps in a run."""
    for recipe in {cell.recipe.initial_model: cell.recipe for cell in cells}.values():
        locate_model(recipe)
    return prepare(cells[0].resolved).batches.total_steps
