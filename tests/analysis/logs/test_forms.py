"""Logs are read in every form in which people store and paste them; see golden_forms/README."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from gdpo.analysis.logs import rows as rows_of_logs
from gdpo.analysis.logs.sources import read_logs
from gdpo.analysis.logs.trends import logged_runs
from gdpo.errors import DataError
from gdpo.rollouts.readers import read_rollout_files

FORMS = Path(__file__).parent / "golden_forms"
ONE_RUN = {
    "pasted.jsonl": "JSON",
    "pasted.json": "JSON",
    "trainer_state.json": "trainer_state.json",
    "console.log": "console output",
    "console_5.txt": "console output",
    "notebook.tsv": "CSV",
    "logging.jsonl": "JSON",
    "history.csv": "W&B",
    "history.parquet": "W&B",
    "spreadsheet.csv": "W&B",
}
WITHOUT_STEP = {"pasted.jsonl", "pasted.json", "console.log", "console_5.txt"}
STEPS = np.arange(1, 21)
TRUTH = {"accuracy": 0.2 + STEPS / 100, "format": 0.9 - STEPS / 40}


def is_true(run, factor=1.0):
    assert run.steps.tolist() == STEPS.tolist()
    assert set(run.rewards) == set(TRUTH)
    for name, means in TRUTH.items():
        np.testing.assert_allclose(run.rewards[name]["mean"], factor * means, rtol=2e-4)


@pytest.mark.parametrize("name", ONE_RUN)
def test_each_form_has_the_same_means_and_no_rollouts(name):
    reading = read_rollout_files(FORMS / name)
    assert list(reading) == []
    assert reading.report.unrecognized == []
    (run,) = logged_runs(read_logs([FORMS / name]))
    is_true(run)
    assert run.log.source == ONE_RUN[name]
    assert run.log.numbered == (name in WITHOUT_STEP)


OTHER_NAMES = [(name, f"mine{Path(name).suffix}") for name in ONE_RUN]
OTHER_NAMES += [("console.log", "mine"), ("console.log", "a.out"), ("pasted.jsonl", "a.txt")]


@pytest.mark.parametrize(("name", "other"), OTHER_NAMES)
def test_the_content_decides_and_not_the_name(tmp_path, name, other):
    content, file = (FORMS / name).read_bytes(), tmp_path / other
    file.write_bytes(content)
    is_true(*logged_runs(read_logs([file])))
    if name != "history.parquet":
        file.write_bytes(b"\xef\xbb\xbf" + content)
        is_true(*logged_runs(read_logs([file])))
    packed = tmp_path / f"{other}.gz"
    packed.write_bytes(gzip.compress(content))
    is_true(*logged_runs(read_logs([packed])))


@pytest.mark.parametrize("name", ONE_RUN)
def test_each_form_is_found_in_a_folder(tmp_path, name):
    shutil.copy(FORMS / name, tmp_path)
    (tmp_path / "config.json").write_text('{"model": "x"}')
    is_true(*logged_runs(read_logs([tmp_path])))


def test_the_charts_of_a_run_are_joined(tmp_path):
    for name in ("accuracy", "format"):
        shutil.copy(FORMS / f"chart_{name}.csv", tmp_path)
    for paths in ([tmp_path], sorted(tmp_path.iterdir())):
        runs = {run.log.run: run for run in logged_runs(read_logs(paths))}
        is_true(runs["grpo - seed 1"])
        is_true(runs["other"], 0.5)
        assert len(runs) == 2
    (first, _) = logged_runs(read_logs([FORMS / "chart_accuracy.csv"]))
    assert list(first.rewards) == ["accuracy"]


def test_console_output_is_read_if_a_folder_has_nothing_else(tmp_path):
    shutil.copy(FORMS / "console.log", tmp_path)
    is_true(*logged_runs(read_logs([tmp_path])))
    shutil.copy(FORMS / "history.csv", tmp_path)
    (run,) = logged_runs(read_logs([tmp_path]))
    assert (run.log.source, run.copies) == ("W&B", ())


def test_other_numbers_of_a_reward_are_no_rewards(tmp_path):
    row = {"step": 1, "loss": 0.1, "rewards/a/mean": 0.5, "rewards/a": 9.0, "rewards/a/max": 1.0}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    (run,) = logged_runs(read_logs([tmp_path / "x.jsonl"]))
    assert {name: of["mean"].tolist() for name, of in run.rewards.items()} == {"a": [0.5]}


def test_rewards_of_pairs_are_no_rewards(tmp_path):
    rewards = {f"rewards/{name}": 0.5 for name in ("chosen", "rejected", "margins", "accuracies")}
    row = {"step": 1, "loss": 0.1, "grad_norm": 1.0, **rewards, "logps/chosen": -5.0}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    assert logged_runs(read_logs([tmp_path / "x.jsonl"])) == []
    assert list(read_rollout_files(tmp_path / "x.jsonl")) == []


@pytest.mark.parametrize(
    ("row", "like"),
    [
        ({"step": 1, "rewards/a": 0.5, "rewards/b": 1.0}, "'rewards/a', 'rewards/b'"),
        ({"step": 1, "quality_reward": 0.5, "loss": 1.0}, "'loss'"),
        ({"step": 1, "prompt": "p", "rewards/a/mean": 0.5}, "'rewards/a/mean'"),
        ({"step": 1, "reward": 0.5, "learning_rate": 1.0}, "'learning_rate'"),
        ({"step": 1, "env/all/a": 0.5, "env/all/b": 0.5}, "'env/all/a', 'env/all/b'"),
        ({"Step": 1, "my run - train/reward": 0.5}, "'my run - train/reward'"),
    ],
)
def test_rows_that_may_be_either_are_neither(tmp_path, row, like):
    file = tmp_path / "x.jsonl"
    file.write_text(f"{json.dumps(row)}\n" * 3)
    reading = read_rollout_files(file)
    assert list(reading) == []
    assert reading.report.unrecognized == []
    with pytest.raises(DataError, match="metrics of whole steps, or rollouts") as error:
        read_logs([file])
    assert like in str(error.value)
    assert len(read_logs([file], forced=True)) == 1


def test_rows_that_repeat_each_step_may_be_rollouts(tmp_path):
    rows = [{"step": i // 8, "rewards/a/mean": i % 3, "grad_norm": 1.0} for i in range(64)]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(DataError, match="56 rows repeat the step of another row"):
        read_logs([tmp_path / "x.jsonl"])


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "p", "completion": "c", "rewards/a": 1.0, "kl": 0.1, "loss": 0.5},
        {"group": 1, "rewards/a": 1.0, "kl": 0.1, "entropy": 0.5},
        {"question": "q", "response": "r", "reward": 0.5, "learning_rate": 1e-6, "epoch": 1},
        {"step": 1, "prompt_id": 3, "reward_a": 0.5, "grad_norm": 0.1},
    ],
)
def test_rollouts_beside_numbers_of_their_step_are_rollouts(tmp_path, row):
    file = tmp_path / "x.jsonl"
    file.write_text(f"{json.dumps(row)}\n" * 4)
    assert [len(table) for table in read_rollout_files(file)] == [4]
    assert read_logs([file]) == []


def test_several_runs_in_one_file_are_several_runs(tmp_path):
    rows = [
        f"{run},{step},{0.5 * step + seed},1\n"
        for seed, run in enumerate(("first", "second"))
        for step in range(8)
    ]
    file = tmp_path / "x.csv"
    file.write_text("run_name,step,rewards/a/mean,grad_norm\n" + "".join(rows))
    runs = logged_runs(read_logs([file]))
    assert {run.log.run: run.rewards["a"]["mean"][1] for run in runs} == {
        "first": 0.5,
        "second": 1.5,
    }


def test_console_output_in_utf_16_is_refused_with_a_way_to_convert_it(tmp_path):
    file = tmp_path / "x.log"
    file.write_text((FORMS / "console.log").read_text(), encoding="utf-16")
    with pytest.raises(DataError, match=r"UTF-16: write it in UTF-8, for example with\s+iconv"):
        read_logs([file])


@pytest.mark.parametrize("text", ["{" * 2**22, "{'a': " * 10**6, "'" * 2**22, "{'a': 1,\n" * 10**5])
def test_hostile_console_output_ends(tmp_path, text):
    file = tmp_path / "x.log"
    file.write_text(text)
    assert read_logs([file]) == []


def test_a_table_of_texts_in_the_history_of_a_run_makes_it_no_rollouts(tmp_path):
    row = {"_step": 1, "_runtime": 2.5, "rewards/a/mean": 0.5, "completions": "{'_type': 'table'}"}
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps(row))
    (run,) = logged_runs(read_logs([file]))
    assert run.rewards["a"]["mean"].tolist() == [0.5]


def test_extremes_of_a_reward_are_no_reward(tmp_path):
    row = {"step": 1, "loss": 0.1, "epoch": 1, "rewards/a/max": 0.5, "rewards/mean": 0.5}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    assert logged_runs(read_logs([tmp_path / "x.jsonl"])) == []


def test_only_rows_with_rewards_are_numbered(tmp_path):
    rows = [{"loss": 0.1, "epoch": i, "rewards/a": i / 9} for i in range(3)]
    between = {"eval_loss": 0.5, "epoch": 1}
    file = tmp_path / "x.log"
    file.write_text("\n".join(f"{row}\n{between}" for row in rows))
    (run,) = logged_runs(read_logs([file]))
    assert run.steps.tolist() == [1, 2, 3]


def test_a_long_text_without_metrics_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_of_logs, "_SEARCHED", 1000)
    monkeypatch.setattr(rows_of_logs, "_PART", 500)
    (tmp_path / "x.log").write_text("x" * 2000 + (FORMS / "console.log").read_text())
    assert read_logs([tmp_path / "x.log"]) == []
