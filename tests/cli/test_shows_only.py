"""Commands that only show something run nothing that the files which they show name."""

import os
import subprocess
import sys

import numpy as np
import pytest
from tests.checkout import python_path
from tests.experiments.conftest import write_run
from tests.report.runs import record

EVIL = """
from pathlib import Path
Path(__file__).with_name("EXECUTED").touch()
x = None
"""
FORMS = {
    "reward": {"reward": "evil:x"},
    "task": {"task": "evil:x"},
    "advantage": {"label": "evil:x"},
}


def shown(folder, *arguments, **environment):
    """What the command line says when it is started in this folder."""
    # As the script `gdpo` does it: -P keeps Python from putting the folder first on its path.
    return subprocess.run(
        [sys.executable, "-P", "-c", "from gdpo.cli import main; main()", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def a_run(folder, *, reward="format", task="gsm8k", label="gdpo"):
    path = write_run(folder, label, 1, {reward: [0.1, 0.4, 0.9]}, task=task, name="run", steps=3)
    rng = np.random.default_rng(0)
    for step in (1, 2, 3):
        record(path, label, step, rng.random((4, 4, 1)), names=(reward,))
    return path


def plant(folder):
    """A module, and a package that calls itself a plugin of pydantic."""
    folder.mkdir(exist_ok=True)
    (folder / "evil.py").write_text(EVIL)
    info = folder / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pydantic]\nx = evil:x\n")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", [("report", "."), ("analyze", ".")])
def test_nothing_in_the_folder_of_a_run_is_executed(tmp_path, command, form):
    run = a_run(tmp_path, **FORMS[form])
    plant(run)
    done = shown(run, *command)
    assert done.returncode == 0, done.stderr
    assert not (run / "EXECUTED").exists()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", ["report", "analyze"])
def test_no_module_that_a_run_names_is_imported_from_anywhere(tmp_path, command, form):
    run, elsewhere = a_run(tmp_path / "runs", **FORMS[form]), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "evil.py").write_text(EVIL)
    output = ("--output", str(tmp_path / "page.html"))
    done = shown(tmp_path, command, str(run), *output, PYTHONPATH=python_path(elsewhere))
    assert done.returncode == 0, done.stderr
    assert not (elsewhere / "EXECUTED").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("recipes", "ls"),
        ("recipes", "show", "gsm8k"),
        ("analyze", ".", "--estimators", "recorded,grpo", "--json"),
        ("analyze", ".", "--rescore", "gsm8k", "--json"),
    ],
)
def test_what_lies_in_the_current_folder_is_no_plugin(tmp_path, command):
    run = a_run(tmp_path)
    plant(run)
    done = shown(run, *command)
    assert "Traceback" not in done.stderr
    assert not (run / "EXECUTED").exists()


@pytest.mark.parametrize("option", ["--rescore", "--estimators"])
def test_what_the_command_line_itself_names_is_imported(tmp_path, option):
    run = a_run(tmp_path)
    plant(run)
    shown(run, "analyze", ".", option, "evil:x")
    assert (run / "EXECUTED").exists()
