"""The run and the step of a file are told by its path, and by no more of it than says so."""

from pathlib import Path

import pytest
from tests.refusals import data_error
from tests.rollouts.built import rollout
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import read

from gdpo.rollouts import rollout_file, write_rollouts
from gdpo.rollouts.readers import read_rollout_files
from gdpo.rollouts.readers.files import find_files, kind_of


def found_at(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return {file.path.relative_to(root).as_posix(): file for file in find_files([root], {})}


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".PARQUET", ".csv.GZ"])
def test_dots_in_the_name_of_a_file_are_no_ending(tmp_path, ending):
    names = [f"qwen2.5-7b_step_{step}{ending}" for step in (1, 2, 30)]
    found = found_at(tmp_path, *names)
    assert [found[name].step for name in names] == [1, 2, 30]
    assert all(kind_of(file.path) for file in found.values())


@pytest.mark.parametrize("name", ["iter2-grpo", "step5x", "test-grpo", "val_loss", "eval.run7"])
def test_a_folder_that_only_contains_such_a_word_is_a_run(tmp_path, name):
    found = found_at(tmp_path, f"{name}/a.jsonl", "other/a.jsonl")
    file = found[f"{name}/a.jsonl"]
    assert (file.run, file.step, file.evaluation) == (name, None, False)
    (alone,) = find_files([tmp_path / name], {})
    assert alone.step is None


@pytest.mark.parametrize(
    ("name", "step", "evaluation"),
    [
        ("step_12", 12, False),
        ("iter_3", 3, False),
        ("iteration_000012", 12, False),
        ("global_step_5_evals", 5, True),
        ("eval", None, True),
        ("val", None, True),
        ("validation_data", None, True),
        ("test", None, True),
    ],
)
def test_a_folder_of_a_step_or_an_evaluation_is_no_run(tmp_path, name, step, evaluation):
    (file,) = found_at(tmp_path, f"seed1/{name}/a.jsonl").values()
    assert (file.run, file.step, file.evaluation) == ("seed1", step, evaluation)
    (given,) = find_files([tmp_path / "seed1" / name], {})
    assert not given.evaluation


def test_runs_that_are_named_like_steps_are_kept_apart(tmp_path):
    for name in ("iter2-grpo", "iter2-gdpo", "test-grpo"):
        written.verl(tmp_path / name)
    tables, report = read(tmp_path)
    assert [table.run for table in tables] == ["iter2-gdpo", "iter2-grpo", "test-grpo"]
    assert not report.left_out


ROW = {"step": 1, "prompt": "a", "completion": "b", "advantage": 0.0, "r": 1.0}


def test_a_step_that_the_record_of_gdpo_has_as_well_is_read_once(tmp_path):
    for step in (1, 2):
        path = rollout_file(tmp_path / "rollouts", step)
        write_rollouts(path, [rollout(step, 0, 0, {"r": 1.0})] * 2)
    written.trl(tmp_path, [ROW | {"step": step} for step in (2, 2, 3, 3)])
    tables, report = read(tmp_path)
    assert sorted((table.format, int(table.steps[0])) for table in tables) == [
        ("gdpo", 1),
        ("gdpo", 2),
        ("trl", 3),
    ]
    ((path, why),) = report.left_out.items()
    assert path == tmp_path / "completions" / "completions_00002.parquet"
    assert why == f"gdpo recorded the same step in {tmp_path / 'rollouts'}"


def test_what_is_no_twin_is_read(tmp_path):
    for run in ("theirs", "cut", "other"):
        written.trl(tmp_path / run, [ROW])
    written.parquet(tmp_path / "theirs" / "rollouts" / "step_000001.parquet", [ROW])
    record = rollout_file(tmp_path / "cut" / "rollouts", 1)
    write_rollouts(record, [rollout(1, 0, 0, {"r": 1.0})])
    record.write_bytes(record.read_bytes()[:-9])
    written.verl(tmp_path / "other" / "rollouts", steps=(1,))
    tables, report = read(tmp_path)
    assert sum(len(table) for table in tables if table.format == "trl") == 4
    assert list(report.left_out) == [record]


