"""Manages the run directory, which contains all files of a run and is never overwritten.

```
runs/<name>/
  recipe.yaml        the complete recipe; `gdpo train` accepts it
  environment.json   versions, device, seed, command, commit; ranges and gates of the rewards;
                     every time the run was resumed
  metrics.jsonl      one line per logged step
  rollouts/          completions, rewards and advantages, one parquet file per step
  checkpoints/       the newest checkpoints, for --resume
  dropped-<time>/    later steps and damaged checkpoints, moved here by --resume
  model/             the trained model, for `from_pretrained`, once the run is finished
  README.md          the results, once the run is finished
  report.html        the results with all findings and rollouts, written by `gdpo train`
```
"""

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import gdpo
from gdpo._files import read_json, to_json, write_json, write_whole
from gdpo.errors import ConfigError, DataError
from gdpo.lab.recipes.models import package_version
from gdpo.lab.recipes.recipe import ENVIRONMENT_FILE, RECIPE_FILE, Recipe
from gdpo.lab.runs.checkpoints import Checkpoint, checkpoints, is_complete, unlisted
from gdpo.lab.tasks import Problem
from gdpo.rewards.gates import Range, described_ranges

_STEP_FILE = re.compile(r"step_(\d+)\.parquet")
_ELSEWHERE = "Choose another folder: --set runs_dir=..."
OTHERS = ".others"
"""Folder in that of the checkpoints where other processes store state for the main process."""

_LEFT_OVERS = (
    ".*.partial",
    "rollouts/**/*.partial",
    "checkpoints/*/*.partial",
    ".model.*",
    f"checkpoints/{OTHERS}",
)
"""Files and folders that may remain if a process is killed while writing."""


Facts: TypeAlias = Mapping[str, Any]
"""The content of `environment.json`, or a row of `metrics.jsonl`."""


class RunDirectory:
    """Holds the paths of a run's files, and writes some of them. `read_run` reads them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / RECIPE_FILE
        self.environment = path / ENVIRONMENT_FILE
        self.metrics = path / "metrics.jsonl"
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.readme = path / "README.md"
        self.report = path / "report.html"

    @property
    def exists(self) -> bool:
        """Whether the path has anything that must not be overwritten."""
        path = self.path
        if not os.path.lexists(path):
            return False
        if path.is_symlink() or not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
            return True
        return any(path.iterdir())

    def update_environment(self, **facts: Any) -> None:
        """Add or replace facts in `environment.json`."""
        write_json(self.environment, {**read_environment(self), **facts})

    def append_metrics(self, row: Facts) -> None:
        """Append a line to `metrics.jsonl`. NaN and infinities become null."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(to_json(row) + "\n")

    def place_aside(self, now: str) -> Path:
        """Return a new folder for files that are set aside. `now` is a time in ISO 8601."""
        place = self.path / f"dropped-{now[:19].replace(':', '-')}"
        return place.with_name(free_name(place)) if place.exists() else place

    def drop_after(self, step: int, rows: Sequence[Facts], aside: Path) -> bool:
        """Move the files of the steps after `step` to `aside`, because they will be repeated.

        `rows` are those of `metrics.jsonl`. Incomplete checkpoints are deleted. Return whether
        anything was moved.
        """
        kept = [row for row in rows if row.get("step", 0) <= step]
        later = [row for row in rows if row.get("step", 0) > step]
        if later:
            aside.mkdir(exist_ok=True)
            write_whole(aside / self.metrics.name, _lines(later))
        if self.metrics.exists():
            write_whole(self.metrics, _lines(kept))
        results = [] if step else [self.model, self.readme, self.report]
        rollouts = self.rollouts.rglob("*.parquet")
        unknown = unlisted(self.checkpoints)
        for folder in sorted(self.checkpoints.glob("checkpoint-*")):
            if not is_complete(folder) and folder not in unknown:
                _remove(folder)
        moved = [
            *(f for f in rollouts if (m := _STEP_FILE.fullmatch(f.name)) and int(m[1]) > step),
            *unknown,
            *(saved.path for saved in checkpoints(self.checkpoints) if saved.step > step),
            *(path for path in results if path.exists()),
        ]
        for path in moved:
            place = aside / path.relative_to(self.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)
        return bool(later or moved)

    def tidy(self) -> None:
        """Remove files that a killed process was writing. The run must be locked."""
        for pattern in _LEFT_OVERS:
            for path in self.path.glob(pattern):
                _remove(path)
        _remove_half_made(self.path)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Stores what the files of a run said when `read_run` read them."""

    run: RunDirectory
    environment: Facts
    """The content of `environment.json`."""
    rows: Sequence[Facts]
    """The rows of `metrics.jsonl`, without lines that a crash has truncated."""
    steps: Sequence[Facts]
    """The rows that belong to training steps."""
    ranges: Mapping[str, Range | None]
    """The range of each reward in order. None: it is missing or invalid."""
    last: Checkpoint | None
    """The newest complete checkpoint, whose files may be damaged."""
    saved: int
    """The newest checkpoint's step, or the run's steps if it has no checkpoint."""
    logged: int
    """The last step in `metrics.jsonl`, or 0."""
    finished: bool
    """Whether all results of the run were written."""


def read_run(run: RunDirectory) -> RunFacts:
    """Read what the files of a run say now. A run in training goes on changing them.

    Raises:
        DataError: If `environment.json` cannot be read.
    """
    environment, rows = read_environment(run), read_metrics(run)
    last = next(iter(checkpoints(run.checkpoints)), None)
    return RunFacts(
        run=run,
        environment=environment,
        rows=rows,
        steps=[row for row in rows if "loss" in row],
        ranges=described_ranges(environment.get("rewards")),
        last=last,
        saved=last.step if last else int(environment.get("steps", 0)),
        logged=max((row["step"] for row in rows if isinstance(row.get("step"), int)), default=0),
        finished="finished" in environment,
    )


def read_environment(run: RunDirectory) -> Facts:
    """Return the content of `environment.json`, or raise a DataError."""
    try:
        facts = read_json(run.environment)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{run.environment} cannot be read, so {run.path} is not a gdpo run: {error}"
        ) from error
    if not isinstance(facts, dict):
        raise DataError(f"{run.environment} is not a JSON object, so {run.path} is not a gdpo run")
    return facts


def read_metrics(run: RunDirectory) -> list[Facts]:
    """Return the rows of `metrics.jsonl`, without lines that a crash has truncated."""
    return json_lines(run.metrics) if run.metrics.exists() else []


def json_lines(file: Path) -> list[Facts]:
    """Return the objects of a file that has one per line, without truncated lines."""
    rows: list[Facts] = []
    for line in file.read_text("utf-8", "replace").split("\n"):
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            rows += [row] if isinstance(row, dict) else []
    return rows


def create_run(recipe: Recipe, environment: Facts) -> RunDirectory:
    """Create the directory of a new run, completely or not at all.

    Raises:
        ConfigError: If the path exists, or the folder for runs is not writable.
    """
    run = RunDirectory(recipe.run_dir)
    refuse_existing(run, recipe)
    try:
        run.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_half_made(run.path)
        partial = Path(tempfile.mkdtemp(prefix=f".{recipe.name}.", dir=run.path.parent))
        try:
            described = to_json(environment, indent=2) + "\n"
            (partial / RECIPE_FILE).write_text(recipe.to_yaml(), "utf-8")
            (partial / ENVIRONMENT_FILE).write_text(described, "utf-8")
            partial.chmod(0o755)
            partial.rename(run.path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{recipe.place('runs_dir')}: the run directory {run.path} cannot be created: {error}. "
            f"{_ELSEWHERE}"
        ) from error
    return run


def refuse_runs_dir(recipe: Recipe) -> None:
    """Raise a ConfigError if no run can be created in the recipe's `runs_dir`."""
    folder = recipe.run_dir.parent.absolute()
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    is_folder = os.path.isdir(there)  # noqa: PTH112 (never raises)
    if not is_folder or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{recipe.place('runs_dir')}: no run can be created in runs_dir {recipe.runs_dir!r}: "
            f"{there} is not a folder that can be written to. {_ELSEWHERE}"
        )


