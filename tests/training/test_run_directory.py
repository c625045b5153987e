"""The files of a run: whole or not at all, and never overwritten."""

import json
import math
import os

import numpy as np
import pytest
from tests.refusals import config_error
from tests.training.conftest import wrong_in

from gdpo._files import cache_folder, cached
from gdpo.lab.runs.checkpoints import complete
from gdpo.lab.runs.directory import (
    RunDirectory,
    create_run,
    read_environment,
    read_metrics,
    to_json,
    write_whole,
)
from gdpo.lab.training import train
from gdpo.lab.training._loop import safe_step


@pytest.fixture
def run(recipe):
    return create_run(recipe, {"seed": 1})


def test_a_new_run_holds_its_recipe_and_environment(run, recipe):
    assert sorted(p.name for p in run.path.iterdir()) == ["environment.json", "recipe.yaml"]
    assert read_environment(run) == {"seed": 1}
    assert run.recipe.read_text() == recipe.to_yaml()
    assert [p.name for p in run.path.parent.iterdir()] == ["tiny"]  # nothing half-made is left


def test_a_run_is_made_once(run, recipe):
    (run.path.parent / "tiny-2").mkdir()
    with config_error("--set name=tiny-3"):
        create_run(recipe, {"seed": 2})
    assert read_environment(run) == {"seed": 1}


def test_an_empty_folder_is_taken(recipe):
    recipe.run_dir.mkdir(parents=True)
    assert create_run(recipe, {}).recipe.exists()


def test_a_failed_creation_leaves_nothing(recipe):
    with pytest.raises(TypeError):
        create_run(recipe, {("no", "json"): 1})
    assert not list(recipe.run_dir.parent.iterdir())


@pytest.fixture(params=["file", "under a file", "link to nothing", "not writable"])
def unusable(request, tmp_path, monkeypatch):
    """A `runs_dir` in which nothing can be made."""
    place = tmp_path / "place"
    if request.param == "link to nothing":
        place.symlink_to(tmp_path / "gone")
        return place
    if request.param == "not writable":  # permissions do not stop the superuser
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
        return place
    place.touch()
    return place / "runs" if request.param == "under a file" else place


def test_a_runs_dir_that_cannot_hold_runs_is_reported(load, unusable):
    recipe = load(f"runs_dir={unusable}")
    with config_error(r"^--set runs_dir=.* not a folder that can"):
        train(recipe)
    (wrong,) = wrong_in(recipe)
    assert "not a folder that can be written to" in wrong


def test_a_run_directory_that_cannot_be_made_is_reported(load):
    recipe = load(f"name={'long' * 100}")
    with config_error("--set runs_dir"):
        create_run(recipe, {})


def test_a_link_to_nothing_is_no_free_place(recipe):
    recipe.run_dir.parent.mkdir()
    recipe.run_dir.symlink_to("gone")
    with config_error("is not a gdpo run"):
        create_run(recipe, {})


def test_a_tilde_is_the_home(load, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    recipe = load("runs_dir='~/runs'")
    assert recipe.run_dir == tmp_path / "home" / "runs" / "tiny"


def test_metrics_are_json_that_every_reader_takes(run):
    run.append_metrics(
        {"step": 1, "loss": math.nan, "a": np.float32(0.5), "b": [math.inf], "c": {"d": -math.inf}}
    )
    line = run.metrics.read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 1,
        "loss": None,
        "a": 0.5,
        "b": [None],
        "c": {"d": None},
    }


def test_a_line_cut_off_by_a_crash_is_left_out(run):
    run.append_metrics({"step": 1})
    with run.metrics.open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_metrics(run) == [{"step": 1}]
    assert not run.drop_after(5, read_metrics(run), run.path / "dropped")
    run.append_metrics({"step": 2})
    assert read_metrics(run) == [{"step": 1}, {"step": 2}]


def test_what_comes_after_a_step_is_set_aside(run):
    for step in (1, 2, 3):
        run.append_metrics({"step": step})
        for folder in (run.rollouts, run.rollouts / "eval"):
            folder.mkdir(exist_ok=True)
            (folder / f"step_{step:06d}.parquet").touch()
        (run.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
        complete(run.checkpoints / f"checkpoint-{step}")
    (run.checkpoints / "checkpoint-4").mkdir()  # was only begun
    (run.checkpoints / "checkpoint-7").touch()
    (run.checkpoints / "checkpoint-0").mkdir()  # lost its list
    (run.checkpoints / "checkpoint-0" / "trainer_state.json").touch()
    aside = run.path / "dropped"
    assert run.drop_after(2, read_metrics(run), aside)
    assert [row["step"] for row in read_metrics(run)] == [1, 2]
    names = {str(p.relative_to(run.path)) for p in run.path.rglob("step_*")}
    assert names == {
        f"{dropped}rollouts/{sub}step_00000{step}.parquet"
        for sub in ("", "eval/")
        for step, dropped in ((1, ""), (2, ""), (3, "dropped/"))
    }
    assert {p.name for p in run.checkpoints.iterdir()} == {"checkpoint-1", "checkpoint-2"}
    moved = {p.name for p in (aside / "checkpoints").iterdir()}
    assert moved == {"checkpoint-0", "checkpoint-3"}
    assert json.loads((aside / "metrics.jsonl").read_text()) == {"step": 3}
    assert not run.drop_after(2, read_metrics(run), run.path / "dropped again")
    assert not (run.path / "dropped again").exists()


def test_two_resumptions_in_a_second_set_aside_in_folders_of_their_own(run):
    first = run.place_aside("2026-11-22T19:01:12+00:00")
    first.mkdir()
    second = run.place_aside("2026-11-22T19:01:12+00:00")
    assert (first.name, second.name) == ("dropped-2026-11-22T19-01-12", f"{first.name}-2")


def test_what_a_killed_process_left_is_removed_and_nothing_else(run):
    left = (
        ".README.md.17.partial",
        "rollouts/step_000002.17.partial",
        "rollouts/eval/step_000002.17.partial",
        "checkpoints/checkpoint-4/.files.json.17.partial",
        ".model.abcd1234/model.safetensors",
        "checkpoints/.others/1/3.pth",
        "../.tiny.abcd_234/recipe.yaml",
    )
    kept = ("rollouts/step_000001.parquet", "../.tiny.other.abcd1234/recipe.yaml", "../.tiny.yaml")
    for name in (*left, *kept):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).touch()
    run.tidy()
    assert not any((run.path / name).exists() for name in left)
    assert all((run.path / name).exists() for name in kept)


def test_a_file_is_replaced_whole(tmp_path, saved):
    path = saved("file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old"
    write_whole(path, "new")
    assert path.read_text() == "new\n"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_json_has_a_path_as_text_and_no_escapes(tmp_path):
    assert json.loads(to_json({"path": tmp_path})) == {"path": str(tmp_path)}
    assert '"ü"' in to_json({"text": "ü"})


def test_the_cache_makes_a_thing_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def make(folder):
        made.append(folder)
        (folder / "part").touch()
        if len(made) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("thing", make)
    assert not list(cache_folder().iterdir())
    assert cached("thing", make) == cached("thing", make) == tmp_path / "gdpo" / "thing"
    assert len(made) == 2
    assert [p.name for p in cache_folder().iterdir()] == ["thing"]


def test_without_a_saved_step_a_resumed_run_starts_again(tmp_path):
    assert "starts at step 1" in safe_step(RunDirectory(tmp_path))
