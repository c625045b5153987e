"""Values that are there, but not as the other rows have them; and files that no one expects."""

import gzip
import json
from math import inf, nan

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.rollouts.readers import written
from tests.rollouts.readers.test_bad_input import read, verl_line

from gdpo.rollouts.readers import Rescored, read_texts
from gdpo.rollouts.readers._keys import NO_KEY, key_of


def notices(report):
    return [(n.line, n.count, n.what) for n in report.notices.values()]


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
    (table,), report = read(path)
    assert table.groups.tolist() == [0, 0, 1, 1, 1, 0, NO_KEY, NO_KEY, 0]
    assert report.group_sizes == {4: 1, 3: 1, 2: 1}


def test_a_null_among_the_ids_of_lines_is_not_the_id_0(tmp_path):
    records = [{"group_id": i, "reward": 1.0} for i in (0, 0, None)]
    (table,), _ = read(written.lines(tmp_path / "a.jsonl", records))
    assert table.groups.tolist() == [0, 0, NO_KEY]


def test_no_id_has_the_key_of_nothing(tmp_path):
    assert key_of(NO_KEY) != NO_KEY
    path = in_row_groups(tmp_path / "a.parquet", pa.int64(), [NO_KEY, None])
    (table,), _ = read(path)
    assert table.groups.tolist() == [key_of(NO_KEY), NO_KEY]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_with_two_columns_of_one_name_is_left_out(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    names = ["prompt", "reward", "reward"]
    if kind == "csv":
        path.write_text(",".join(names) + "\na,1,2\n")
    else:
        columns = [pa.array(["a"]), pa.array([1.0]), pa.array([2.0])]
        pq.write_table(pa.Table.from_arrays(columns, names=names), path)
    written.verl(tmp_path)
    tables, report = read(tmp_path)
    assert len(tables) == 1
    assert "several columns called 'reward'" in report.left_out[path]


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
    assert "cannot be read" in report.left_out[path]


def test_texts_that_are_nested_too_deeply_lose_their_row_alone(tmp_path):
    deep = "[" * 100_000
    records = [{"example_id": 1, "reward": 1.0, "metrics": m} for m in (deep, {"a": 1.0})]
    (table,), report = read(written.lines(tmp_path / "a.jsonl", records))
    assert len(table) == 1
    assert notices(report) == [
        (1, 1, "its fields are not those of verifiers-results (RecursionError)")
    ]


def test_extras_that_are_nested_too_deeply_are_texts(tmp_path):
    path = written.parquet(
        tmp_path / "a.parquet", [{"prompt": "a", "reward": 1.0, "extra": "[" * 100_000}]
    )
    (table,), _ = read(path, rescore=lambda rows: Rescored({"r": [1.0] * len(rows)}, {}))
    assert table.rewards.tolist() == [[1.0]]


def test_deep_values_are_equal_where_they_have_the_same_parts():
    def nested(inner, depth=5000):
        for _ in range(depth):
            inner = [{"b": 1, "a": inner}]
        return inner

    assert key_of(nested("x")) == key_of(nested("x"))
    assert len({key_of(nested("x")), key_of(nested("y")), key_of(nested("x", 4999))}) == 3


@pytest.mark.parametrize("megabytes", [3, 40])
def test_a_row_of_csv_may_be_of_any_length(tmp_path, megabytes):
    path = tmp_path / "a.csv"
    text = "x" * (megabytes * 2**20)
    path.write_text(f"prompt,completion,reward\na,b,1\na,b,1,1\na,{text},2\na,b,3\n")
    (table,), report = read(path)
    assert table.rewards[:, 0].tolist() == [1, 2, 3]
    assert report.skipped == 1
    assert len(read_texts(path, [1])[0].completion) == len(text)


def test_a_prompt_of_csv_may_be_a_word_for_nothing(tmp_path):
    path = tmp_path / "a.csv"
    prompts, rewards = ["NA", "null", "NaN", "None"], ["1", "NaN", "#N/A", "NULL"]
    rows = zip(prompts, rewards, strict=True)
    path.write_text("prompt,reward\n" + "".join(f"{p},{r}\n" for p, r in rows))
    (table,), report = read(path)
    assert table.groups.tolist() == [key_of(prompt) for prompt in prompts]
    np.testing.assert_array_equal(table.rewards[:, 0], [1, nan, nan, nan])
    assert not report.notices


def test_a_reward_that_is_written_as_text_in_some_lines_is_read(tmp_path):
    values = [1.0, "0.5", "yes", "9" * 41, None]
    records = [verl_line(a=value, why="1.0") for value in values]
    (table,), report = read(written.lines(tmp_path / "1.jsonl", records))
    assert table.names == ("a",)  # no line has a number in the other field
    np.testing.assert_array_equal(table.rewards[:, 0], [1, 0.5, nan, nan, nan])
    assert notices(report) == [
        (3, 2, "reward 'a' is no number, and counts as missing"),
        (2, 1, "reward 'a' is the text of a number, and counts as it"),
    ]


def test_a_reward_of_ms_swift_may_be_text_in_some_lines(tmp_path):
    path = written.swift(tmp_path)
    first, second = map(json.loads, path.read_text().splitlines())
    expected = [table.rewards for table in read(path)[0]]
    second["Format"] = [None if value is None else str(value) for value in second["Format"]]
    written.lines(path, [first, second])
    tables, report = read(path)
    for table, rewards in zip(tables, expected, strict=True):
        np.testing.assert_array_equal(table.rewards, rewards)
    assert "is the text of a number" in str(report)


def test_infinite_totals_advantages_and_numbers_of_tokens_are_missing(tmp_path):
    records = [
        {"prompt": "a", "q": 1.0, "reward": v, "advantage": v, "num_tokens": v}
        for v in (1.0, inf, -inf)
    ]
    (table,), report = read(written.lines(tmp_path / "a.jsonl", records))
    for column in (table.total, table.advantages, table.num_tokens):
        np.testing.assert_array_equal(column, [1, nan, nan])
    assert notices(report) == [
        (2, 2, f"{what} is infinite, and counts as missing")
        for what in ("total", "advantage", "num_tokens")
    ]


def test_a_reason_that_is_no_text_is_none(tmp_path):
    records = [{"prompt": "a", "reward": 1.0, "finish_reason": r} for r in ("length", [["stop"]])]
    (table,), _ = read(written.lines(tmp_path / "a.jsonl", records))
    np.testing.assert_array_equal(table.cut, [1, nan])