def refuse_existing(run: RunDirectory, recipe: Recipe) -> None:
    """Raise a ConfigError if the path of a new run exists or cannot be created."""
    if not run.exists:
        refuse_runs_dir(recipe)
        return
    other = f"give the new run another name with --set name={free_name(run.path)}"
    if not run.environment.exists():
        raise ConfigError(
            f"{run.path} exists and is not a gdpo run, so its files are not overwritten: {other}"
        )
    raise ConfigError(
        f"{run.path} already contains a run ({recipe.place('name')}), which is never overwritten. "
        f"Resume it with --resume, or {other}"
    )


def _lines(rows: Iterable[Facts]) -> str:
    return "".join(to_json(row) + "\n" for row in rows)


def _remove_half_made(run: Path) -> None:
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
    """Return a similar unused name in the same folder."""
    number = 2
    while path.with_name(f"{path.name}-{number}").exists():
        number += 1
    return f"{path.name}-{number}"


_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "verl",
    "peft",
    "accelerate",
    "datasets",
    "tokenizers",
    "numpy",
    "pyarrow",
    "vllm",
    "deepspeed",
)


def describe_start(
    recipe: Recipe,
    problems: Sequence[Problem],
    left_out: str | None,
    *,
    engine: str,
    processes: int,
    seed: int,
) -> Facts:
    """Return what `environment.json` says about a start: versions, machine, commit and data.

    `left_out` is a sentence about rows that were left out, and `engine` is `trl` or `verl`.
    Packages that are not installed are left out.
    """
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return {
        "started": now(),
        "command": shlex.join(sys.argv),
        "gdpo": gdpo.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in _PACKAGES if (found := package_version(name))},
        "device": _device(),
        "processes": processes,
        "seed": seed,
        "git": None if commit is None else {"commit": commit, "changed": bool(changes)},
        "engine": engine,
        "rows": len(problems),
        "data_digest": digest_of(problems),
        "rows_left_out": left_out,
        "recipe_digest": recipe.digest,
    }


def digest_of(problems: Iterable[Problem]) -> str:
    """Return a digest of the prompts, references and weights in order, twelve hex digits long."""
    digest = hashlib.sha256()
    for problem in problems:
        row = [problem.prompt, dict(problem.reference)]
        row += [] if problem.weights is None else [problem.weights]
        text = json.dumps(row, default=lambda value: type(value).__name__)
        digest.update(text.encode("utf-8", "replace") + b"\n")
    return digest.hexdigest()[:12]


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _device() -> Facts:
    import torch

    if torch.cuda.is_available():
        return {
            "type": "cuda",
            "name": torch.cuda.get_device_name(),
            "visible": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
        }
    accelerator = torch.accelerator.current_accelerator()
    kind = accelerator.type if accelerator is not None else "cpu"
    return {"type": kind, "threads": torch.get_num_threads()}


def _git(*arguments: str) -> str | None:
    """Return what git prints about the working directory, or None without a repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
