"""Every framework's dump gives the numbers that stand in it."""

import subprocess
import sys
from math import nan
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.environments import ROOT
from tests.refusals import config_error, data_error
from tests.rollouts.built import rollout
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import read, read_one

from gdpo.rollouts import rollout_file, write_rollouts
from gdpo.rollouts.readers import FORMATS, Rescored, read_rollout_files, read_texts
from gdpo.rollouts.readers.names import by_name


def only(path, **options):
    table, report = read_one(path, **options)
    assert report.skipped == 0
    return table, report


def sizes(table):
    return sorted(np.unique(table.groups, return_counts=True)[1].tolist())


WRITTEN = {
    "verl": {
        "names": ("acc", "format"),
        "rewards": [[0, 0.5], [1, 0.5]] * 2,
        "total": [0.5, 1.5, 0.5, 1.5],
        "steps": [7] * 4,
        "grouped_by": "equal prompts",
    },
    # One prompt, and yet two groups.
    "verl_v1": {"names": ("score",), "rewards": [[1], [0], [1], [2]], "grouped_by": "group id"},
    "swift_ray": {"format": "ms-swift-ray", "rewards": [[1], [0], [0.5], [0.25]]},
    "results": {
        "names": ("correct", "format"),
        "rewards": [[0, 1], [1, 1], [2, 1], [3, 1]],
        "total": [1, 2, 3, 4],
        "num_tokens": [4, 5, 6, 7],
        "cut": [0, 1, 0, 0],
    },
}


@pytest.mark.parametrize("writer", WRITTEN)
def test_two_groups_of_two_are_read_as_they_were_written(tmp_path, writer):
    table, report = only(getattr(written, writer)(tmp_path))
    for name, expected in WRITTEN[writer].items():
        assert_array_equal(getattr(table, name), expected, err_msg=name)
    assert table.groups[0] == table.groups[1] != table.groups[2] == table.groups[3]
    assert ("scalar reward only" in str(report)) == (len(table.names) == 1)
    assert "detected from the fields " in str(report)


def test_nemo_rl_tells_what_was_trained_and_leaves_out_the_last_word_of_the_environment(tmp_path):
    table, _ = only(written.nemo_rl(tmp_path))
    assert table.trained.tolist() == [True, True, False, True]
    (text, *_) = read_texts(table.files[0], [0])
    assert text.completion == [{"role": "assistant", "content": "answer"}]


def test_nemo_rl_advantages_that_differ_over_the_tokens_are_that_of_the_last_one(saved):
    credit = [0.0, 0.1, 0.2, 0.3, 9.0]
    columns = {"rewards": 1.0, "token_ids": [1] * 5, "token_loss_mask": [0, 1, 1, 1, 0]}
    path = saved(
        "train_data_step1.jsonl",
        [{"content": ["q", "a"], "idx": 0, "advantages": [credit]} | columns],
    )
    assert only(path)[0].advantages.tolist() == [0.3]


def test_nemo_rl_with_dynamic_sampling_has_the_rewards_of_its_tokens_elsewhere(saved):
    path = saved(
        "train_data_step1.jsonl",
        [{"content": ["a"], "rewards": [5.0], "filtered_rewards": [1.0], "idx": 0}],
    )
    assert only(path)[0].rewards.tolist() == [[1.0]]


def test_nemo_rl_of_a_validation_is_a_conversation(saved):
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    path = saved(
        "val_data_step3.jsonl",
        [{"content": talk, "rewards": 1.0, "idx": i} for i in range(2)],
    )
    table, _ = only(path)
    assert sizes(table) == [2]
    assert read_texts(path, [1])[0].prompt == talk[:1]


