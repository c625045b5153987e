"""One table of rollouts reads the same in every form in which people store it."""

import csv
import gzip
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import read, read_one

from gdpo.rollouts.readers import batches, read_texts
from gdpo.rollouts.readers import text as text_files
from gdpo.rollouts.readers.report import FileReport, groups_of_one
from gdpo.rollouts.readers.sources import csv_records, open_parquet

BOM = b"\xef\xbb\xbf"


def delimited(path, rows, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows[0])
        writer.writerows(row.values() for row in rows)
    return path


def arrow(path, rows, *, stream, batch=3):
    table = pa.Table.from_pylist(rows)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def saved_to_disk(folder, rows, shards=2):
    """A folder as by `datasets.save_to_disk`, with the cache file of a later `map`."""
    folder.mkdir()
    size = -(-len(rows) // shards)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for place, name in enumerate(names):
        arrow(folder / name, rows[place * size : (place + 1) * size], stream=True)
    arrow(folder / "cache-1f.arrow", [{**row, "good": 9.0} for row in rows], stream=True)
    (folder / "dataset_info.json").write_text('{"features": {}}')
    files = [{"filename": f"/elsewhere/{name}"} for name in names]  # only the name counts
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": None}))
    return folder


def text(path, content, *, bom=False):
    path.write_bytes(BOM * bom + content.encode())
    return path


FORMS = {
    "jsonl": lambda d, rows: written.lines(d / "a.jsonl", rows),
    "lines named json": lambda d, rows: written.lines(d / "a.json", rows),
    "list": lambda d, rows: text(d / "a.json", json.dumps(rows)),
    "pretty list": lambda d, rows: text(d / "a.json", json.dumps(rows, indent=2) + "\n"),
    "list named jsonl": lambda d, rows: text(d / "a.jsonl", json.dumps(rows, indent=1)),
    "csv": lambda d, rows: delimited(d / "a.csv", rows),
    "tsv": lambda d, rows: delimited(d / "a.tsv", rows, "\t"),
    "tabs named csv": lambda d, rows: delimited(d / "a.csv", rows, "\t"),
    "semicolons": lambda d, rows: delimited(d / "a.csv", rows, ";"),
    "parquet": lambda d, rows: written.parquet(d / "a.parquet", rows),
    "arrow stream": lambda d, rows: arrow(d / "a.arrow", rows, stream=True),
    "arrow file": lambda d, rows: arrow(d / "a.arrow", rows, stream=False),
    "feather": lambda d, rows: arrow(d / "a.feather", rows, stream=False, batch=100),
    "save_to_disk": lambda d, rows: saved_to_disk(d / "saved", rows),
}
IN_TEXT = [name for name in FORMS if name.split()[0] not in ("parquet", "arrow", "feather")]
IN_TEXT.remove("save_to_disk")


def content(path):
    tables, report = read(path)
    assert report.skipped == 0
    return [(int(t.steps[0]), t.groups.tolist(), t.names, t.rewards.tolist()) for t in tables], [
        notice.what for notice in report.notices.values()
    ]


number = st.one_of(st.integers(-999, 999).map(lambda n: n / 8), st.sampled_from([0.5, -1.25]))
prompt = st.text(st.sampled_from("a,b;c\t\"é1.'{["), min_size=1, max_size=5)


@st.composite
def tables(draw):
    prompts = [f"p{draw(prompt)}" for _ in range(draw(st.integers(1, 3)))]
    return [
        {"step": step, "prompt": p, "good_reward": draw(number), "style_reward": draw(number)}
        for step in range(1, draw(st.integers(2, 3)))
        for p in prompts
        for _ in range(draw(st.integers(2, 4)))
    ]


@settings(max_examples=5)
@given(rows=tables())
def test_every_form_reads_the_same(tmp_path_factory, rows):
    expected = None
    for name, write in FORMS.items():
        path = write(tmp_path_factory.mktemp("form"), rows)
        forms = [content(path)]
        if path.suffix in (".csv", ".tsv"):
            with pytest.MonkeyPatch.context() as without_pyarrow:
                without_pyarrow.setattr(batches, "HAS_PYARROW", False)
                forms.append(content(path))
            assert next(csv_records(FileReport(path)))[0] == 0
        if name in IN_TEXT:
            raw = path.read_bytes()
            path.write_bytes(BOM + raw)
            forms.append(content(path))
            packed = path.with_name(f"{path.name}.gz")
            packed.write_bytes(gzip.compress(BOM + raw))
            forms.append(content(packed))
        for form in forms:
            assert form == (expected := expected or form), name
    assert sum(len(rewards) for _, _, _, rewards in expected[0]) == len(rows)


ROWS = [
    {"step": i // 4, "prompt": f"p{i // 2}", "completion": f"c{i}", "good_reward": i / 2}
    for i in range(8)
]


@pytest.mark.parametrize("form", FORMS)
def test_texts_are_found_again(tmp_path, form):
    path = FORMS[form](tmp_path, ROWS)
    shown = []
    for table in read(path)[0]:
        for file, row in zip(table.file, table.row, strict=True):
            (found,) = read_texts(table.files[file], [int(row)])
            shown.append((found.prompt, found.completion))
    assert shown == [(row["prompt"], row["completion"]) for row in ROWS]


def notices(report):
    return [f"{notice.place}: {notice.what}" for notice in report.notices.values()]


@pytest.mark.slow
def test_a_list_without_its_end_is_read_up_to_there(tmp_path):
    whole = json.dumps(ROWS, indent=1)
    for cut in ("whole", "p3", '"c3"', '"good_reward": 1.5\n }', '1.5\n },\n {\n  "step"'):
        path = text(tmp_path / "a.json", whole[: whole.index(cut)] if cut != "whole" else whole)
        tables, report = read(path)
        rows = sum(map(len, tables))
        if cut == "whole":
            assert (rows, notices(report)) == (8, [])
            continue
        assert rows == (6 if cut == "p3" else 3)
        (notice,) = notices(report)
        assert notice.endswith(
            "the last row is incomplete: the run is still writing, or was killed"
        )
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress((json.dumps(ROWS * 9999)).encode())[:-9])
    tables, report = read(path)
    assert sum(map(len, tables)) > 70_000
    assert "the rest cannot be read: EOFError" in str(report)


HOSTILE = {
    "deep": ('[{"prompt": "", "reward": 1}, ' + '{"a": ' * 10**6, "nested too deeply"),
    "deep list": ('[{"prompt": "", "reward": 1}, ' + "[" * 10**6, "nested too deeply"),
    "deep member": ('{"a": ' * 10**6, "the file is one JSON object"),
    "long integer": (
        '[{"reward": 1}, {"reward": ' + "9" * 5000 + "}]",
        "a number at line 1 is too long",
    ),
    "broken": ('[{"reward": 1},\n{"reward": 2},\n{"reward" 3}]', "not valid JSON at line 3"),
    "no comma": ('[{"reward": 1} {"reward": 2}]', "'{' instead of ']'"),
    "closed wrongly": ('[{"reward": 1}}', "'}' instead of ']'"),
    "not UTF-8": (b'[{"reward": 1}, {"a": "\xff"}]', "not UTF-8"),
    "empty list": ("[]", "the file is empty"),
    "list of numbers": ("[[1, 2], [3]]", "a list"),
    "object": ('{"a": 1}', "the file is one JSON object"),
    "object of a list": ('{"n": 1,\n"rows": [{"reward": 1}]}', "a_rows.jsonl"),
    "text": ('"reward"', "not a JSON object"),
    "nothing": ("", "the file is empty"),
    "space": (" \n" * 10**6, "the file is empty"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_list_is_one_problem(tmp_path, case):
    content, why = HOSTILE[case]
    path = tmp_path / "a.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    tables, report = read(path)
    assert sum(map(len, tables)) <= 2
    problems = notices(report) + [f"{path}: {why}" for path, why in report.left_out.items()]
    assert len(problems) == 1
    assert why in str(report) or case == "list of numbers"


def test_odd_values_in_a_list_are_those_of_lines(tmp_path):
    rows = '{"prompt": "a", "reward": %s}'
    values = ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "1"]
    content = [rows % value for value in values]
    content[-1] = '{"prompt": "a", "reward": 5, "reward": 1}'
    in_lines, found = (
        read(text(tmp_path / name, joined))
        for name, joined in (("a.jsonl", "\n".join(content)), ("b.json", f"[{','.join(content)}]"))
    )
    np.testing.assert_array_equal(found[0][0].rewards, in_lines[0][0].rewards)
    assert [n.what for n in found[1].notices.values()] == [
        n.what for n in in_lines[1].notices.values()
    ]
    assert "the key 'reward' occurs more than once" in str(found[1])


@pytest.mark.slow
def test_a_long_list_takes_the_memory_of_a_part(tmp_path, monkeypatch):
    row = json.dumps({"step": 1, "prompt": "p" * 9000, "good_reward": 1.0, "bad_reward": 0.5})
    peaks = []
    for name, begin, between, end in (
        ("a.jsonl", "", "\n", "\n"),
        ("a.json", "[", ",\n", "]"),
    ):
        path = text(tmp_path / name, begin + between.join([row] * 4000) + end)
        tracemalloc.start()
        tables, _ = read(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(map(len, tables)) == 4000
    assert peaks[1] < peaks[0] + 8 * 2**20 < path.stat().st_size
    monkeypatch.setattr(text_files, "LONGEST_LINE", 2**20)
    path.write_text(f"[{row}, {json.dumps({'prompt': 'p' * 2**22})}, {row}]")
    tables, report = read(path)
    assert [len(table) for table in tables] == [1]
    assert "the row at line 1 has more than 1,048,576 bytes" in str(report)


def test_a_number_that_is_split_between_two_reads_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_PART", 3)
    path = text(tmp_path / "a.json", json.dumps([{**row, "n": 123456789} for row in ROWS]))
    assert [table.rewards[:, 0].tolist() for table in read(path)[0]] == [
        [0, 0.5, 1, 1.5],
        [2, 2.5, 3, 3.5],
    ]
    path.write_text(json.dumps([ROWS[0], 123456789, *ROWS]))
    _, report = read(path)
    assert notices(report) == [f"{path}:1: the row is not a JSON object"]


def test_numbers_with_a_decimal_comma_are_texts_and_no_rewards(tmp_path):
    path = text(tmp_path / "a.csv", "prompt;b_reward\np;0,5\nq;1,5\n")
    table, report = read_one(path)
    assert (table.names, groups_of_one(report)) == ((), "")
    assert all(notice.startswith(f"{path}: 'b_reward'") for notice in notices(report)[:1])
    path.write_text(f"prompt,accuracy,rewards\np,0,{'word ' * 99}\np,1,\n")
    assert read_one(path)[0].names == ()  # however long the texts of `rewards` are
    written.lines(path := tmp_path / "a.jsonl", [{**ROWS[0], "judge_reward": "word " * 99}])
    table, report = read_one(path)
    assert (table.names, notices(report)) == (("good_reward",), [])


CLEAR = {
    "a comma in an answer": "prompt\tanswer\tb_reward\np\t1,234\t0.5\np\t5,678\t1.5\n",
    "thousands of one column": "prompt;answer;b_reward\np;1,234;0.5\np;5,678;1.5\n",
    "a semicolon in a name": "prompt,answer;gold,b_reward\np,1,0.5\np,2,1.5\n",
    "a comma in a name": 'prompt;"answer,gold";b_reward\np;1;0.5\np;2;1.5\n',
    "a comma in a name and in a value": "prompt;answer,gold;b_reward\np;1,2;0.5\np;3;1.5\n",
    "semicolons in a text": "prompt,b_reward\na;b;c,0.5\na;b;c,1.5\n",
    "commas in a text": "prompt;b_reward\na,b,c;0.5\na,b,c;1.5\n",
    "a quoted delimiter": 'prompt;b_reward\n"a;b\nc";0.5\n"a;b\nc";1.5\n',
}


@pytest.mark.parametrize("case", CLEAR)
def test_delimiters_are_told_from_text(tmp_path, case):
    table, _ = read_one(text(tmp_path / "a.csv", CLEAR[case]), rewards=["b_reward"])
    assert table.rewards.tolist() == [[0.5], [1.5]]
    assert table.groups[0] == table.groups[1]


def test_a_dataset_that_lacks_a_file_is_told(tmp_path):
    folder = saved_to_disk(tmp_path / "saved", ROWS)
    (folder / "data-00001-of-00002.arrow").unlink()
    tables, report = read(folder)
    assert sum(map(len, tables)) == 4
    (path,) = report.left_out
    assert path.name == "data-00001-of-00002.arrow"
    assert "state.json lists it" in report.left_out[path]
    (folder / "state.json").write_text("[")
    assert sum(map(len, read(folder)[0])) == 12


def test_splits_of_a_dataset_are_read_without_its_test(tmp_path, saved):
    saved("dataset_dict.json", '{"splits": ["train", "test"]}')
    saved_to_disk(tmp_path / "train", ROWS)
    saved_to_disk(tmp_path / "test", ROWS[:4], shards=1)
    tables, report = read(tmp_path)
    assert sum(map(len, tables)) == 8
    assert {path.parent.name for path in report.left_out} == {"test"}


def test_what_datasets_saves_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    tables, report = read(tmp_path / "saved")
    assert [table.rewards[:, 0].tolist() for table in tables] == [
        [0, 0.5, 1, 1.5],
        [2, 2.5, 3, 3.5],
    ]
    assert report.left_out == {}


@pytest.mark.parametrize("stream", [True, False])
def test_a_damaged_arrow_file_is_one_problem(tmp_path, stream):
    path = arrow(tmp_path / "a.arrow", ROWS * 200, stream=stream, batch=100)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for size in (0, 4, 20, 300, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:size])
        tables, report = read(path)
        assert sum(map(len, tables)) < 1600
        assert report.left_out or report.notices
    for _ in range(20):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 20):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        read(path)


@pytest.mark.parametrize("stream", [True, False])
def test_texts_that_lie_outside_of_an_arrow_file_are_not_read(tmp_path, stream):
    """Arrow trusts the offsets of texts, so a wrong one in the middle would read other memory."""
    rows = [{"prompt": f"prompt {i}", "reward_a": 1.0, "reward_b": i % 2} for i in range(4)]
    path = arrow(tmp_path / "a.arrow", rows, stream=stream, batch=4)
    offsets = np.arange(0, 40, 8, dtype="<i4")
    whole = path.read_bytes()
    assert whole.count(offsets.tobytes()) == 1
    offsets[2] = 2**30
    path.write_bytes(whole.replace(np.arange(0, 40, 8, dtype="<i4").tobytes(), offsets.tobytes()))
    tables, report = read(path)
    assert sum(map(len, tables)) == 0
    assert "offset" in str(report)


def test_an_arrow_file_with_another_name_is_read_and_an_old_one_refused(tmp_path):
    path = arrow(tmp_path / "a.parquet", ROWS, stream=True)
    assert sum(map(len, read(path)[0])) == 8
    path = tmp_path / "b.feather"
    path.write_bytes(b"FEA1" + bytes(100))
    assert "write it in version 2" in read(path)[1].left_out[path]
    packed = tmp_path / "c.arrow.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert sum(map(len, read(packed)[0])) == 8


def test_blank_lines_between_lines_named_json_are_no_end(tmp_path):
    row = '{"reward": 1}'
    path = text(tmp_path / "a.json", f"\n \n{row}" + "\n" * 2**21 + row)
    assert len(read_one(path)[0]) == 2


def test_long_integers_of_csv_are_numbers_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "HAS_PYARROW", False)
    table, _ = read_one(text(tmp_path / "a.csv", f"prompt,n,b_reward\np,{'9' * 5000},{'9' * 30}\n"))
    assert table.rewards.tolist() == [[1e30]]


