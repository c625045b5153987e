"""`make gpu`: what it says without a GPU, and that its commands still exist."""

import subprocess
import sys

import pytest
import torch
from tests.environments import ROOT
from tests.gpu.__main__ import items

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the list")


@NO_GPU
def test_without_a_gpu_the_list_is_printed_and_nothing_runs():
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no GPU" in done.stderr
    assert all(f"- {name}: " in done.stderr for name in items("m", "d"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tool_calling", "verl"])
def test_the_options_and_recipes_of_the_list_exist(name, tmp_path):
    listed = items("smollm2-135m", str(tmp_path))
    command = [*listed[name].command, "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if name == "tool_calling":  # the items that follow evaluate these folders
        evaluated = [listed[f"after {each}"].command[4] for each in ("grpo", "gdpo")]
        assert all(f"folder {folder.rsplit('/')[-1]}\n" in done.stdout for folder in evaluated)