def test_a_line_of_ms_swift_is_a_table(tmp_path):
    tables, report = read(written.swift(tmp_path))
    assert [table.steps[0] for table in tables] == [1, 2]
    assert tables[0].names == ("MathAccuracy", "Format")
    assert_array_equal(tables[1].rewards, [[0.25, 1], [0, nan], [1, 0], [1, 0.5]])
    assert tables[0].advantages.tolist() == [1, -1, 0.5, -0.5]
    assert report.read == 8
    assert report.group_sizes == {2: 4}
    assert read_texts(tables[1].files[0], [6])[0].completion == "y"


def test_slime_may_have_one_reward_and_a_mask_instead_of_a_length(tmp_path):
    torch = pytest.importorskip("torch")
    sample = {"group_index": 3, "prompt": "q", "response": "a", "reward": 1.5, "loss_mask": [1, 1]}
    samples = [sample | {"status": "truncated"}, sample | {"remove_sample": True}]
    torch.save({"rollout_id": 11, "samples": samples}, tmp_path / "data.pt")
    table, _ = only(tmp_path)
    assert (table.names, table.rewards.tolist()) == (("reward",), [[1.5]] * 2)
    assert table.steps.tolist() == [11, 11]
    assert table.num_tokens.tolist() == [2, 2]
    assert table.trained.tolist() == [True, False]


def test_episodes_that_verifiers_itself_wrote(saved):
    """By its 0.4.0 on 2026-11-21, with the script beside it; the third has a reward unscored."""
    golden = Path(__file__).parent / "golden" / "verifiers_0.4.0.jsonl"
    lines = golden.read_text().splitlines(keepends=True)
    for order in ([0, 1, 2, 3], [2, 3, 0, 1]):
        table, _ = only(saved("traces.jsonl", "".join(lines[i] for i in order)))
        assert table.format == "verifiers"
        assert table.names == ("correct", "brief")
        assert table.grouped().weights == (1.0, 0.25)
        expected = np.array([[0, 1], [1, 0.5], [0, nan], [1, 0.25]])
        assert_array_equal(table.rewards, expected[order])
        assert table.total.tolist() == [[0.25, 1.125, 0, 1.0625][i] for i in order]
        assert table.advantages.tolist() == [i - 1.5 for i in order]
        assert table.num_tokens.tolist() == [i + 1 for i in order]
        assert table.cut.tolist() == [float(i == 3) for i in order]
        assert table.steps.tolist() == [8] * 4
        assert sizes(table) == [2, 2]


def test_every_agent_of_an_episode_is_compared_with_itself(saved):
    record = {
        "task": {"hash": "h"},
        "group": {"id": "g"},
        "traces": [
            written.trace({"win": (1.0, 1.0)}, agent="a"),
            written.trace({"win": (0.0, 1.0)}, agent="b", trainable=False),
        ],
    }
    alone = {**record, "traces": [written.trace({}, agent="a")]}  # the other agent failed
    alone["traces"][0]["nodes"].pop()
    table, _ = only(saved("traces.jsonl", [record, record, alone]))
    assert sizes(table) == [2, 3]
    assert table.groups[0] == table.groups[2] != table.groups[1]
    assert table.trained.tolist() == [True, False] * 2 + [True]
    assert_array_equal(table.total, [1, 0, 1, 0, nan])  # without a score, there is no total
    assert_array_equal(table.num_tokens, [3, 3, 3, 3, nan])  # nor a length if none was sampled


def test_prime_rl_is_read_once_and_without_its_evaluations(tmp_path):
    for step in (9, 10):
        for inner in ("train/all", "train/effective", "eval/all"):
            folder = tmp_path / "rollouts" / f"step_{step}" / inner
            written.episodes(folder / "traces.jsonl", step=step)
    tables, report = read(tmp_path)
    assert [(table.run, table.steps[0], len(table)) for table in tables] == [
        ("", 9, 4),
        ("", 10, 4),
    ]
    reasons = sorted(report.left_out.values())
    assert [reason[:13] for reason in reasons] == ["rollouts of a"] * 2 + ["the same roll"] * 2
    _, report = read(tmp_path / "rollouts" / "step_9" / "eval")
    assert report.read == 4


