"""However large a line, a row or a file is, or however wide, memory is bounded and it is told."""

import gzip
import json
import tracemalloc
import zlib

import numpy as np
import pytest
from tests.refusals import data_error
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import notices, read, read_one
from tests.rollouts.readers.written import verl_line

from gdpo._text import Setting
from gdpo.rollouts import table as tables
from gdpo.rollouts.readers import Rescored, batches, columns, read_texts, rewards, sources
from gdpo.rollouts.readers import read_rollout_files as rollout_files
from gdpo.rollouts.readers import text as text_files

MEGABYTE = 2**20


def peak_of(function):
    tracemalloc.start()
    try:
        done = function()
        return done, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def packed(path, *parts):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part in parts:
            file.write(part)
    return path


def test_a_line_that_is_too_long_is_skipped_to_its_end_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", MEGABYTE)
    good = json.dumps(verl_line()).encode()
    bomb = [b"0" * MEGABYTE] * 16
    path = packed(tmp_path / "1.jsonl.gz", good, b"\n", *bomb, b"\n", good, b"\n", *bomb)
    ((table,), report), peak = peak_of(lambda: read(path))
    assert table.row.tolist() == [0, 1]
    assert peak < 8 * MEGABYTE
    ((line, count, what),) = notices(report)
    assert (line, count, report.skipped) == (2, 2, 2)
    assert "the line has more than 1,048,576 bytes" in what
    assert [text.row for text in read_texts(path, [1])] == [1]


@pytest.mark.parametrize("more", [0, 1])
def test_a_line_may_be_as_long_as_is_said(saved, monkeypatch, more):
    line = json.dumps(verl_line()) + "\n"
    monkeypatch.setattr(text_files, "LONGEST_LINE", len(line) - more)
    _, report = read(saved("1.jsonl", line))
    assert (report.read, report.skipped) == (1 - more, more)