def test_other_json_files_of_a_folder_are_left_alone(tmp_path):
    text(tmp_path / "rows.json", json.dumps(ROWS))
    text(tmp_path / "config.json", '{"reward": 1, "prompt": "a"}')
    text(tmp_path / "tokens.json", '["a", "b"]')
    tables, report = read(tmp_path)
    assert sum(map(len, tables)) == 8
    assert report.left_out == {}


def test_batches_of_an_arrow_file_have_the_size_that_is_asked_for(tmp_path):
    opened = open_parquet(arrow(tmp_path / "a.arrow", ROWS, stream=True, batch=3))
    sizes = [batch.num_rows for batch in opened.iter_batches(5, ["prompt"])]
    assert sizes == [5, 3]
    (whole,) = opened.iter_batches(100, ["good_reward", "prompt"])
    assert sorted(whole.schema.names) == ["good_reward", "prompt"]


def test_the_number_of_a_shard_is_no_step(tmp_path):
    rows = [{"prompt": row["prompt"], "a_reward": row["good_reward"]} for row in ROWS]
    tables, _ = read(saved_to_disk(tmp_path / "saved", rows))
    assert {step for table in tables for step in table.steps.tolist()} == {0}


def test_a_known_format_may_have_fields_like_metrics(tmp_path, saved):
    row = {"step": 1, "prompt": "p", "completion": "c", "advantage": 0.5, "rewards/a/mean": 1.0}
    saved("a.parquet", [row])
    verl = {"step": 1, "input": "p", "output": "c", "score": 0.5, "rewards/a/mean": 1.0}
    saved("b.jsonl", [verl])
    for name, form in (("a.parquet", "trl"), ("b.jsonl", "verl")):
        _, report = read(tmp_path / name)
        assert report.formats == {form: 1}
