"""Logs that the libraries' own writers wrote are read; the files are described in golden/README."""

import gzip
import json
import os
import shutil
import struct
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.analysis.rows import runs_at
from tests.refusals import config_error, data_error

from gdpo.analysis.logs.sources import read_logs
from gdpo.analysis.logs.trends import logged_runs
from gdpo.errors import DataError

GOLDEN = Path(__file__).parent / "golden"
STATE = "trainer_state.json"
EVENTS = "events.out.tfevents.1795576199.vm.16124.0"
PACKAGES = {EVENTS: "tensorboard", "run-vfg8l7u2.wandb": "wandb"}
SOURCES = {
    "TensorBoard": EVENTS,
    "W&B": "run-vfg8l7u2.wandb",
    "trackio": "gdpo-logs.db",
    "trackio's parquet": "gdpo-logs.parquet",
}


@pytest.fixture
def folder(tmp_path):
    """The logs in a folder, unpacked."""
    for file in GOLDEN.iterdir():
        if file.suffix == ".gz":
            (tmp_path / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        elif file.is_file() and file.suffix != ".md":
            shutil.copy(file, tmp_path)
    return tmp_path


def path_of(folder, source):
    """The file of a source. Skips the test if the package that reads it is not installed."""
    if source in PACKAGES:
        pytest.importorskip(PACKAGES[source])
    return folder / source


def truth():
    """What TRL logged, by reward and number."""
    history = json.loads((GOLDEN / STATE).read_text())["log_history"]
    rows = [row for row in history if "rewards/vowels/mean" in row]
    return [row["step"] for row in rows], {
        name: {f: [row[f"rewards/{name}/{f}"] for row in rows] for f in ("mean", "std")}
        for name in ("characters", "vowels", "is_text")
    }


@pytest.mark.parametrize("source", [*SOURCES, STATE])
def test_every_source_has_the_numbers_that_trl_logged(folder, source):
    (run,) = runs_at(path_of(folder, SOURCES.get(source, source)))
    steps, rewards = truth()
    assert run.steps.tolist() == steps == list(range(1, 17))
    assert run.log.source in source
    assert not run.log.problem
    for name, numbers in rewards.items():
        for field, values in numbers.items():
            np.testing.assert_allclose(run.rewards[name][field], values, rtol=1e-6, atol=1e-9)
    assert len(run.batch["zero_advantage_groups"]) == 16


def test_one_training_in_five_logs_is_one_run(folder):
    assert all(path_of(folder, source).exists() for source in PACKAGES)
    (run,) = runs_at(folder)
    assert run.log.source == STATE
    assert [log.source for log in run.copies] == ["TensorBoard", "W&B", "trackio", "trackio"]


def test_another_training_is_another_run(folder):
    state = json.loads((folder / STATE).read_text())
    for row in state["log_history"][5:]:
        row["rewards/vowels/mean"] = 0.5
    (folder / "other").mkdir()
    (folder / "other" / STATE).write_text(json.dumps(state))
    assert len(runs_at(folder)) == 2


def test_of_several_checkpoints_only_the_longest_log_is_read(tmp_path):
    state = json.loads((GOLDEN / STATE).read_text())
    for count in (4, 16, 8):
        checkpoint = tmp_path / f"checkpoint-{count}"
        checkpoint.mkdir()
        shorter = {**state, "log_history": state["log_history"][:count]}
        (checkpoint / STATE).write_text(json.dumps(shorter))
    (run,) = runs_at(tmp_path)
    assert run.log.path.parent.name == "checkpoint-16"


def test_gdpos_own_numbers_are_found_in_its_trainers_log():
    (run,) = runs_at(GOLDEN / "gdpo")
    assert {"mean", "std", "group_std", "zero_variance_groups", "influence_share"} <= set(
        run.rewards["vowels"]
    )
    assert {"zero_advantage_groups", "warnings"} <= set(run.batch)


def wandb_file(rows):
    """Bytes of a .wandb file, whose messages are split at the borders of blocks as by LevelDB."""
    record = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record
    out = bytearray(b":W&B\xe1\xbe\x00")
    for row in rows:
        items = [{"nested_key": [key], "value_json": json.dumps(row[key])} for key in row]
        left, kind = record(history={"item": items}).SerializeToString(), 1
        while left or kind == 1:
            if (room := 32768 - len(out) % 32768) < 7:
                out += bytes(room)
                room = 32768
            part, left = left[: room - 7], left[room - 7 :]
            kind = (1 if kind == 1 else 4) if not left else (2 if kind == 1 else 3)
            out += struct.pack("<IHB", 0, len(part), kind) + part
            if not left:
                break
    return bytes(out)


@pytest.mark.parametrize("room", range(9))
def test_messages_of_wandb_are_whole_wherever_a_block_ends(tmp_path, room):
    means = {"rewards/a/mean": 0.5, "_step": 1}
    empty = len(wandb_file([{"x": "", **means}]))
    rows = [{"x": "y" * (32768 - room - empty), **means}, {"x": "z" * 70_000, **means, "_step": 2}]
    file = tmp_path / "x.wandb"
    file.write_bytes(wandb_file([*rows, {**means, "_step": 3}]))
    (run,) = runs_at(file)
    assert run.steps.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("source", "package"), PACKAGES.items())
