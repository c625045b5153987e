"""What is wrong is named with its file and line, and the rest is read."""

import gzip
import json
import os
import pickle
import sys
from math import inf, nan

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from tests.refusals import data_error
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import nothing, read, read_one
from tests.rollouts.readers.written import verl_line

from gdpo.rollouts.readers import read_rollout_files, read_texts
from gdpo.rollouts.readers.report import FileReport


def test_a_fifo_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "rollouts.jsonl")
    with data_error("neither a folder nor a regular file"):
        list(read_rollout_files(tmp_path / "rollouts.jsonl"))


def test_a_last_line_that_is_cut_off_is_a_run_that_still_writes(tmp_path):
    path = written.verl(tmp_path) / "7.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    table, report = read_one(path)
    assert len(table) == 3
    _, odd = report.oddities()
    assert odd.place == f"{path}:4"
    assert odd.what.startswith("the last line is incomplete")


def test_bad_lines_are_counted_and_the_first_is_named(tmp_path):
    path = tmp_path / "1.jsonl"
    good = json.dumps(verl_line())
    bad = ["{", "[1]", "null", '{"a": ' * 100_000, "\x00" * 9, good[:-1], "9" * 5000]
    path.write_text("\n".join([good, "", *bad, good]) + "\n")
    table, report = read_one(path)
    assert len(table) == 2
    assert report.skipped == 7
    found = {notice.what: (notice.line, notice.rows) for notice in report.notices.values()}
    assert found == {
        "the line is not valid JSON": (3, 4),
        "the line is not a JSON object": (4, 2),
        "the line is nested too deeply to be read": (6, 1),
    }


def test_a_record_that_lacks_its_fields_is_skipped(saved):
    path = saved("1.jsonl", [verl_line(), {"input": "a"}, verl_line(step="soon"), verl_line()])
    table, report = read_one(path)
    assert table.row.tolist() == [0, 2]  # the third was a rollout, of no step
    assert [(n.line, n.rows, n.what) for n in report.notices.values()] == [
        (2, 1, "the field 'output' of format verl is missing"),
        (3, 1, "the step is not a non-negative integer"),
    ]
    assert [text.row for text in read_texts(path, [2])] == [2]


def test_ms_swift_lists_of_different_length_cannot_be_told_apart(tmp_path):
    path = written.swift(tmp_path)
    first, second = path.read_text().splitlines()
    broken = json.loads(second)
    broken["Format"].pop()
    path.write_text(f"{first}\n{json.dumps(broken)}\n")
    tables, report = read(path)
    assert len(tables) == 1
    assert "2: column 'Format' and column 'prompt' have different lengths" in str(report)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_rewards_that_are_no_finite_numbers_are_missing(saved, kind):
    values = [1.0, None, nan, inf, -inf, 0.5]
    values += ["good"] if kind != "parquet" else []
    records = [{"prompt": "a", "quality": value} for value in values]
    table, report = read_one(saved(f"dump.{kind}", records), rewards=["quality"])
    expected = [1, nan, nan, nan, nan, 0.5, nan][: len(table)]
    assert_array_equal(table.rewards[:, 0], expected)
    assert report.skipped == 0
    infinite = next(n for n in report.notices.values() if "infinite" in n.what)
    assert (infinite.count, infinite.line) == (2, 4 if kind == "jsonl" else 3)
    assert ("not a number" in str(report)) == (kind != "parquet")


def test_groups_of_different_size_are_told(saved):
    prompts = ["a"] * 2 + ["b"] * 2 + ["c"] * 4 + ["d"]
    path = saved("1.jsonl", [verl_line(input=p, score=1.0) for p in prompts])
    table, report = read_one(path)
    assert report.group_sizes == {2: 2, 4: 1, 1: 1}
    (odd,) = report.of_groups()
    assert odd.what.startswith("2 of 4 groups do not have the usual size 2; 1 have a multiple")
    assert np.isnan(table.grouped().rewards).sum() == 16 - 9
    _, report = read(path, group_size=2)
    assert report.group_sizes == {2: 4, 1: 1}
    assert report.grouped_by == {"group_size=2": 9}
    assert report.mixed_blocks == 0


def test_a_group_size_that_does_not_fit_is_told(tmp_path, saved):
    _, report = read(written.verl(tmp_path), group_size=3)
    assert report.mixed_blocks == 1
    assert "1 groups formed by group_size" in str(report)
    # Prompts that all differ do not tell which rollouts belong together.
    path = saved("9.jsonl", [verl_line(input=each, score=1.0) for each in "abc"])
    assert read(path, group_size=3)[1].mixed_runs == set()


def test_a_dump_in_which_nothing_tells_the_groups_needs_their_size(saved):
    path = saved("a.jsonl", [{"reward": float(i)} for i in range(4)])
    _, report = read(path)
    assert "4 rollouts have neither a group nor a prompt" in str(report)
    assert "nothing can be compared" in str(report)
    table, report = read_one(path, group_size=2)
    assert table.groups.tolist() == [0, 0, 1, 1]
    assert not [*report.of_groups()]


