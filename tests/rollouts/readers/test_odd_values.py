"""Values that are there, but not as the other rows have them; and files that no one expects."""

import gzip
import json
from dataclasses import replace
from math import inf, nan

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal
from pyarrow.csv import write_csv
from tests.rollouts.built import rollout
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import notices, read, read_one
from tests.rollouts.readers.written import verl_line

from gdpo.analysis import analyze
from gdpo.rollouts import rollout_file, write_rollouts
from gdpo.rollouts.readers import Rescored, batches, read_rollout_files, read_texts
from gdpo.rollouts.readers.keys import NO_KEY, key_of
from gdpo.rollouts.readers.report import ReadProblem


def in_row_groups(path, kind, *groups):
    with pq.ParquetWriter(path, pa.schema({"group_id": kind, "reward": pa.float64()})) as writer:
        for ids in groups:
            writer.write_table(
                pa.table({"group_id": pa.array(ids, kind), "reward": np.arange(len(ids)) * 1.0})
            )
    return path


@pytest.mark.parametrize("kind", [pa.int64(), pa.dictionary(pa.int32(), pa.int64())])
def test_a_null_among_ids_is_a_group_of_its_own_and_changes_no_other(tmp_path, kind):
    path = in_row_groups(tmp_path / "a.parquet", kind, [0, 0, 1, 1], [1, 0, None], [None, 0])
    table, report = read_one(path)
    assert table.groups.tolist() == [0, 0, 1, 1, 1, 0, NO_KEY, NO_KEY, 0]
    assert report.group_sizes == {4: 1, 3: 1, 2: 1}


def test_no_id_has_the_key_of_nothing(tmp_path):
    assert key_of(NO_KEY) != NO_KEY
    path = in_row_groups(tmp_path / "a.parquet", pa.int64(), [NO_KEY, None])
    table, _ = read_one(path)
    assert table.groups.tolist() == [key_of(NO_KEY), NO_KEY]


def write_wandb(table, path):
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    path.write_text(json.dumps({"columns": table.schema.names, "data": rows}))


@pytest.mark.parametrize(
    ("kind", "write"),
    [("csv", write_csv), ("parquet", pq.write_table), ("table.json", write_wandb)],
)
def test_a_file_with_two_columns_of_one_name_is_left_out(kind, write, tmp_path):
    columns = [pa.array(["a"]), pa.array([1.0]), pa.array([2.0])]
    for name, fields in (("0", ["prompt", "reward"]), ("a", ["prompt", "reward", "reward"])):
        table = pa.Table.from_arrays(columns[: len(fields)], names=fields)
        write(table, tmp_path / f"{name}.{kind}")
    tables, report = read(tmp_path)
    assert len(tables) == 1
    assert "several columns are called 'reward'" in report.left_out[tmp_path / f"a.{kind}"]


@pytest.mark.parametrize("ending", ["csv.gz", "parquet.gz"])
def test_compressed_files_that_are_damaged_are_left_out(tmp_path, ending):
    rows = "".join(f"p{i // 4},{i % 2}\n" for i in range(4000))
    damaged = bytearray(gzip.compress(f"prompt,reward\n{rows}".encode()))
    damaged[30:60] = b"\xff" * 30
    path = tmp_path / f"a.{ending}"
    path.write_bytes(damaged)
    written.verl(tmp_path)
    tables, report = read(tmp_path)
    assert len(tables) == 1
    assert report.left_out[path]


def test_texts_that_are_nested_too_deeply_lose_their_row_alone(saved):
    deep = "[" * 100_000
    records = [{"example_id": 1, "reward": 1.0, "metrics": m} for m in (deep, {"a": 1.0})]
    table, report = read_one(saved("a.jsonl", records))
    assert len(table) == 1
    assert notices(report) == [(1, 1, "a field is nested too deeply to be read")]


def test_extras_that_are_nested_too_deeply_are_texts(saved):
    path = saved("a.parquet", [{"prompt": "a", "reward": 1.0, "extra": "[" * 100_000}])
    table, _ = read_one(path, rescore=lambda rows: Rescored({"r": [1.0] * len(rows)}, {}))
    assert table.rewards.tolist() == [[1.0]]


def test_deep_values_are_equal_where_they_have_the_same_parts():
    def nested(inner, depth=5000):
        for _ in range(depth):
            inner = [{"b": 1, "a": inner}]
        return inner

    assert key_of(nested("x")) == key_of(nested("x"))
    assert len({key_of(nested("x")), key_of(nested("y")), key_of(nested("x", 4999))}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [3, 40])