def test_prime_rl_is_read_if_it_kept_only_the_effective_rollouts(tmp_path):
    for step in (9, 10):
        folder = tmp_path / "rollouts" / f"step_{step}" / "train/effective"
        written.episodes(folder / "traces.jsonl", step=step)
    tables, report = read(tmp_path)
    assert [(table.steps[0], len(table)) for table in tables] == [(9, 4), (10, 4)]
    assert report.left_out == {}


@pytest.mark.parametrize("writer", [written.art, written.platform])
def test_parquet_with_json_in_it_has_the_texts_to_be_scored_by(tmp_path, writer):
    seen = []

    def rescore(rows):
        seen.extend(rows)
        return Rescored({"r": [1.0] * len(rows)}, {})

    table, _ = only(writer(tmp_path), rescore=rescore)
    texts = read_texts(table.files[0], table.row.tolist())
    assert [(w.prompt, w.completion) for w in seen] == [(t.prompt, t.completion) for t in texts]
    assert all(w.completion for w in seen)


def test_a_reward_that_is_named_is_read_from_parquet_with_json_in_it(saved):
    record = {"group_index": 1, "reward": 0.5, "metrics": "{}", "messages": [], "style": 0.25}
    table, _ = only(saved("1.parquet", [record]), rewards=["style"])
    assert table.rewards.tolist() == [[0.25]]


def test_our_own_record_comes_with_weights(tmp_path):
    rollouts = [
        rollout(
            *(3, g, s, {"correct": float(s), "short": None if g else 0.5}),
            weights={"correct": 1.0, "short": 0.25},
            advantage=s - 0.5,
            num_tokens=4 + s,
            finish_reason="length" if s else "stop",
            trained=g == 0,
        )
        for g in range(2)
        for s in range(2)
    ]
    write_rollouts(rollout_file(tmp_path / "rollouts", 3), rollouts)
    table, _ = only(tmp_path)
    assert (table.format, table.names) == ("gdpo", ("correct", "short"))
    assert table.grouped().weights == (1.0, 0.25)
    assert_array_equal(table.rewards, [[0, 0.5], [1, 0.5], [0, nan], [1, nan]])
    assert table.advantages.tolist() == [-0.5, 0.5] * 2
    assert table.num_tokens.tolist() == [4, 5] * 2
    assert table.cut.tolist() == [0, 1] * 2
    assert table.trained.tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_any_file_is_read_by_its_columns(saved, kind):
    records = [
        {"iter": 5, "question": q, "a": a, "b": float(a * 2), "credit": -1.0, "why": "stop"}
        for q, a in (("x", 1), ("x", 2), ("y", 3))
    ]
    path = saved(f"dump.{kind}", records)
    columns = {"step": "iter", "advantage": "credit", "finish_reason": "why"}
    table, report = only(path, rewards=["a", "b"], columns=columns)
    assert table.format == "columns"
    assert table.rewards.tolist() == [[1, 2], [2, 4], [3, 6]]
    assert table.steps.tolist() == [5] * 3
    assert table.advantages.tolist() == [-1] * 3
    assert table.cut.tolist() == [0] * 3
    assert sizes(table) == [1, 2]
    assert report.files[0].format_from == "read by column names"
    assert read_texts(path, [2], columns=columns)[0].prompt == "y"