def test_a_renamed_column_is_named_and_the_other_files_have_it(tmp_path, saved):
    for step, name in ((1, "acc"), (2, "accuracy")):
        row = {"step": step, "prompt": "a", "completion": "b", "advantage": 0.0, name: 0.5}
        saved(f"completions_{step:05d}.parquet", [row])
    tables, report = read(tmp_path, rewards=["acc"])
    assert [np.isnan(table.rewards).all() for table in tables] == [False, True]
    (notice,) = report.notices.values()
    assert notice.file.name == "completions_00002.parquet"
    assert "no reward 'acc'" in notice.what
    assert "'accuracy'" in notice.what


def test_a_reward_that_no_record_has_is_named(tmp_path):
    _, report = read(written.verl(tmp_path), rewards=["acc", "style"])
    assert "7.jsonl:1: no reward 'style'; the numeric fields are 'score', 'acc', 'format'" in str(
        report
    )


def test_files_of_one_step_with_other_rewards_are_one_table(tmp_path, saved):
    saved("a_step1.jsonl", [verl_line(acc=1.0)])
    saved("b_step1.jsonl", [verl_line(form=0.5)])
    table, _ = read_one(tmp_path)
    assert table.names == ("acc", "form")
    assert_array_equal(table.rewards, [[1, nan], [nan, 0.5]])
    assert [path.name for path in table.files] == ["a_step1.jsonl", "b_step1.jsonl"]
    assert table.file.tolist() == [0, 1]
    assert table.weights is None


def test_mixed_formats_in_a_folder_are_each_read(tmp_path, saved):
    written.verl(tmp_path)
    written.open_instruct(tmp_path)
    written.art(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    saved("other.jsonl", [{"loss": 1.0}])
    saved("empty.jsonl", [])
    tables, report = read(tmp_path)
    assert report.formats == {"verl": 1, "open-instruct": 1, "art": 1}
    assert {table.format for table in tables} == report.formats.keys()
    left = {path.name: why for path, why in report.left_out.items()}
    assert "is empty" in left["empty.jsonl"]
    assert (
        "unknown format, with the fields 'loss': specify the format (format), "
        in left["other.jsonl"]
    )


def test_steps_in_any_order_are_put_in_order_in_their_file(tmp_path, saved):
    steps = [2, 1, 2, 1]
    path = saved("all.jsonl", [verl_line(step=s, score=i) for i, s in enumerate(steps)])
    tables, report = read(path)
    assert [table.row.tolist() for table in tables] == [[1, 3], [0, 2]]
    assert "several pieces" not in str(report)
    saved("more.jsonl", [verl_line(step=1)])
    _, report = read(tmp_path)
    assert "1 steps came in several pieces" in str(report)


def test_compressed_files_are_read_and_their_missing_end_is_named(tmp_path, saved):
    plain = written.verl(tmp_path / "plain", prompts="abcdefgh" * 200) / "7.jsonl"
    squeezed = gzip.compress(plain.read_bytes())
    whole, cut = tmp_path / "whole.jsonl.gz", tmp_path / "cut.jsonl.gz"
    whole.write_bytes(squeezed)
    cut.write_bytes(squeezed[: len(squeezed) // 2])
    assert len(read(whole)[0][0]) == 3200
    table, report = read_one(cut)
    assert 0 < len(table) < 3200
    assert "the rest cannot be read: EOFError" in str(report)
    dump = saved("a.parquet", [{"prompt": "a", "reward": 1.0}])
    packed = tmp_path / "a.parquet.gz"
    packed.write_bytes(gzip.compress(dump.read_bytes()))
    assert read(packed)[0][0].rewards.tolist() == [[1.0]]


def test_files_and_folders_without_permission_are_named(open_folder):
    written.verl(open_folder)
    closed = written.verl_v1(open_folder)
    closed.chmod(0)
    folder = written.verl(open_folder / "inner").parent
    (open_folder / "inner").chmod(0)
    tables, report = read(folder)
    assert len(tables) == 1
    assert report.left_out == {
        closed: "Permission denied",
        folder / "inner": "the folder cannot be opened: Permission denied",
    }


def test_parquet_that_is_cut_off_or_broken_inside_is_named(saved):
    rows = [
        {"step": 1, "prompt": "a" * 50, "completion": "b", "advantage": 0.0, "acc": i / 7}
        for i in range(500)
    ]
    path = saved("completions_00001.parquet", rows)
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    _, report = read(path)
    assert report.left_out[path]
    path.write_bytes(good[:4] + bytes(len(good) // 2) + good[4 + len(good) // 2 :])
    report = nothing(path)
    assert (report.rows, report.skipped) == (500, 500)


def test_rows_behind_a_broken_part_are_counted_in_files_of_records(tmp_path):
    record = {"group_index": 1, "reward": 0.5, "metrics": "{}", "messages": []}
    path = written.parquet(tmp_path / "0001.parquet", [record] * 300, row_group_size=100)
    content = bytearray(path.read_bytes())
    second = pq.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    content[second : second + 20] = bytes(20)
    path.write_bytes(content)
    _, report = read(path)
    assert (report.rows, report.read, report.skipped) == (300, 100, 200)
    assert f"{path}, row 100: cannot be read: " in str(report)


def test_rows_of_no_step_keep_their_number_in_a_long_file(saved):
    steps = ["soon", *[1] * 17_000]
    table, _ = read_one(saved("1.jsonl", [verl_line(step=step) for step in steps]))
    assert_array_equal(table.row, np.arange(1, 17_001))


def test_nothing_is_unpickled(tmp_path):
    torch = pytest.importorskip("torch")

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "trapped"),))

    torch.save({"rollout_id": 1, "samples": [Trap()]}, tmp_path / "a_1.pt")
    (tmp_path / "b_2.pt").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(Trap()))
    torch.save({"weight": torch.zeros(2)}, tmp_path / "model.pt")
    report = nothing(tmp_path)
    left = {path.name: why for path, why in report.left_out.items()}
    assert "only tensors, numbers and text" in left["a_1.pt"]
    assert "only tensors, numbers and text" in left["b_2.pt"]
    assert "pickle" in left["c.pkl"]
    assert "'samples'" in left["model.pt"]
    assert not (tmp_path / "trapped").exists()


def test_without_torch_the_other_files_are_read(tmp_path, monkeypatch):
    written.verl(tmp_path)
    (tmp_path / "data_1.pt").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "torch", None)
    tables, report = read(tmp_path)
    assert len(tables) == 1
    assert "torch is needed to read .pt files" in report.left_out[tmp_path / "data_1.pt"]


