"""`make gpu`: it fits into its time, its commands exist, and it says what it needs."""

import shutil
import subprocess

import pytest
import torch
from benchmarks.gpu import main, parts
from tests.environments import ROOT

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the list")


@NO_GPU
def test_without_a_gpu_the_list_is_printed_and_nothing_runs(monkeypatch):
    monkeypatch.setattr("sys.argv", ["gpu"])
    with pytest.raises(SystemExit, match="no GPU") as ended:
        main()
    assert all(f"- {name}, up to " in str(ended.value) for name in parts(None))


def test_the_list_fits_into_twelve_minutes():
    assert sum(part.seconds for part in parts("rows").values()) <= 12 * 60


@pytest.mark.slow
def test_the_options_of_the_training_exist(tiny_policy, tmp_path):
    shutil.copytree(tiny_policy, tmp_path / "prepared" / "policy")
    command = [*parts("rows", tmp_path)["training"].command, "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