def test_a_dot_enters_an_object(saved):
    same = {"reward": 1, "rewards": {"acc": 9.0, "short": 4}, "metrics": {"short": 2.0}}
    records = [
        {"prompt": "x", "m": {"acc": 1.0, "in": {"deep": i}}, "acc": 5 + i, **same}
        for i in range(2)
    ]
    for kind in ("jsonl", "parquet"):
        path = saved(f"a.{kind}", records)
        table, _ = only(path, rewards=["m.acc", "m.in.deep", "acc", "short"])
        assert table.rewards.tolist() == [[1, 0, 5, 4], [1, 1, 6, 4]]
    record = {"step": 1, "prompt": "x", "b_reward": 1.0, "note": '{"acc": 3}'}
    table, _ = only(saved("b.parquet", [record] * 2), rewards=["note.acc", "b_reward"])
    assert table.rewards.tolist() == [[3, 1]] * 2


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"a": "fine", "rewards": {"a": 1.0}}, 1),
        ({"a": "0.5", "rewards": {"b": 1.0}, "scores": {"a": 9.0}}, 0.5),
        ({"rewards": {"b": 1.0}, "scores": {"a": 2.0}}, 2),
        ({"rewards": {"a": {"score": 3.0, "reward": 4.0}}}, 4),
    ],
)
def test_a_name_means_a_number_before_a_text_and_the_likeliest_object(saved, fields, value):
    for kind in ("jsonl", "parquet"):
        path = saved(f"a.{kind}", [{"step": 1, "prompt": "x", **fields}] * 2)
        table, _ = only(path, rewards=["a"])
        assert table.rewards.tolist() == [[value]] * 2


def test_the_text_of_a_known_column_is_no_reward(saved):
    rewards = [{"prompt": i / 4, "b": 1 - i / 4} for i in range(4)]
    rows = [{"step": 1, "prompt": "x", "rewards": each} for each in rewards]
    for path in (saved("a.jsonl", rows), saved("a.parquet", rows)):
        for asked in (None, ["prompt", "b"]):
            table, _ = only(path, rewards=asked)
            assert table.names == ("prompt", "b")
            assert table.rewards[:, 0].tolist() == [0, 0.25, 0.5, 0.75]


def test_a_name_means_the_field_at_this_path_before_one_in_an_object():
    assert by_name(["rewards.z", "z"], [])["z"] == "z"
    assert by_name(["z", "rewards.z"], ["rewards.z"])["z"] == "rewards.z"


def test_a_dot_does_not_enter_a_text(saved):
    record = {"step": 1, "prompt": "x", "m": "an acc", "b_reward": 1.0}
    table, report = read_one(saved("a.jsonl", [record] * 2), rewards=["m.acc", "b_reward"])
    assert (table.names, report.absent) == (("b_reward",), ["m.acc"])


def test_a_name_that_the_first_table_lacks_is_looked_up_in_each_table(saved, tmp_path):
    records = [{"step": 0, "prompt": "x", "rewards": {"b": 1.0}}] * 2
    saved("0.parquet", records)
    saved("1.parquet", [{**row, "step": 1, "rewards": {"a": "0.5"}} for row in records])
    tables, report = read(tmp_path, rewards=["a", "b"])
    assert [table.names for table in tables] == [("b",), ("a", "b")]
    assert tables[1].rewards[:, 0].tolist() == [0.5, 0.5]
    assert not report.absent


