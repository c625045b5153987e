"""Run directories made by hand: as `gdpo train` leaves them, without a training."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

from gdpo.lab.experiments.reading import estimator_of, run_name
from gdpo.lab.recipes.recipe import DataConfig, Recipe


def write_run(
    folder,
    label,
    seed,
    curves,
    *,
    finished=True,
    steps=4,
    name=None,
    task="tool_calling",
    declared=None,
    entries=None,
    lengths=(),
):
    """A run directory with these mean rewards; it lies in `folder`."""
    recipe = Recipe(
        task=task,
        model="m",
        data=DataConfig(source="rows.jsonl"),
        advantage=estimator_of(label),
        name=name or run_name(label, seed),
        runs_dir=str(folder),
        rewards=entries or [{"name": reward} for reward in curves],
        trainer={"max_steps": steps, "seed": seed},
    )
    path = recipe.run_dir
    path.mkdir(parents=True)
    (path / "recipe.yaml").write_text(recipe.to_yaml())
    facts = {"started": "2026-01-01T00:00:00+00:00", **({"finished": "x"} if finished else {})}
    usual = {name: DECLARED.get(name, DECLARED["format"]) for name in curves}
    facts["rewards"] = usual if declared is None else declared
    (path / "environment.json").write_text(json.dumps(facts))
    with (path / "metrics.jsonl").open("w") as file:
        for step, values in enumerate(zip(*curves.values(), strict=True), start=1):
            means = {f"rewards/{n}/mean": v for n, v in zip(curves, values, strict=True)}
            if lengths:
                mean, longest = lengths[step - 1]
                means |= {"completions/mean_length": mean, "completions/max_length": longest}
            file.write(json.dumps({"step": step, "loss": 0.0, **means}) + "\n")
    return path


DECLARED = {"format": {"low": 0.0, "high": 1.0}, "correctness": {"low": -3.0, "high": 3.0}}


@pytest.fixture
def two_estimators(tmp_path):
    """A folder with two estimators of two seeds."""
    for label, level in (("grpo", 0.2), ("gdpo", 0.6)):
        for seed in (1, 2):
            values = [level + seed / 100 + step / 10 for step in range(4)]
            curves = {"format": values, "correctness": [1.0] * 4}
            write_run(tmp_path, label, seed, curves, declared=DECLARED)
    return tmp_path


HOLDER = """
import sys
from pathlib import Path
from gdpo.lab.runs.lock import lock
lock(Path(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Starts a process that trains in a folder, as far as others can see."""
    with ExitStack() as stack:

        def start(folder):
            folder.mkdir(parents=True, exist_ok=True)
            process = subprocess.Popen(
                [sys.executable, "-c", HOLDER, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            process.stdout.readline()
            return process

        yield start