def test_without_something_to_read_pt_files_they_are_left_out_and_told(tmp_path):
    (tmp_path / "data_1.pt").write_bytes(b"PK")
    reading = read_rollout_files(tmp_path)
    assert list(reading) == []
    assert "load_pt=load_dump" in reading.report.left_out[tmp_path / "data_1.pt"]


def test_hostile_texts_are_texts(saved):
    prompts = ["\ud800", "a\x00b", "\u202e<script>", "", "﷽" * 1000, "\x1b[2J"]
    path = saved("1.jsonl", [verl_line(input=p) for p in prompts for _ in "ab"])
    table, report = read_one(path)
    assert report.group_sizes == {2: len(prompts)}
    assert len(table) == 2 * len(prompts)
    assert read_texts(path, [0])[0].prompt == "\ud800"


def test_what_only_looks_like_files_is_left_alone(tmp_path):
    written.verl(tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "2.jsonl.zst").write_bytes(b"")
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "checkpoint-5").mkdir()
    written.verl_v1(tmp_path / "checkpoint-5")
    _, report = read(tmp_path)
    assert len(report.files) == 1
    assert {path.name: why for path, why in report.left_out.items()} == {
        "pipe.jsonl": "not a regular file",
        "gone.jsonl": "a broken link",
        "2.jsonl.zst": "compressed, but not with gzip: decompress it first",
    }


def test_many_distinct_prompts_are_many_groups(tmp_path):
    n = 100_000
    columns = {
        "step": [1] * n,
        "prompt": [f"prompt {i // 2}" for i in range(n)],
        "completion": ["x"] * n,
        "advantage": [0.0] * n,
        "acc": [0.5] * n,
    }
    pq.write_table(pa.table(columns), tmp_path / "completions_00001.parquet")
    table, report = read_one(tmp_path)  # two batches of one file, and one step
    assert_array_equal(table.row, np.arange(n))
    assert report.group_sizes == {2: n // 2}


WRITERS = (
    *(written.verl_v1, written.nemo_rl, written.swift, written.tinker, written.skyrl),
    *(written.results, written.open_instruct),
)


@given(data=st.data())
def test_whatever_is_done_to_a_dump_its_rows_add_up(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("dump")
    writer = data.draw(st.sampled_from([*WRITERS, written.art, written.platform]))
    path = writer(folder)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    read(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(data=st.data())
def test_whatever_a_field_holds_its_rows_add_up(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("dump")
    others = (written.swift_ray, lambda f: written.episodes(f / "traces.jsonl"))
    writer = data.draw(st.sampled_from([*WRITERS, *others]))
    path = writer(folder)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in data.draw(st.lists(st.sampled_from(records), min_size=1, max_size=3)):
        record[data.draw(st.sampled_from(sorted(record)))] = data.draw(JSON)
    written.lines(path, records)
    read(folder)


def test_rows_that_fill_verls_batch_up_are_no_rollouts(tmp_path, saved):
    padding = f"pad{0:032x}_0_0"
    lines = [verl_line(acc=1.0, uid=f"p_{i}_0") for i in range(4)]
    saved("1.jsonl", [*lines, verl_line(acc=9.0, uid=padding)])
    tables, report = read(tmp_path)
    assert (report.read, report.skipped) == (4, 1)
    (notice,) = report.notices.values()
    assert (notice.line, "padding" in notice.what) == (5, True)
    assert tables[0].rewards.max() == 1


def test_a_row_of_which_nothing_becomes_is_a_fault(saved, monkeypatch):
    path = saved("1.jsonl", [verl_line(), {"input": "p"}, verl_line()])
    read(path)
    monkeypatch.setattr(FileReport, "lose", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="rows="):
        read(path)