def test_a_format_that_is_asked_for_has_no_twins(tmp_path):
    write_rollouts(rollout_file(tmp_path / "rollouts", 1), [rollout(1, 0, 0, {"r": 1.0})])
    written.trl(tmp_path, [ROW] * 2)
    tables, report = read(tmp_path, format="trl")
    assert sum(map(len, tables)) == 3
    assert not report.left_out


def test_what_is_odd_in_every_file_is_told_once(tmp_path, saved):
    record = {"input": "a", "output": "b", "score": 1.0}
    for step in (1, 2, 3):
        part = [{**record, "step": step}] * step + [{"step": step}]
        saved(f"{step}.jsonl", part)
        written.lines(tmp_path / "other" / f"{step}.jsonl", [{"nothing": 1}])
    report = read_rollout_files(tmp_path).report
    assert not report.oddities()
    reading = read_rollout_files(tmp_path)
    assert sum(map(len, reading)) == 6
    *_, lost, left = reading.report.oddities()
    assert lost.place == f"{tmp_path / '1.jsonl'}:2"
    assert "'input' of format verl" in lost.what
    assert lost.more == " (and 2 more, in 3 files)"
    assert left.place == f"{tmp_path / 'other' / '1.jsonl'}"
    assert left.what.startswith("not read: ")
    assert left.more == " (and 2 more)"
    assert len(reading.report.notices) == len(reading.report.left_out) == 3


@pytest.mark.parametrize("path", ["x" * 300, "x/" * 3000, "none"])
def test_a_path_that_cannot_be_is_not_there(path):
    with data_error("no such file"):
        read_rollout_files(Path(path))


def test_links_to_folders_elsewhere_are_told_and_those_to_files_are_read(tmp_path):
    for name in ("here", "there"):
        written.verl(tmp_path / name)
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "linked").symlink_to(there)
    (here / "newest").symlink_to(here)
    (here / "8.jsonl").symlink_to(there / "7.jsonl")
    left_out = {}
    found = [file.path.name for file in find_files([here], left_out)]
    assert found == ["7.jsonl", "8.jsonl"]
    assert list(left_out) == [here / "linked"]
    assert "a link to a folder elsewhere" in left_out[here / "linked"]
    assert len(find_files([here, here / "linked"], {})) == 3


def test_a_file_that_is_named_absolutely_and_relatively_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found_at(tmp_path, "a.jsonl")
    assert len(find_files([tmp_path, Path("a.jsonl")], {})) == 1


def test_what_an_earlier_run_left_beside_a_record_is_read_only_where_it_is_named(tmp_path):
    names = [f"r/{folder}step_000001.parquet" for folder in ("", "earlier-1/", "earlier-1/eval/")]
    own, earlier, _ = names
    assert list(found_at(tmp_path, *names)) == [own]
    left_out = {}
    find_files([tmp_path], left_out)
    (why,) = left_out.values()
    assert list(left_out) == [tmp_path / "r" / "earlier-1"]
    assert why.startswith("set aside when this run began or was resumed")
    named = {}
    both = find_files([tmp_path / "r", tmp_path / "r" / "earlier-1"], named)
    assert [file.path for file in both] == [tmp_path / own, tmp_path / earlier]
    assert tmp_path / "r" / "earlier-1" not in named
    (tmp_path / own).unlink()  # no record is there that they could be mixed with
    assert list(found_at(tmp_path)) == [earlier]


def test_what_a_resumption_set_aside_is_no_part_of_the_run(tmp_path):
    aside = "run/dropped-2026-11-22T19-01-12-2/rollouts/step_000002.parquet"
    elsewhere = "dropped-2026-11-22T19-01-12/step_000001.parquet"  # a folder of the user's own
    for name in ("run/rollouts/step_000001.parquet", aside, elsewhere):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("recipe.yaml", "environment.json"):
        (tmp_path / "run" / name).touch()
    left_out = {}
    found = [file.path for file in find_files([tmp_path], left_out)]
    assert found == [tmp_path / elsewhere, tmp_path / "run/rollouts/step_000001.parquet"]
    assert tmp_path / "run" / "dropped-2026-11-22T19-01-12-2" in left_out