def test_a_row_of_csv_may_be_of_any_length(tmp_path, megabytes):
    path = tmp_path / "a.csv"
    text = "x" * (megabytes * 2**20)
    path.write_text(f"prompt,completion,reward\na,b,1\na,b,1,1\na,{text},2\na,b,3\n")
    table, report = read_one(path)
    assert table.rewards[:, 0].tolist() == [1, 2, 3]
    assert report.skipped == 1
    assert len(read_texts(path, [1])[0].completion) == len(text)


def test_a_prompt_of_csv_may_be_a_word_for_nothing(tmp_path):
    path = tmp_path / "a.csv"
    prompts, rewards = ["NA", "null", "NaN", "None"], ["1", "NaN", "#N/A", "NULL"]
    rows = zip(prompts, rewards, strict=True)
    path.write_text("prompt,reward\n" + "".join(f"{p},{r}\n" for p, r in rows))
    table, report = read_one(path)
    assert table.groups.tolist() == [key_of(prompt) for prompt in prompts]
    assert_array_equal(table.rewards[:, 0], [1, nan, nan, nan])
    assert not report.notices


def test_a_reward_that_is_written_as_text_in_some_lines_is_read(saved):
    values = [1.0, "0.5", "good", "9" * 41, None]
    records = [verl_line(a=value, why="1.0") for value in values]
    table, report = read_one(saved("1.jsonl", records))
    assert table.names == ("a",)  # no line has a number in the other field
    assert_array_equal(table.rewards[:, 0], [1, 0.5, nan, nan, nan])
    assert notices(report) == [
        (3, 2, "reward 'a' is not a number, and counts as missing"),
        (2, 1, "reward 'a' is the text of a number, and is read as that number"),
    ]
    _, report = read(saved("1.jsonl", records[:2]))
    assert len(notices(report)) == 1  # also if all values are numbers


def test_a_reward_of_ms_swift_may_be_text_in_some_lines(tmp_path):
    path = written.swift(tmp_path)
    first, second = map(json.loads, path.read_text().splitlines())
    expected = [table.rewards for table in read(path)[0]]
    second["Format"] = [None if value is None else str(value) for value in second["Format"]]
    written.lines(path, [first, second])
    tables, report = read(path)
    for table, rewards in zip(tables, expected, strict=True):
        assert_array_equal(table.rewards, rewards)
    assert "is the text of a number" in str(report)


def test_what_the_total_of_ms_swift_leaves_out_counts_as_0(saved):
    record = dict.fromkeys(("step", "prompt", "completion"), [1] * 32)
    record |= {"Right": [1, 0, None, 0] * 8, "Style": [*range(32)]}
    record["reward"] = [place + (place % 4 == 0) for place in range(32)]
    table, _ = read_one(saved("a.jsonl", [record]))
    assert table.rewards[2, 0] == 0


def test_a_reason_that_is_no_text_is_none(saved):
    records = [{"prompt": "a", "reward": 1.0, "finish_reason": r} for r in ("length", [["stop"]])]
    table, _ = read_one(saved("a.jsonl", records))
    assert_array_equal(table.cut, [1, nan])


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_numbers_whose_squares_overflow_are_missing(saved, kind):
    values = [1e60, -1e60, 1.1e60, -1e308, 0.5]
    records = [{"prompt": "a", "quality": v, "advantage": v} for v in values]
    if kind == "jsonl":
        records.append({"prompt": "a", "quality": 10**200, "advantage": None})
    table, report = read_one(saved(f"a.{kind}", records), rewards=["quality"])
    expected = [1e60, -1e60, nan, nan, 0.5]
    assert_array_equal(table.rewards[:5, 0], expected)
    assert_array_equal(table.advantages[:5], expected)
    first = 3 if kind == "jsonl" else 2
    assert notices(report) == [
        (first, 2, "advantage is beyond 1e+60, and counts as missing"),
        (first, 2 + (kind == "jsonl"), "reward 'quality' is beyond 1e+60, and counts as missing"),
    ]


def test_numbers_of_any_size_are_analyzed_without_a_warning(saved):
    values = [1e308, -1e150, 1e60, -1e60, 1e-308, 0.0, 1.0, -3e59]
    rewards = [{"a": {"score": v, "weight": 1e60}, "b": {"score": 1.0}} for v in values]
    records = [
        {"task": {"hash": str(i % 2)}, "nodes": [], "rewards": r, "info": {"advantage": values[i]}}
        for i, r in enumerate(rewards)
    ]
    path = saved("traces.jsonl", records)
    done = analyze(read_rollout_files(path), replayed=["recorded", "grpo", "gdpo"])
    assert done.runs[0].rollouts == 8
    assert len(done.replayed) == 3


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rewards_that_are_given_anew_are_numbers_as_well(saved, kind):
    records = [{"prompt": "a", "reward": 1.0}] * 4
    path = saved(f"a.{kind}", records)
    given = Rescored({"r": [0.5, inf, 1e101, None]}, {})
    table, report = read_one(path, rescore=lambda rows: given)
    assert_array_equal(table.rewards[:, 0], [0.5, nan, nan, nan])
    assert [what for *_, what in notices(report)] == [
        "reward 'r' is infinite, and counts as missing",
        "reward 'r' is beyond 1e+60, and counts as missing",
    ]


