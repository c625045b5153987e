"""Finishes a verl run by writing the model, metrics and README that `gdpo train` writes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdpo._files import to_json, write_whole
from gdpo.lab.launch._verl import VerlFiles
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.runs.environment import now
from gdpo.lab.runs.summary import readme, reward_changes
from gdpo.lab.training.finish import model_being_made

_SAVED = "global_step_*/actor/huggingface"
"""Folder, relative to the checkpoints, where verl saves the model in transformers' format."""

_WEIGHTS = "*.safetensors"

_SAME = {
    "actor/loss": "loss",
    "response_length/mean": "completions/mean_length",
    "response_length/max": "completions/max_length",
}
"""Maps verl's metric names to TRL's names for the same metric."""


def finish(resolved: Resolved, files: VerlFiles) -> str:
    """Write verl's last saved model, the metrics and a README into the run directory.

    Returns:
        A message for the user that describes the result.
    """
    run = files.run
    rows = list(_rows(files.metrics))
    write_whole(run.metrics, "\n".join(to_json(row) for row in rows))
    saved = [folder for folder in run.checkpoints.glob(_SAVED) if any(folder.glob(_WEIGHTS))]
    last = max(saved, key=_step, default=None)
    if last is None:
        run.update_environment(finished=now())
        return (
            f"finished without a model: {run.checkpoints} contains no {_SAVED}/{_WEIGHTS} that "
            "transformers can load"
        )
    with model_being_made(run, (file for file in last.iterdir() if file.is_file())):
        pass
    facts = {"finished": now(), "steps": _step(last)}
    changes = reward_changes(rows, resolved.rewards, resolved.weights)
    environment = run.read_environment() | facts
    text = readme(resolved.recipe, environment, changes, steps=_step(last))
    write_whole(run.readme, text)
    run.update_environment(**facts)  # last, because `finished` means that every file exists
    return f"finished; {run.model} is the model of step {_step(last):,}"


def _step(folder: Path) -> int:
    return int(folder.parents[1].name.removeprefix("global_step_"))


def _rows(metrics: Path) -> Iterator[dict[str, Any]]:
    """Yield the metrics of each step under TRL's names, including the steps before a resume.

    A resumed run repeats the steps after its checkpoint. In that case, the last metrics of a step
    are used.
    """
    earlier = metrics.parent.glob(f"{metrics.stem}-*{metrics.suffix}")
    files = sorted(earlier, key=lambda file: int(file.stem.rpartition("-")[2]))
    steps: dict[int, dict[str, Any]] = {}
    for file in (each for each in (*files, metrics) if each.is_file()):
        for line in file.read_text("utf-8", errors="replace").splitlines():
            if row := _parsed(line):
                steps[row["step"]] = steps.get(row["step"], {}) | row["data"]
    for step, logged in sorted(steps.items()):
        means = {
            f"rewards/{name.removeprefix('gdpo/')}": value
            for name, value in logged.items()
            if name.startswith("gdpo/") and name.endswith("/mean")
        }
        rest = {ours: logged[name] for name, ours in _SAME.items() if name in logged}
        yield {"step": step, "loss": None, **rest, **means}


def _parsed(line: str) -> dict[str, Any] | None:
    """Return a line of verl's metrics. None: a crash truncated the line."""
    try:
        return json.loads(line)
    except ValueError:
        return None
