"""The tables of completions that TRL logs to W&B are read as rollouts.

The files in `golden/trl-wandb_0.31.0` are by TRL 1.16.0 with `log_completions=True`, and by wandb
0.31.0 in offline mode: steps 1, 2 and 24 of a training, and step 24 again, as TRL logs it at the
end.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.rollouts.readers.reading import nothing, read

from gdpo.rollouts.readers import read_rollout_files, read_texts

GOLDEN = Path(__file__).parent / "golden" / "trl-wandb_0.31.0"
TABLES = GOLDEN / "files" / "media" / "table"


def test_trls_tables_are_read_with_the_numbers_in_them():
    tables, _ = read(GOLDEN)
    assert [int(table.steps[0]) for table in tables] == [1, 2, 24]
    assert {table.run for table in tables} == {""}
    for table in tables:
        (file,) = table.files
        written = json.loads(file.read_text())
        columns = dict(zip(written["columns"], zip(*written["data"], strict=True), strict=True))
        assert table.format == "trl"
        assert table.names == ("characters", "vowels", "is_text")
        for name, rewards in zip(table.names, table.rewards.T, strict=True):
            np.testing.assert_array_equal(rewards, columns[name])
        np.testing.assert_array_equal(table.advantages, columns["advantage"])
        assert len(np.unique(table.groups)) == len(set(columns["prompt"]))
        assert read_texts(file, [3])[0].completion == columns["completion"][3]


def test_the_table_that_a_run_logs_again_at_its_end_is_left_out():
    tables, report = read(GOLDEN)
    assert sum(map(len, tables)) == 3 * 16
    ((file, why),) = report.left_out.items()
    assert file.name.startswith("completions_241_")
    assert why.startswith("the same table as completions_239_")


def written(folder, columns, *rows, name="completions_7_0123456789abcdef0123.table.json"):
    file = folder / name
    file.write_text(json.dumps({"columns": columns, "data": rows}))
    return file


def test_chats_and_missing_rewards_are_read(tmp_path):
    chat = [{"role": "user", "content": "hi"}]
    reply = [{"role": "assistant", "content": "ho"}]
    columns = ["step", "prompt", "completion", "correct", "advantage"]
    rows = [[3, chat, reply, 1.0, 0.5], [3, chat, reply, None, -0.5], [3, chat, reply, 0.5, 0.0]]
    file = written(tmp_path, columns, *rows)
    (table,) = read_rollout_files(file)
    np.testing.assert_array_equal(table.rewards[:, 0], [1.0, np.nan, 0.5])
    assert len(np.unique(table.groups)) == 1
    assert read_texts(file, [0])[0].completion == reply


def test_a_table_without_a_step_has_the_step_of_wandb(tmp_path):
    written(tmp_path, ["prompt", "reward_a"], ["x", 0.5], ["x", 1.0])
    (table,) = read_rollout_files(tmp_path)
    assert table.steps.tolist() == [7, 7]


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"columns": ["a"], "data": [[1, 2]]}',
        '{"columns": 3, "data": 4}',
        "\x00",
        "[" * 9999,
        '{"columns": ["a", "a"], "data": [[1, "x"], ["y", {}]]}',
    ],
)
def test_another_file_with_such_a_name_is_reported(tmp_path, saved, content):
    assert saved("x.table.json", content) in nothing(tmp_path).left_out


def test_the_tables_behind_gdpos_own_charts_are_passed_over(tmp_path):
    charts = tmp_path / "files" / "media" / "table" / "gdpo"
    charts.mkdir(parents=True)
    name = "influence_shares_table_9_0123456789abcdef0123.table.json"
    written(charts, ["step", "lineKey", "lineVal"], [1, "a", 0.5], name=name)
    assert nothing(tmp_path).left_out == {}


def test_an_empty_table_is_no_error(tmp_path):
    written(tmp_path, ["step", "prompt", "completion", "advantage"])
    nothing(tmp_path)


@pytest.mark.parametrize(
    "row", [{"rewards/a/mean": 0.5, "rewards/a/std": 0.5}, {"reward_a": 0.5, "kl": 1, "entropy": 2}]
)
def test_metrics_of_whole_steps_are_not_taken_for_rollouts(saved, row):
    file = saved("log.jsonl", [{"step": 1, **row}])
    assert "metrics of whole steps, not rollouts" in nothing(file).left_out[file]