def test_a_column_with_rewards_as_json_is_no_total_where_it_is_a_number(saved):
    records = [{"prompt": "a", "reward": cell} for cell in ('{"a": 1, "b": 0}', "0.5") * 2]
    table, _ = read_one(saved("a.csv", records))
    assert table.names == ("a", "b")
    assert np.isnan(table.total).all()


@pytest.mark.parametrize("weight", [None, inf, 1e300, "much"])
def test_weights_that_cannot_be_used_are_left_out_and_told(saved, weight):
    record = {"task": {}, "nodes": [], "rewards": {"a": {"score": 1.0, "weight": weight}}}
    table, report = read_one(saved("traces.jsonl", [record]))
    assert (table.weights is None) == (weight is not None)  # verifiers means 1 by none
    told = [what for *_, what in notices(report) if what.startswith("some weights")]
    assert len(told) == (weight is not None)


def weighted(step, weight):
    return rollout(step, 0, 0, {"a": 1.0, "b": 2.0}, weights={"a": 1.0, "b": weight})


def test_weights_are_those_of_their_step(tmp_path):
    for step, weights in enumerate([(1.0, 1.0), (1.0,), (9.0, 9.0), (0.5,)]):
        write_rollouts(rollout_file(tmp_path, step), [weighted(step, weight) for weight in weights])
    tables, report = read(tmp_path)
    assert [table.grouped().weights for table in tables] == [(1, 1), (1, 1), (1, 9), (1, 0.5)]
    assert not report.notices


@pytest.mark.parametrize("chunk", [1, 5, 16_384])
def test_a_reward_counts_from_the_first_step_on_however_much_is_read_at_a_time(
    saved, monkeypatch, chunk
):
    monkeypatch.setattr(batches, "_CHUNK", chunk)
    late = {1: {}, 2: {}, 3: {"b_score": 2.0}, 4: {"b_score": None}, 5: {}}
    records = [
        {"step": step, "group_id": 0, "reward": 1.0, "a_score": float(i)} | more
        for step, more in late.items()
        for i in range(3)
    ]
    tables, report = read(saved("a.jsonl", records))
    assert [table.names for table in tables] == [("a_score", "b_score")] * 5
    assert np.isnan(tables[0].rewards[:, 1]).all()
    assert [table.row.tolist() for table in tables] == np.arange(15).reshape(5, 3).tolist()
    assert list(report.files[0].given.names) == ["a_score", "b_score"]


def test_weights_of_each_prompt_are_kept(tmp_path):
    """A reward that does not apply to a prompt has neither a value nor a weight."""
    absent = {"rewards": {"a": 1.0, "b": None}, "weights": {"a": 1.0, "b": nan}}
    rollouts = [
        replace(weighted(1, 1.0), group_id=group, sample_id=sample, **more)
        for group, more in enumerate(({}, {"weights": {"a": 2.0, "b": 0.5}}, absent))
        for sample in range(2)
    ]
    write_rollouts(rollout_file(tmp_path, 1), rollouts)
    table, report = read_one(tmp_path)
    assert_array_equal(table.grouped().weights, [[1, 1], [2, 0.5], [1, nan]])
    assert not report.notices


def test_weights_that_change_within_a_group_are_told(tmp_path):
    path = rollout_file(tmp_path, 1)
    write_rollouts(path, [weighted(1, weight) for weight in (1.0, 1.0, 2.0, 2.0)])
    table, report = read_one(path)
    assert table.grouped().weights == (1.0, 1.0)
    assert notices(report) == [(2, 2, ReadProblem.WEIGHTS_DIFFER.value)]


def test_steps_that_are_mixed_up_in_one_file_have_each_its_weights(tmp_path):
    """A weight that is null says nothing."""
    steps = [(3, 9.0), (1, 1.0), (2, nan), (1, 1.0), (3, 9.0), (2, 2.0)]
    rollouts = [replace(weighted(step, 1.0), weights={"a": 1.0, "b": w}) for step, w in steps]
    write_rollouts(rollout_file(tmp_path, 1), rollouts)
    tables, report = read(tmp_path)
    assert [table.grouped().weights for table in tables] == [(1, 1), (1, 2), (1, 9)]
    assert [table.row.tolist() for table in tables] == [[1, 3], [2, 5], [0, 4]]
    assert not report.notices


