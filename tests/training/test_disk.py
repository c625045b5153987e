"""A disk without room for checkpoints: said before a training, and in words when it fails."""

import errno
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch
from tests.refusals import config_error

from gdpo._files import is_full
from gdpo.errors import GdpoError
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.runs.checkpoints import estimate_checkpoint, refuse_small_disk
from gdpo.lab.runs.directory import RunDirectory, read_run
from gdpo.lab.training import train


def test_a_checkpoint_is_what_is_trained_and_what_the_optimizer_keeps_of_it():
    model = torch.nn.Linear(10, 10, bias=False)
    assert estimate_checkpoint(model, "adamw_torch_fused") == 1200
    assert estimate_checkpoint(model, "adamw_torch") == 1200
    assert estimate_checkpoint(model, "sgd") == 400
    model.weight.requires_grad_(False)
    assert estimate_checkpoint(model, "adamw_torch") == 0


def test_a_disk_without_room_for_two_checkpoints_is_refused(tmp_path):
    refuse_small_disk(tmp_path, 1000, "-")
    with config_error(r"two checkpoints .* 2000000.0 GB"):
        refuse_small_disk(tmp_path, 10**15, "take another folder")


def test_a_full_disk_is_known_by_what_caused_an_error():
    full = OSError(errno.ENOSPC, "No space left on device")
    wrapped = ValueError("in a library")
    wrapped.__cause__ = full
    assert is_full(full)
    assert is_full(wrapped)
    full.__context__ = wrapped  # a circle
    assert not is_full(OSError(errno.EACCES, "Permission denied"))


@pytest.mark.slow
def test_what_a_killed_process_left_does_not_count_when_a_run_is_resumed(begun, monkeypatch):
    half = begun.checkpoints / "checkpoint-4"
    half.mkdir()
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(free=0 if half.exists() else 1e12)
    )
    assert train(load_recipe(begun.path), resume=True).finished


@pytest.mark.slow
def test_a_disk_that_fills_up_is_one_sentence_with_the_step_that_is_safe(load, small_disk):
    sized = train(load("trainer.max_steps=1")).run
    (one,) = sized.checkpoints.iterdir()
    size = sum(file.stat().st_size for file in one.rglob("*"))
    folder = small_disk(round(4.7 * size))
    changes = [f"runs_dir={folder}", "trainer.save_total_limit=10", "trainer.max_steps=7"]
    recipe = load(*changes)
    with pytest.raises(GdpoError, match=r"Step \d is saved.*: gdpo") as printed:
        train(recipe)
    run = RunDirectory(recipe.run_dir)
    last = read_run(run).last
    assert f"Step {last.step} is saved" in str(printed.value)
    assert sorted(run.checkpoints.glob("*"))[-1] == last.path, "what is half written is removed"

    fewer = load(*changes, "trainer.save_total_limit=2")
    with config_error(r"[\d.]+ MB .*two checkpoints"):
        train(fewer, resume=True)
    (run.path / "filler").write_bytes(b"x" * shutil.disk_usage(folder).free)
    fewest = load(*changes, f"trainer.max_steps={last.step}")
    with pytest.raises(GdpoError, match=rf"Step {last.step} is saved"):
        train(fewest, resume=True)
    (run.path / "filler").unlink()
    for old in run.checkpoints.iterdir():
        if old != last.path:
            subprocess.run(["rm", "-r", old], check=True)
    assert train(fewer, resume=True).finished
