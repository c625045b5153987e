"""What is odd in a file and used to be read in silence is said, with what to do."""

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.refusals import data_error
from tests.rollouts.readers.reading import nothing, read

from gdpo.integrations import torch_files

LINE = {"prompt": "a", "completion": "b", "step": 1, "reward_a": 1.0}


def notices(path):
    tables, report = read(path)
    return tables, {n.what: (n.line, n.count) for n in report.notices.values()}, report


def test_lines_in_another_encoding_are_not_called_no_json(tmp_path):
    path = tmp_path / "a.jsonl"
    text = json.dumps(LINE) + "\n" + json.dumps(LINE | {"prompt": "é"}, ensure_ascii=False) + "\n"
    path.write_bytes(text.encode("latin1"))
    _, said, report = notices(path)
    assert said == {"the line is not UTF-8: write the file in UTF-8": (2, 1)}
    assert report.skipped == 1


@pytest.mark.parametrize("text", ["prompt,reward\né,1\n", "é,reward\np,1\n", "\n \n"])
def test_a_csv_in_another_encoding_or_without_rows_is_left_out_with_the_reason(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode("latin1"))
    why = "not UTF-8: write it in UTF-8" if "é" in text else "the file is empty"
    assert why in nothing(path).left_out[path]


def test_keys_that_stand_twice_are_told_with_the_one_that_counts(saved):
    twice = '{"prompt": "a", "reward_a": 1, "reward_a": 2}\n'
    inner = '{"prompt": "a", "reward_a": 3, "x": {"y": 1, "y": 2}}\n'
    (table,), said, _ = notices(saved("a.jsonl", twice * 2 + inner))
    assert table.rewards[:, 0].tolist() == [2, 2, 3]
    assert said == {
        "the key 'reward_a' occurs more than once in an object: its last value is used": (1, 2),
        "another key occurs more than once in an object: its last value is used": (3, 1),
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rows", ['"q,1\n"q,2\n', 'q,1\n"q,2\nq,3\nq,4\n'])
def test_quotes_that_are_not_closed_are_told_with_the_lines_they_swallow(tmp_path, rows, packed):
    content = ("prompt,reward\nq,5\n" + rows).encode()
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(content) if packed else content)
    _, said, _ = notices(path)
    row, lines = (1, 2) if rows.startswith('"') else (2, 3)
    what = f"a quote is not closed, so {lines} lines were read as one row: close the quote"
    assert said[what] == (row, 1)


def test_texts_of_several_lines_in_csv_are_no_swallowed_lines(saved):
    path = saved("a.csv", 'prompt,reward\n"a\n""b"", c\n\n",1\n"5"" x\n2",2\n"c" ,3\n\n')
    (table,), said, _ = notices(path)
    assert (len(table), said) == (3, {})


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_step_that_is_true_is_no_step(saved, kind):
    steps = [True, True] if kind != "csv" else [1, True, 2]
    tables, said, _ = notices(saved(f"a.{kind}", [LINE | {"step": step} for step in steps]))
    assert sum(map(len, tables)) == (2 if kind == "csv" else 0)
    assert said["the step is not a non-negative integer"][1] == (1 if kind == "csv" else 2)


def test_a_file_of_no_readable_line_is_said_without_a_comma_at_the_end(saved):
    assert "format unknown: 1 files\n" in str(nothing(saved("a.jsonl", "x\n")))


def test_a_csv_of_very_many_columns_is_refused_with_their_number(tmp_path):
    path = tmp_path / "a.csv"
    names = ",".join(f"reward_{i:06}" for i in range(10_001))
    path.write_text(f"{names}\n{','.join('1' * 10_001)}\n")
    assert "10,001 columns, and at most 10,000 can be read" in nothing(path).left_out[path]


def test_a_pt_file_that_is_a_bomb_is_refused_before_torch_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_files, "_UNPACKED", 10_000)
    path = tmp_path / "1.pt"
    kinds = {zipfile.ZIP_DEFLATED: "20,000 bytes", zipfile.ZIP_STORED: "not a torch file"}
    for compression, message in kinds.items():
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("1/data.pkl", b"\0" * 20_000)
        with data_error(message):
            torch_files.load_dump(path)


def test_a_dump_of_slime_larger_than_the_bound_is_read(monkeypatch):
    pytest.importorskip("torch", exc_type=ImportError)
    monkeypatch.setattr(torch_files, "_UNPACKED", 1)
    golden = Path(__file__).parent / "golden/slime_624b824a8/data_3.pt"
    assert np.isfinite(read(golden)[0][0].rewards).all()
