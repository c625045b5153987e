"""Commands that only show something run nothing that the files which they show name."""

import sys

import numpy as np
import pytest
from tests.checkout import python, python_path
from tests.experiments.conftest import write_run
from tests.report.runs import record
from tests.rollouts.readers import written

EVIL = """
from pathlib import Path
Path(__file__).with_name("EXECUTED").touch()
x = None
"""
NAMED = {"reward": "evil:x", "task": "evil:x", "label": "evil:x"}
"""A run whose reward, task and estimator are those of a module."""


def shown(folder, *arguments, **environment):
    """What the command line says when it is started in this folder."""
    # As the script `gdpo` does it: -P keeps Python from putting the folder first on its path.
    return python(
        "-P", "-c", "from gdpo.cli import main; main()", *arguments, cwd=folder, env=environment
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


MORE = (
    "--help",
    "recipes ls",
    "recipes show gsm8k",
    "analyze . --estimators recorded,grpo --output json",
    "analyze . --rescore gsm8k --output json",
)


@pytest.mark.parametrize(
    "command",
    [
        "report .",
        "analyze .",
        *(pytest.param(words, marks=pytest.mark.slow) for words in MORE),
    ],
)
def test_nothing_in_the_folder_of_a_run_is_executed(tmp_path, command):
    run = a_run(tmp_path, **NAMED)
    plant(run)
    done = shown(run, *command.split())
    assert done.returncode == 0, done.stderr
    assert not (run / "EXECUTED").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "analyze"])
def test_no_module_that_a_run_names_is_imported_from_anywhere(tmp_path, command):
    run, elsewhere = a_run(tmp_path / "runs", **NAMED), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "evil.py").write_text(EVIL)
    output = ("--output", str(tmp_path / "page.html"))
    done = shown(tmp_path, command, str(run), *output, PYTHONPATH=python_path(elsewhere))
    assert done.returncode == 0, done.stderr
    assert not (elsewhere / "EXECUTED").exists()


@pytest.mark.parametrize("option", ["--rescore", "--estimators"])
def test_what_the_command_line_itself_names_is_imported(analyze, here, monkeypatch, option):
    """In this process: Python's path begins elsewhere, as in the script `gdpo`."""
    (here / "evil.py").write_text(EVIL)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    analyze(written.verl(here / "run"), option, "evil:x")
    del sys.modules["evil"]
    assert (here / "EXECUTED").exists()