def test_files_of_one_step_may_list_their_rewards_in_any_order(tmp_path):
    one, other = weighted(1, 5.0), weighted(1, 5.0)
    turned = {name: dict(reversed(getattr(other, name).items())) for name in ("rewards", "weights")}
    write_rollouts(tmp_path / "step_1_x.parquet", [one])
    write_rollouts(tmp_path / "step_1_y.parquet", [replace(other, **turned)])
    table, report = read_one(tmp_path)
    assert (table.names, table.grouped().weights) == (("a", "b"), (1.0, 5.0))
    assert table.rewards.tolist() == [[1, 2], [1, 2]]
    assert not report.notices


ALONE = "although other rollouts have one"
IDS = {
    "floating point": (
        ("parquet", [1.0, 1.0, nan, 2.0, 2.0, None], {}),
        [1, 1, NO_KEY, 2, 2, NO_KEY],
        f"no group_id, {ALONE}: put into one group (and 1 more",
    ),
    "with prompts": (
        ("jsonl", [1, 1, nan, None], {"prompt": "a"}),
        [1, 1, key_of("a"), key_of("a")],
        f"no group id, {ALONE}: grouped by prompt (and 1 more",
    ),
    "first": (
        ("jsonl", [None, 7, 7], {}),
        [NO_KEY, 7, 7],
        f"neither a group nor a prompt, {ALONE}",
    ),
}


@pytest.mark.parametrize("case", IDS)
def test_ids_that_are_missing_are_told_and_change_no_other(saved, case):
    (kind, ids, more), groups, said = IDS[case]
    records = [{"step": 1, "group_id": g, "reward": 0.5} | more for g in ids]
    table, report = read_one(saved(f"a.{kind}", records))
    assert table.groups.tolist() == groups
    assert said in str(report)


def test_a_nan_in_parquet_is_told_and_a_null_is_missing(tmp_path):
    rows = {"step": pa.array([1, 1, 1]), "reward": pa.array([0.0, 1.0, 2.0])}
    rows |= {"reward_r": pa.array([1.0, None, np.nan]), "advantage": pa.array([np.nan, 0.5, 0.5])}
    rows["step_rewards"] = pa.array([[1.0, None, 2.0], None, None])
    rows["turn_rewards"] = pa.array([None, "[1, null]", "[0.5, 1]"])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(rows), path)
    table, report = read_one(path)
    assert_array_equal(table.rewards, [[1, 3, nan], [nan, nan, 1], [nan, nan, 1.5]])
    assert {what: line for line, _, what in notices(report)} == {
        "reward 'reward_r' is NaN, and counts as missing": 2,
        "advantage is NaN, and counts as missing": 0,
    }


@pytest.mark.parametrize(
    ("value", "rewards"), [({"acc": 1.0}, [[1]]), ('{"acc": 1.0}', [[1, nan]])]
)
def test_a_part_of_an_object_that_is_not_there_is_told(saved, value, rewards):
    """A later row may have it in its JSON text."""
    path = saved("a.parquet", [{"prompt": "a", "m": value}])
    table, report = read_one(path, rewards=["m.acc", "m.style"])
    assert_array_equal(table.rewards, rewards)
    assert "no reward 'm.style'" in str(report)
    assert "no reward 'm.acc'" not in str(report)


def test_a_record_without_rollouts_is_told(tmp_path):
    path = written.episodes(tmp_path / "traces.jsonl")
    with path.open("a") as file:
        file.write(json.dumps({"task": {}, "traces": []}) + "\n")
    _, report = read(path)
    assert (report.rows, notices(report)) == (4, [(5, 1, "the record contains no rollout")])


def test_objects_with_keys_of_two_kinds_have_keys():
    keys = [key_of({1: "a", "b": value}) for value in "xxy"]
    assert keys[0] == keys[1] != keys[2]


def test_samples_of_pt_files_that_are_no_list_are_none(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a_1.pt"
    torch.save({"rollout_id": 1, "samples": 3}, path)
    assert read(path)[1].left_out[path].endswith("its 'samples' are not a list")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_field_with_a_very_long_name_is_left_out_and_told(kind, saved):
    row = {"prompt": "p", "b_reward": 1, "a" * 300 + "_reward": 0.5}
    table, report = read_one(saved(f"a.{kind}", [row]))
    assert table.names == ("b_reward",)
    assert [notice.problem for notice in report.notices.values()] == [ReadProblem.LONG_NAME]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_recorded_weights_count_in_a_step_that_lacks_a_reward(kind, tmp_path, saved):
    for step, rewards in enumerate(({"a": 3.0, "b": 0.5}, {"a": 3.0})):
        row = {"step": step, "prompt": "p", "rewards": rewards, "weights": rewards}
        saved(f"{step}.{kind}", [row] * 2)
    (_, last), _ = read(tmp_path)
    assert_array_equal(last.weights, [[3, 0.5]] * 2)