def test_a_reward_that_is_called_by_its_path_keeps_its_recorded_weight(saved):
    values = np.random.default_rng(0).random((8, 2)).round(2).tolist()
    rows = [
        {"step": 0, "prompt": i // 4, "judge": 1, "rewards": {"judge": a, "b": b}}
        | {"weights": {"judge": 2.0, "b": 0.5}}
        for i, (a, b) in enumerate(values)
    ]
    for kind in ("jsonl", "parquet"):
        table, _ = only(saved(f"a.{kind}", rows))
        assert table.names == ("rewards.judge", "b")
        assert table.weights[0].tolist() == [2, 0.5]


def test_rewards_are_told_alike_in_every_kind_of_file(saved):
    """Whole numbers and truths are rewards as well; the answer is none, though it is a number."""
    records = [
        {
            "step": 1,
            "prompt": "2+2",
            "completion": "4",
            "answer": 4,
            "reward": i % 2 + i / 4 + (i > 1),
            "correct": i % 2,
            "style": i / 4,
            "short": i > 1,
            "note": "fine",
        }
        for i in range(4)
    ]
    for kind in ("csv", "jsonl", "parquet"):
        table, report = only(saved(f"a.{kind}", records))
        assert table.names == ("correct", "style", "short")
        assert_array_equal(table.rewards, [[0, 0, 0], [1, 0.25, 0], [0, 0.5, 1], [1, 0.75, 1]])
        assert table.total.tolist() == table.rewards.sum(axis=1).tolist()
        assert "add up to 'reward'" in report.files[0].given.rewards.how()


def test_a_csv_of_parts_is_recognized_and_a_text_among_numbers_loses_no_reward(saved):
    path = saved("a.csv", "prompt,reward_a,b_reward,said\na,1,0.5,x\na,oops,1,y\na,0,,3\nb,2,3,z\n")
    table, report = only(path)
    assert table.names == ("reward_a", "b_reward")
    assert_array_equal(table.rewards, [[1, 0.5], [np.nan, 1], [0, np.nan], [2, 3]])
    assert f"{path}, row 1: reward 'reward_a' is not a number" in str(report)
    path.write_text("step,reward_a,loss\n1,0.5,1\n")  # a log: nothing in it was asked
    _, report = read(path)
    assert "unknown format" in report.left_out[path]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_that_are_taken_for_no_rewards_are_named(saved, kind):
    records = [{"prompt": "a", "reward": 1.0, "reward_1": 1, "target": 42, "late": None}] * 4
    table, report = only(saved(f"a.{kind}", records))
    assert table.names == ("reward_1",)
    assert report.files[0].given.rewards.how().endswith("; not rewards: 'target', 'late'")


def test_rewards_of_trl_may_be_called_as_what_others_judge_against(saved):
    record = {"step": 1, "prompt": "a", "completion": "b", "advantage": 0.0, "solution": 0.5}
    table, _ = only(saved("completions_00001.parquet", [record]))
    assert table.names == ("solution",)


def test_some_rewards_of_our_own_record_can_be_asked_for(tmp_path):
    both = rollout(1, 0, 0, {"x": 1.0, "y": 2.0}, weights={"x": 1, "y": 3})
    write_rollouts(rollout_file(tmp_path, 1), [both])
    table, report = only(tmp_path, rewards=["y"])
    assert (table.names, table.grouped().weights, table.rewards.tolist()) == (
        ("y",),
        (3.0,),
        [[2.0]],
    )
    assert report.absent == []


def test_a_size_of_groups_is_of_no_use_where_the_dump_has_ids(tmp_path):
    table, report = read_one(written.tinker(tmp_path), group_size=3)
    assert f"group_size is ignored for {len(table)} rollouts" in str(report)
    assert report.grouped_by == {"group id": len(table)}


def test_a_format_can_be_forced(tmp_path):
    path = written.verl(tmp_path)
    table, report = only(path, format="columns", rewards=["score"])
    assert table.format == "columns"
    assert report.files[0].format_from == "as given"
    _, report = read(path, format="skyrl")
    assert (report.read, report.skipped) == (0, 4)
    assert "no field 'score'" not in str(report)
    assert "the field 'input_prompt' of format skyrl is missing (and 3 more)" in str(report)


def test_what_was_asked_for_must_be_there():
    with data_error("no such file"):
        read_rollout_files("/nowhere/at/all")


def test_unknown_names_are_errors_with_the_nearest(tmp_path):
    path = written.verl(tmp_path)
    with config_error("did you mean 'verl'"):
        list(read_rollout_files(path, format="verk"))
    with config_error("did you mean 'prompt'"):
        list(read_rollout_files(path, columns={"promt": "input"}))
    with config_error("at least 1"):
        read_rollout_files(path, group_size=0)


def test_every_format_is_in_the_reference():
    reference = ROOT / "docs" / "reference" / "rollout_formats.md"
    text = reference.read_text()
    assert [name for name in FORMATS if f"`{name}`" not in text] == []


def test_reading_does_not_import_torch():
    program = "import sys, gdpo.rollouts.readers; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
