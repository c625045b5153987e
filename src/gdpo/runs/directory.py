"""The run directory: where all of a run lies, and the rule that none is overwritten.

```
runs/<name>/
  recipe.yaml        everything that decided the run; `gdpo train` takes it again
  environment.json   versions, device, seed, command, commit; ranges and gates of the rewards;
                     every resumption
  metrics.jsonl      one line per logged step
  rollouts/          what was sampled, rewarded and learned from, one parquet file per step
  checkpoints/       what a resumption starts from
  dropped-<time>/    later steps and damaged checkpoints, moved here by --resume
  model/             the trained model, for `from_pretrained`; there once the run is finished
  README.md          what came out; likewise
  report.html        the same with every finding and rollouts, on one page; written by `gdpo train`
```
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gdpo._files import to_json, write_whole
from gdpo.errors import ConfigError, DataError
from gdpo.recipes.recipe import ENVIRONMENT_FILE, RECIPE_FILE, Recipe
from gdpo.rewards.gates import Range, described_ranges
from gdpo.runs.checkpoints import Checkpoint, checkpoints, is_complete, step_of, unlisted

_STEP_FILE = re.compile(r"step_(\d+)\.parquet")
_ELSEWHERE = "Take another folder: --set runs_dir=..."
OTHERS = ".others"
"""Beside the checkpoints: what processes keep for the main one while they train."""

_LEFT_OVERS = (
    ".*.partial",
    "rollouts/**/*.partial",
    "checkpoints/*/*.partial",
    ".model.*",
    f"checkpoints/{OTHERS}",
)
"""What a process leaves that is killed while it writes."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / RECIPE_FILE

    @property
    def environment(self) -> Path:
        """What the run ran on."""
        return self.path / ENVIRONMENT_FILE

    @property
    def metrics(self) -> Path:
        """One line per logged step."""
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        """One parquet file per step."""
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / "model"

    @property
    def readme(self) -> Path:
        """What came out."""
        return self.path / "README.md"

    @property
    def report(self) -> Path:
        """The page that `gdpo report` makes."""
        return self.path / "report.html"

    @property
    def curves(self) -> Path:
        """The rewards over the steps, as a picture."""
        return self.path / "curves.png"

    @property
    def exists(self) -> bool:
        """Whether there is a run, or anything else that must not be overwritten."""
        path = self.path
        if not os.path.lexists(path):
            return False
        if path.is_symlink() or not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
            return True
        return any(path.iterdir())

    def read_environment(self) -> dict[str, Any]:
        """What `environment.json` holds.

        Raises:
            DataError: It is missing or no JSON object.
        """
        try:
            facts = json.loads(self.environment.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(
                f"{self.environment} cannot be read, so {self.path} is no run of gdpo: {error}"
            ) from error
        if not isinstance(facts, dict):
            raise DataError(f"{self.environment} is no JSON object: {self.path} is no run of gdpo")
        return cast("dict[str, Any]", facts)

    def read_ranges(self) -> dict[str, Range | None]:
        """Return the declared range of each reward, in the recipe's order; None: it has none.

        Empty where the run keeps none, as runs of earlier versions do.

        Raises:
            DataError: See `read_environment`.
        """
        return described_ranges(self.read_environment().get("rewards"))

    def update_environment(self, **facts: Any) -> None:
        """Add facts to `environment.json`, or replace them."""
        write_whole(self.environment, to_json(self.read_environment() | facts, indent=2))

    def last_checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint. Whether its files are whole is not looked at."""
        return next(iter(checkpoints(self.checkpoints)), None)

    def steps_saved(self) -> int:
        """The steps that are in a checkpoint; of a finished run without one, all that it made."""
        last = self.last_checkpoint()
        return last.step if last else int(self.read_environment().get("steps", 0))

    def steps_logged(self) -> int:
        """The last step that `metrics.jsonl` has a line of."""
        return max((int(row.get("step", 0)) for row in self.read_metrics()), default=0)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`. A line that was cut off by a crash is left out."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text(encoding="utf-8", errors="replace").split("\n")
        return [row for line in lines if (row := _parsed(line)) is not None]

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line; NaN and infinities become null."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(to_json(row) + "\n")

    def place_aside(self, now: str) -> Path:
        """A folder that is not there yet, for what a resumption sets aside.

        Args:
            now: The time, to the second, in ISO 8601.
        """
        place = self.path / f"dropped-{now[:19].replace(':', '-')}"
        return place.with_name(free_name(place)) if place.exists() else place

    def drop_after(self, step: int, aside: Path) -> bool:
        """Set aside what belongs to later steps, which will be done again.

        Metrics, rollouts and complete checkpoints are moved. What a killed process left half
        written is removed.

        Args:
            step: The last one that stays.
            aside: Folder that is made for what is moved, if there is anything.

        Returns:
            Whether there was.
        """
        rows = self.read_metrics()
        kept = [row for row in rows if row.get("step", 0) <= step]
        later = [row for row in rows if row.get("step", 0) > step]
        if later:
            aside.mkdir(exist_ok=True)
            write_whole(aside / self.metrics.name, _lines(later))
        if self.metrics.exists():
            write_whole(self.metrics, _lines(kept))
        results = [] if step else [self.model, self.readme, self.report, self.curves]
        moved = [
            *self._rollouts_after(step),
            *self._checkpoints_after(step),
            *(path for path in results if path.exists()),
        ]
        for path in moved:
            place = aside / path.relative_to(self.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)
        return bool(later or moved)

    def _rollouts_after(self, step: int) -> list[Path]:
        files = self.rollouts.rglob("*.parquet")
        return [f for f in files if (m := _STEP_FILE.fullmatch(f.name)) and int(m[1]) > step]

    def _checkpoints_after(self, step: int) -> list[Path]:
        """The complete ones, and those that may be; what was only begun is removed."""
        found = unlisted(self.checkpoints)
        for folder in sorted(self.checkpoints.glob("checkpoint-*")):
            if is_complete(folder):
                found += [folder] if (step_of(folder) or 0) > step else []
            elif folder not in found:
                _remove(folder)
        return found

    def tidy(self) -> None:
        """Remove what a process left that was killed while it wrote. The run must be locked."""
        for pattern in _LEFT_OVERS:
            for path in self.path.glob(pattern):
                _remove(path)
        _remove_half_made(self.path)


def create_run(recipe: Recipe, environment: Mapping[str, Any]) -> RunDirectory:
    """Make the directory of a new run, whole or not at all.

    Raises:
        ConfigError: There is a run of this name, or anything else in its place, or the folder of
            the runs cannot be written to.
    """
    run = RunDirectory(recipe.run_dir)
    refuse_existing(run, recipe)
    try:
        _create(run, recipe, environment)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{recipe.place('runs_dir')}: the run directory {run.path} cannot be made: {error}. "
            f"{_ELSEWHERE}"
        ) from error
    return run


def _create(run: RunDirectory, recipe: Recipe, environment: Mapping[str, Any]) -> None:
    run.path.parent.mkdir(parents=True, exist_ok=True)
    _remove_half_made(run.path)
    partial = Path(tempfile.mkdtemp(prefix=f".{recipe.name}.", dir=run.path.parent))
    try:
        (partial / RECIPE_FILE).write_text(recipe.to_yaml(), encoding="utf-8")
        (partial / run.environment.name).write_text(
            to_json(environment, indent=2) + "\n", encoding="utf-8"
        )
        partial.chmod(0o755)
        partial.rename(run.path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_runs_dir(recipe: Recipe) -> None:
    """Raise a ConfigError if no run can be made in the recipe's `runs_dir`. Nothing is made."""
    folder = recipe.run_dir.parent.absolute()
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if there.is_symlink() and not os.path.exists(there):  # noqa: PTH110 (never raises)
        wrong = f"{there} is a link to nothing"
    elif not os.path.isdir(there):  # noqa: PTH112 (never raises)
        wrong = f"{there} is a file"
    elif not os.access(there, os.W_OK | os.X_OK):
        wrong = f"{there} cannot be written to"
    else:
        return
    raise ConfigError(
        f"{recipe.place('runs_dir')}: no run can be made in runs_dir {recipe.runs_dir!r}: {wrong}. "
        f"{_ELSEWHERE}"
    )


def refuse_existing(run: RunDirectory, recipe: Recipe) -> None:
    """Raise a ConfigError if the place of a new run is taken, or is none."""
    if not run.exists:
        refuse_runs_dir(recipe)
        return
    other = f"give this one another name: --set name={free_name(run.path)}"
    if not run.environment.exists():
        raise ConfigError(
            f"{run.path} exists and is no run of gdpo; nothing in it is overwritten: {other}"
        )
    raise ConfigError(
        f"{run.path} already holds a run ({recipe.place('name')}); it is never overwritten. "
        f"Continue it with --resume, or {other}"
    )


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(to_json(row) + "\n" for row in rows)


def _remove_half_made(run: Path) -> None:
    """Remove folders that were to become this run, of processes that were killed meanwhile."""
    made = re.compile(re.escape(f".{run.name}.") + r"[a-z0-9_]{8}")
    for path in run.parent.iterdir():
        if made.fullmatch(path.name):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def free_name(path: Path) -> str:
    """A name that no run beside this one has."""
    number = 2
    while path.with_name(f"{path.name}-{number}").exists():
        number += 1
    return f"{path.name}-{number}"