def test_a_file_of_a_package_that_is_missing_names_the_package(
    folder, monkeypatch, source, package
):
    of_events = "tensorboard.backend.event_processing.event_file_loader"
    for name in (of_events, "wandb.proto.wandb_internal_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    with data_error(rf"{source}: {package} \(pip install {package}\) is needed"):
        read_logs([folder / source])
    assert {log.source for log in read_logs([folder])} == {STATE, "trackio"}


@pytest.mark.parametrize("size", [0, 5, 7, 20, 1000, 20_000])
@pytest.mark.parametrize("source", PACKAGES)
def test_a_file_without_its_end_is_read_as_far_as_it_goes(folder, source, size):
    file = path_of(folder, source)
    file.write_bytes(file.read_bytes()[:size])
    try:
        logs = read_logs([file])
    except DataError:
        assert size < 20_000
    else:
        steps = [step for log in logs for step in log.rows]
        assert len(steps) < 16
        assert (size < 20_000) or steps


@pytest.mark.parametrize("source", [*PACKAGES, "gdpo-logs.db"])
def test_a_damaged_file_ends_with_an_error_or_with_fewer_rows(folder, source):
    file, rng = path_of(folder, source), np.random.default_rng(0)
    whole = file.read_bytes()
    for _ in range(40):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 30):
            damaged[place] = rng.integers(0, 256)
        file.write_bytes(damaged)
        with suppress(DataError):
            runs_at(file)


@pytest.mark.parametrize("name", ["x.wandb", "x.tfevents.1", "x.db", STATE])
@pytest.mark.parametrize("content", [b"\xff\xfe junk \x00" * 9, b"[[[", b"3", b"\x80\x04K\x01."])
def test_a_broken_log_is_named_unless_there_is_another_one(tmp_path, saved, name, content):
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path, tmp_path / name):
        with data_error(name):
            read_logs([path])
    saved("metrics.jsonl", '{"step": 1, "rewards/a/mean": 0.5}\n')
    assert [log.path.name for log in read_logs([tmp_path])] == ["metrics.jsonl"]


def test_lines_that_are_not_json_are_no_log_because_they_may_be_rollouts(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe junk \x00")
    assert read_logs([tmp_path]) == read_logs([tmp_path / "x.jsonl"]) == []


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / STATE)
    assert read_logs([tmp_path]) == read_logs([tmp_path / STATE]) == []


def test_metrics_of_gdpos_plugin_are_read_from_verls_file(saved):
    data = {"gdpo/correct/mean": 0.25, "gdpo/correct/group_std": 0.5, "critic/score/mean": 1.0}
    (run,) = runs_at(saved("run.jsonl", [{"step": step, "data": data} for step in (1, 2)]))
    assert run.rewards["correct"]["group_std"].tolist() == [0.5, 0.5]
    assert list(run.rewards) == ["correct"]


def test_a_log_may_contain_influence_shares_but_no_means(saved):
    rows = [{"step": step, "gdpo/a/influence_share": 0.25} for step in (1, 2)]
    other = [{**row, "gdpo/a/influence_share": 0.75} for row in rows]
    files = [saved(name, of) for name, of in (("a.jsonl", rows), ("b.jsonl", other))]
    run, _ = runs_at(*files)
    assert run.rewards["a"]["influence_share"].tolist() == [0.25, 0.25]
    assert np.isnan(run.rewards["a"]["mean"]).all()


TRAINED = {"step": 1, "rewards/a/mean": 0.5}


@pytest.mark.parametrize(
    ("rows", "means"),
    [
        ([{"step": 1, "reward": 0.5}], []),
        ([*({"step": 0, "loss": 1.0} for _ in range(100)), TRAINED], [{"a": [0.5]}]),
        ([{**TRAINED, "eval_rewards/a/mean": 0.75}], [{"a": [0.5]}]),
        ([TRAINED, {"step": 2, "eval/rewards/b/mean": 1.0}], [{"a": [0.5]}]),
        ([TRAINED, {"step": 3, "rewards/a/mean": None}], [{"a": [0.5]}]),
        ([TRAINED, {"rewards/a/mean": 3.0}], [{"a": [0.5]}]),
        ([TRAINED, {"rewards/a/mean": 3.0, "step": 1e300}], [{"a": [0.5]}]),
        ([TRAINED, {**TRAINED, "rewards/a/mean": 0.75}], [{"a": [0.75]}]),
        ([{"step": 1, "rewards/my/own/mean": 1.0}], [{"my/own": [1.0]}]),
    ],
)
def test_each_step_of_a_log_has_the_last_means_of_its_training(saved, rows, means):
    runs = runs_at(saved("metrics.jsonl", rows))
    assert [{n: of["mean"].tolist() for n, of in run.rewards.items()} for run in runs] == means
    assert all(run.steps.tolist() == [1] for run in runs)


def test_some_rewards_can_be_chosen(folder):
    (run,) = logged_runs(read_logs([folder]), ["vowels"])
    assert list(run.rewards) == ["vowels"]
    with config_error("'vowel': did you mean 'vowels'"):
        logged_runs(read_logs([folder]), ["vowel"])
