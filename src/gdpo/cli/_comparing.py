"""`gdpo compare` and `gdpo report`, once their arguments are read. Imports what is heavy."""

import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress

from gdpo._files import is_full
from gdpo.advantages import ESTIMATORS
from gdpo.cli._codes import FAILED, INTERRUPTED
from gdpo.errors import ConfigError
from gdpo.experiments.analysis import analyse
from gdpo.experiments.display import grid_display
from gdpo.experiments.grid import Grid, described, make_grid, read_variants, run_grid
from gdpo.experiments.reading import LOGS, read_experiment
from gdpo.experiments.threshold import REACHED
from gdpo.experiments.toys import suite, table
from gdpo.recipes.read import read_recipe
from gdpo.recipes.resolve import Resolved, resolve
from gdpo.recipes.trainer_fields import check_fields
from gdpo.report import summary, write_report
from gdpo.report.export import missing_png
from gdpo.training.preflight import prepare

_PREFLIGHT_ROWS = 64

_NEED_OPTIONS = ("constrained_grpo",)
"""Estimators that do nothing of their own without options."""


def compare_recipe(
    path: Path,
    overrides: Sequence[str],
    labels: str,
    seeds: str,
    output: Path | None,
    console: Console,
    *,
    vary: Sequence[str],
    jobs: int | None,
    reach: float | None,
    price: float,
    retry_failed: bool,
    dry_run: bool,
) -> int:
    """Train what is left to do, and report, or only say what would be. Returns the exit code.

    Raises:
        ConfigError: An argument is wrong; before anything is trained.
    """
    shared = resolve(read_recipe(path, overrides))
    recipe = shared.recipe
    folder = output or recipe.run_dir.with_name(f"{_plain(recipe.task)}-compare")
    grid = make_grid(
        shared,
        _names(labels),
        _seeds(seeds),
        folder,
        reach=REACHED if reach is None else reach,
        variants={
            name: resolve(read_recipe(path, [*overrides, *values]))
            for name, values in read_variants(vary).items()
        },
        retry_failed=retry_failed and not dry_run,
    )
    for cell in grid.cells:
        check_fields(cell.recipe)
    jobs = jobs or _jobs()
    if dry_run:
        for line in described(grid, jobs=jobs):
            _say(console, line)
        return 0
    left = grid.open()
    steps = _total_steps(left[0].resolved) if left else 0
    try:
        with grid_display(grid, console, jobs=jobs, total_steps=steps, price=price) as told:
            run_grid(grid, jobs=jobs, told=told, say=partial(_say, console))
    except KeyboardInterrupt:
        _say(console, grid.conclusion())
        return INTERRUPTED
    except BaseException:
        if any(cell.ending for cell in grid.cells):
            _say(console, grid.conclusion())
        raise
    return _conclude(grid, console)


def _conclude(grid: Grid, console: Console) -> int:
    """Report what was trained, and say what failed and what is left. Returns the exit code."""
    failed = [cell for cell in grid.cells if cell.failed]
    for cell in failed:
        _say(console, f"{cell.name} failed: {cell.why()}")
    if failed:
        _say(console, f"logs: {grid.folder / LOGS}; --retry-failed trains them again")
    if any(cell.run.read_metrics() for cell in grid.cells if cell.begun):
        make_report(grid.folder, None, console)
    if left := grid.open():
        _say(console, grid.conclusion())
    return FAILED if failed else INTERRUPTED if left else 0


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def make_report(
    folder: Path, output: Path | None, console: Console, *, export: Path | None = None
) -> None:
    """Write the page of a folder's runs, and print the summary.

    Args:
        folder: A run directory, a folder of several, or a comparison.
        output: The HTML file. None: `report.html` in the folder.
        console: Where the summary is printed.
        export: Folder for figures and tables. None: nothing is exported.

    Raises:
        DataError: If the folder has no run, or a file of a run cannot be read.
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
            f"{error.filename or file} cannot be written: {error.strerror}. Name {other}"
        ) from error
    console.print(summary(comparison))
    console.print(f"report: {file}", markup=False, soft_wrap=True)
    if export is not None:
        console.print(f"figures and tables: {export}", markup=False, soft_wrap=True)
        if missing := missing_png():
            console.print(missing, markup=False, soft_wrap=True)


def compare_toys(
    labels: str, seeds: str, output: Path | None, console: Console, *, jobs: int | None
) -> None:
    """Run the kit of small problems, print when each reward was reached, and write a page of each.

    Raises:
        ConfigError: An argument is wrong; before anything is run.
    """
    names, numbers = _names(labels), _seeds(seeds)
    with Progress(console=console, transient=True) as progress:
        shown = progress.add_task("", total=None)
        done = suite(
            names,
            numbers,
            processes=jobs or _cores(),
            folder=output or Path("toys"),
            progress=lambda count, total, toy, label: progress.update(
                shown, completed=count, total=total, description=f"{toy}, {label}"
            ),
        )
    if console.is_terminal:
        console.print(Markdown(table(done)))
    else:  # whole, for whatever reads it
        console.print(table(done), markup=False, soft_wrap=True)
    told = "Steps to the threshold: median [range over seeds], and how many never came to it."
    console.print(told, markup=False, soft_wrap=True)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        for name, experiment in done.items():
            write_report(analyse(experiment), output / f"{name}.html")
        console.print(f"a page for each: {output}", markup=False, soft_wrap=True)


def _names(labels: str) -> list[str]:
    if labels == "all":
        return [name for name in ESTIMATORS if name not in _NEED_OPTIONS]
    return [name.strip() for name in labels.split(",") if name.strip()]


def _seeds(text: str) -> list[int]:
    """`5`: the seeds 1 to 5; with a comma: these."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"--seeds {text}: write how many, or which with commas: 1,2,3") from error
    if "," in text:
        return numbers
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"--seeds {text}: at least 1")
    return list(range(1, numbers[0] + 1))


def _jobs() -> int:
    """Runs at a time, if nothing is said."""
    devices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if devices or shutil.which("nvidia-smi"):
        return max(1, len(devices))
    return _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _total_steps(resolved: Resolved) -> int:
    """Of a run, once data, rewards, trainer and model were checked."""
    return prepare(resolved, rows=_PREFLIGHT_ROWS).batches.total_steps


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name.rpartition(":")[2])