def test_parquet_that_is_compressed_once_more_is_held_up_to_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_LARGEST_GZIP", MEGABYTE)
    path = packed(tmp_path / "a.parquet.gz", *[b"PAR1" * (MEGABYTE // 4)] * 16)
    (tables, report), peak = peak_of(lambda: read(path))
    assert tables == []
    assert peak < 8 * MEGABYTE
    assert "1,048,576 bytes" in report.left_out[path]


def csv_of(rows):
    return ["prompt,completion,reward\n", *(f"p{i // 2},c,{i}\n" for i in range(rows))]


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_csv_is_read_piece_by_piece_and_every_row_once(tmp_path, monkeypatch, ending):
    """Also where rows do not fit into a block, and the file is begun anew."""
    monkeypatch.setattr(sources, "_BLOCKS", (256, 1024, 4096))
    monkeypatch.setattr(sources, "_GZIP_BLOCKS", (256, 1024, 4096))
    monkeypatch.setattr(sources, "_ROWS", 40)
    lines = csv_of(400)
    lines[150] = 'p74,"' + "x\n" * 350 + '",149\n'
    lines[300] = f"p149,{'x' * 3000},299\n"
    for place in (100, 200, 390):
        lines[place] = "one,two,three,four\n"
    path = tmp_path / f"a.{ending}"
    content = "".join(lines).encode()
    path.write_bytes(gzip.compress(content) if ending == "csv.gz" else content)
    tables, report = read(path)
    (table,) = tables
    expected = [i for i in range(400) if i + 1 not in (100, 200, 390)]
    assert table.rewards[:, 0].tolist() == expected
    assert table.row.tolist() == list(range(397))
    ((row, count, what),) = notices(report)
    assert (row, count) == (99, 3)
    assert "number of fields" in what
    (text,) = read_texts(path, [int(np.flatnonzero(table.rewards[:, 0] == 299)[0])])
    assert len(text.completion) == 3000


def test_a_row_of_compressed_csv_that_is_too_long_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_GZIP_BLOCKS", (256, 1024))
    path = packed(tmp_path / "a.csv.gz", "".join(csv_of(400)).encode(), b"0" * MEGABYTE)
    table, report = read_one(path)
    assert 300 < len(table) <= 400
    (notice,) = notices(report)
    assert "a row has more than 1,024 bytes" in notice[2]


@pytest.mark.slow
def test_rows_of_csv_before_its_missing_end_are_read(tmp_path):
    rows = "".join(csv_of(300_000)).encode()
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(rows)[: -MEGABYTE // 16])
    table, report = read_one(path)
    whole = zlib.decompressobj(31).decompress(path.read_bytes())
    assert len(table) == whole.count(b"\n") - 1
    assert table.rewards[:, 0].tolist() == list(range(len(table)))  # and no row that is cut
    assert "cannot be read: Compressed file ended before" in str(report)


def test_a_csv_file_without_rows_is_empty(saved):
    path = saved("a.csv", "prompt,reward\n")
    assert "is empty" in read(path)[1].left_out[path]
    path.write_text("prompt,reward\na,1,2\n")
    _, report = read(path)
    assert (report.skipped, report.formats) == (1, {"unknown": 1})


def test_no_more_numbers_are_rewards_than_a_table_can_hold(saved):
    names = [f"n{i:05}" for i in range(1500)]
    one = saved("one.jsonl", [verl_line(**dict.fromkeys(names, 1.0)) for _ in range(4)])
    lines = [verl_line(**{name: 1.0}) for name in names[:100]]
    each = saved("each.jsonl", lines)
    scores = [f"score_{name}" for name in names[:500]]
    record = {"prompt": "a", "score": 1} | dict.fromkeys(scores, 1.0)
    wide = saved("wide.parquet", [record] * 2)
    for path in (one, each):
        (tables, report), peak = peak_of(lambda path=path: read(path))
        assert all(table.names == tuple(names[:64]) for table in tables)
        assert report.skipped == 0
        assert peak < 30 * MEGABYTE
        (notice,) = [n for n in notices(report) if "name the rewards (rewards)" in n[2]]
        assert notice[2].startswith("more than 64 fields")
    table, report = read_one(wide)
    assert table.names == tuple(scores[:64])
    assert "more than 64 fields" in str(report)


@pytest.mark.slow
def test_no_more_numbers_are_looked_at_than_256(saved):
    record = {"reward": 1} | {f"n{i}": 1 for i in range(300)}
    _, report = read(saved("a.parquet", [record]))
    assert "'n11' and 243 more may be" in str(report)  # and the total, 'reward'


@pytest.mark.slow
@pytest.mark.parametrize("rewards", [None, ["n02999"]])
def test_of_wide_records_no_more_is_kept_than_may_be_rewards(saved, rewards):
    fields = {f"n{i:05}": i / 7 for i in range(3000)}
    path = saved("1.jsonl", [verl_line(**fields)] * 60)
    ((table,), _), peak = peak_of(lambda: read(path, rewards=rewards))
    assert len(table.names) == (64 if rewards is None else 1)
    assert not np.isnan(table.rewards).any()
    assert peak < 8 * MEGABYTE


def test_rewards_that_are_named_may_be_as_many_as_are_named(saved):
    names = [f"n{i:05}" for i in range(100)]
    record = verl_line(**dict.fromkeys(names, 1.0))
    for path in (
        saved("1.jsonl", [record] * 2),
        saved("1.parquet", [record | {"gts": "4"}] * 2),
    ):
        table, report = read_one(path, rewards=names[::-1])
        assert table.names == tuple(names[::-1])
        assert table.rewards.sum() == 200
        assert not report.notices


def test_what_a_field_holds_instead_of_a_number_is_not_kept(saved, monkeypatch):
    """Credit for each token would be gigabytes until a batch of rollouts is full."""
    monkeypatch.setattr(batches, "_CHUNK", 64)
    credit = [i / 7 for i in range(2000)]
    fields = ("advantage", "reward", "num_tokens", "finish_reason", "uid")
    record = {"prompt": "a", "reward_1": 1.0} | dict.fromkeys(fields, credit)
    path = saved("a.jsonl", [record] * 32)
    ((table,), report), peak = peak_of(lambda: read(path))
    assert table.rewards.tolist() == [[1.0]] * 32
    assert peak < 8 * MEGABYTE
    assert [what for *_, what in notices(report)] == [
        f"{name} is not a number, and counts as missing"
        for name in ("total", "advantage", "num_tokens")
    ]


def test_texts_that_are_scored_anew_are_few_at_a_time(saved, monkeypatch):
    monkeypatch.setattr(batches, "_TEXT_BYTES", 1000)
    sizes = []

    def rescore(rows):
        sizes.append(len(rows))
        return Rescored({"r": [1.0] * len(rows)}, {})

    (table,) = rollout_files(saved("1.jsonl", [verl_line(output="x" * 300)] * 9), rescore=rescore)
    assert len(table) == 9
    assert sizes == [3, 3, 3]


def test_a_file_keeps_the_rewards_that_it_has_where_none_is_given(saved, monkeypatch):
    """The total is not taken for one then."""
    monkeypatch.setattr(batches, "_CHUNK", 2)
    records = [verl_line(acc=value) for value in (1.0, 0.0, None, None)]
    table, _ = read_one(saved("1.jsonl", records))
    assert table.names == ("acc",)
    np.testing.assert_array_equal(table.rewards[:, 0], [1, 0, np.nan, np.nan])


def test_rollouts_keep_their_number_behind_a_step_that_is_written_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "_CHUNK", 4)
    path = written.swift(tmp_path)
    first, second = map(json.loads, path.read_text().splitlines())
    steps = [first, {**first, "step": ["2"] * 4}]
    steps += [{**second, "step": [str(i)] * 4, "Format": [i / 8] * 4} for i in range(3, 7)]
    tables, report = read(written.lines(path, steps))
    assert report.skipped == 4
    assert [table.row[0] for table in tables] == [0, 8, 12, 16, 20]


@pytest.mark.parametrize("more", [0, 1])
def test_a_log_of_the_trainer_that_is_too_large_is_not_read(tmp_path, saved, monkeypatch, more):
    log = json.dumps({"log_history": [{"rewards/right/mean": 0.5}]})
    monkeypatch.setattr(rewards, "_LARGEST_LOG", len(log) - more)
    saved("trainer_state.json", log)
    row = {"step": 1, "prompt": "a", "completion": "b", "advantage": 0.0, "right": 1.0, "x": 2.0}
    written.parquet(tmp_path / "completions" / "completions_00001.parquet", [row])
    table, _ = read_one(tmp_path / "completions")
    assert table.names == (("right", "x") if more else ("right",))


def uneven(path, largest, singles):
    rows = ["q,1,2,3,4\n"] * largest + [f"p{i},1,2,3,4\n" for i in range(singles)]
    path.write_text("prompt,a,b,c,d\n" + "".join(rows))
    table, _ = read_one(path, rewards=["a", "b", "c", "d"])
    return table


@pytest.mark.parametrize("more", [0, 1])
def test_padding_is_bounded_by_groups_and_samples_and_rewards(tmp_path, monkeypatch, more):
    table = uneven(tmp_path / "a.csv", 30, 19)
    monkeypatch.setattr(tables, "_PADDED", 20 * 30 * 4 - more)
    if not more:
        assert table.grouped().rewards.shape == (20, 30, 4)
        return
    with data_error(r"20 groups have 2\.5 .* 30: "):
        table.grouped()


def test_groups_that_are_half_there_are_no_padding_however_many(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_PADDED", 1)
    half = uneven(tmp_path / "a.csv", 3, 1)  # 4 of 6 are there
    assert half.grouped().rewards.shape == (2, 3, 4)
    with data_error(r"\(group_size\)") as told:
        uneven(tmp_path / "b.csv", 5, 2).grouped()  # 7 of 15
    assert Setting.GROUP_SIZE in told.value.remedy.values()  # the command names its option


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_texts_of_a_few_rows_cost_no_numbers_and_no_other_texts(saved, monkeypatch, kind):
    rows = [{"prompt": f"p{i}", "completion": f"c{i}", "reward": 1.0} for i in range(100)]
    path = saved(f"a.{kind}", rows)
    made = []
    text = columns.RolloutText
    monkeypatch.setattr(columns, "RolloutText", lambda *a, **k: made.append(a) or text(*a, **k))
    monkeypatch.delattr(columns, "group_keys")
    found = read_texts(path, [7, 90])
    assert [(each.row, each.prompt, each.completion) for each in found] == [
        (7, "p7", "c7"),
        (90, "p90", "c90"),
    ]
    assert len(made) == 2


def test_lines_after_the_last_that_is_shown_are_not_parsed(saved, monkeypatch):
    path = saved(
        "a.jsonl",
        [{"prompt": f"p{i}", "completion": f"c{i}", "reward": 1.0} for i in range(2000)],
    )
    parsed = []
    parse = text_files._parsed
    monkeypatch.setattr(text_files, "_parsed", lambda *a: parsed.append(a) or parse(*a))
    assert read_texts(path, [300])[0].prompt == "p300"
    assert len(parsed) < 600
