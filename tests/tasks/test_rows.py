import gzip
import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from gdpo.errors import ConfigError, DataError, MissingExtraError
from gdpo.lab.tasks import TASKS, load_problems, load_rows
from gdpo.lab.tasks.rows import _hub_rows, _is_file

ROWS = [{"a": 1, "b": ["x"]}, {"a": None, "b": ["ü", {"c": 2}]}, {"a": 3.5, "b": []}]
PLAIN = [{"a": i, "b": [{"role": "user", "content": "ü"}]} for i in range(600)]


def write(path, rows):
    lines = path.name.removesuffix(".gz").endswith(".jsonl")
    text = "\n".join(map(json.dumps, rows)) if lines else json.dumps(rows)
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["r.jsonl", "r.json", "r.jsonl.gz", "r.json.gz", "R.JSONL"])
def test_json_files_give_their_rows_in_order(tmp_path, name):
    path = tmp_path / name
    write(path.with_name(name.lower()), ROWS).rename(path)
    assert load_rows(path) == ROWS
    assert load_rows(str(path)) == ROWS
    assert load_rows(path, limit=2) == ROWS[:2]


def test_a_parquet_file_gives_its_rows_in_order(tmp_path):
    path = tmp_path / "r.parquet"
    parquet.write_table(pa.Table.from_pylist(PLAIN), path)
    assert load_rows(path) == PLAIN
    assert load_rows(path, limit=300) == PLAIN[:300]


def test_subset_and_split_do_not_matter_to_a_file(tmp_path):
    path = write(tmp_path / "r.json", ROWS)
    assert load_rows(path, subset="main", split="test") == ROWS


def test_a_byte_order_mark_and_blank_lines_are_skipped(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('\n{"a": 1}\n  \n{"a": 2}\n', encoding="utf-8-sig")
    assert load_rows(path) == [{"a": 1}, {"a": 2}]


def test_a_limit_does_not_read_on(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\n{broken\n')
    assert load_rows(path, limit=1) == [{"a": 1}]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(tmp_path, limit):
    with pytest.raises(ConfigError, match=f"limit .*got {limit}"):
        load_rows(write(tmp_path / "r.json", ROWS), limit=limit)


def test_a_missing_file_names_the_nearest_one(tmp_path):
    write(tmp_path / "train.jsonl.gz", ROWS)
    write(tmp_path / "other.json", ROWS)
    with pytest.raises(DataError, match=r"trian\.jsonl .* train\.json"):
        load_rows(tmp_path / "trian.jsonl")


def test_a_missing_file_among_unlike_ones_names_what_is_there(tmp_path):
    write(tmp_path / "zebra.json", ROWS)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=r" zebra\.json$"):
        load_rows(tmp_path / "q.parquet")


def test_a_missing_folder_is_said_to_be_missing(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        load_rows(tmp_path / "nowhere" / "r.json")


def test_a_folder_names_the_files_in_it(tmp_path):
    write(tmp_path / "train.json", ROWS)
    with pytest.raises(DataError, match=r"folder.*: train\.json"):
        load_rows(tmp_path)


@pytest.mark.parametrize("name", ["r.csv", "rows", "r.parquet.gz"])
def test_an_unknown_ending_names_the_allowed_ones(tmp_path, name):
    path = tmp_path / name
    path.write_text("a,b\n")
    with pytest.raises(DataError, match=r"\.jsonl, \.jsonl\.gz, .*\.parquet"):
        load_rows(path)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_broken_line_is_named(tmp_path, ending):
    path = tmp_path / f"r.jsonl{ending}"
    data = b'{"a": 1}\n\n{"a": \n'
    path.write_bytes(gzip.compress(data, mtime=0) if ending else data)
    with pytest.raises(DataError, match=r"r\.jsonl(\.gz)?, line 3"):
        load_rows(path)


def test_a_line_nested_beyond_recursion_is_an_error_of_the_data(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"line 1 .*JSON"):
        load_rows(path)


@pytest.mark.parametrize("row", ["[1]", "3", '"text"', "null"])
def test_a_row_that_is_no_object_is_named(tmp_path, row):
    lines, whole = tmp_path / "r.jsonl", tmp_path / "r.json"
    lines.write_text(f'{{"a": 1}}\n{row}\n')
    whole.write_text(f'[{{"a": 1}}, {row}]')
    with pytest.raises(DataError, match=r"r\.jsonl, line 2"):
        load_rows(lines)
    with pytest.raises(DataError, match=r"r\.json, row 2"):
        load_rows(whole)


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a": 1}\n{"a": 2}\n'])
def test_lines_in_a_json_file_point_to_the_other_ending(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"line.*\.jsonl"):
        load_rows(path)


@pytest.mark.parametrize("name", ["r.jsonl", "r.json"])
@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_has_no_rows(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=r"has no rows"):
        load_rows(path)


def test_an_empty_list_and_an_empty_table_have_no_rows(tmp_path):
    (tmp_path / "r.json").write_text("[]")
    parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "r.parquet")
    for name in ("r.json", "r.parquet"):
        with pytest.raises(DataError, match=r"has no rows"):
            load_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("r.jsonl.gz", b'{"a": 1}'),
        ("r.json.gz", gzip.compress(b"[]" * 999, mtime=0)[:-9]),
        ("r.json.gz", gzip.compress(b"[]", mtime=0)[:10] + b"\xff" * 20),
        ("r.parquet", b"PAR1 no more"),
        ("r.parquet", b""),
    ],
)
def test_a_damaged_file_is_an_error_of_the_data(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError, match="read"):
        load_rows(path)


def test_bytes_that_are_no_text_are_an_error_of_the_data(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(DataError, match="UTF-8"):
        load_rows(path)


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("openai/gsm8k", False),
        ("gsm8k", False),
        ("lmsys/vicuna-v1.5", False),
        ("openai/gsm8k.jsonl", True),
        ("rows.csv", True),
        ("./openai/gsm8k", True),
        ("../gsm8k", True),
        ("/openai/gsm8k", True),
        ("~/gsm8k", True),
        ("data/openai/gsm8k", True),
        ("data\\gsm8k", True),
    ],
)
def test_a_file_and_a_name_on_the_hub_are_told_apart(source, file):
    assert _is_file(source) is file


def test_what_exists_is_a_file_even_if_it_could_be_a_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai").mkdir()
    (tmp_path / "openai" / "gsm8k").write_text("{}")
    with pytest.raises(DataError, match=r"openai/gsm8k: .*\.parquet"):
        load_rows("openai/gsm8k")


def test_rows_of_a_dataset_come_through_datasets(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", PLAIN)
    write(folder / "test.jsonl", PLAIN[:5])
    assert list(_hub_rows(str(folder), None, "train")) == PLAIN
    assert list(_hub_rows(str(folder), None, "test")) == PLAIN[:5]
    with pytest.raises(DataError, match=r"split 'tset'\) .*the Hub"):
        _hub_rows(str(folder), None, "tset")


def test_a_dataset_that_cannot_be_had_says_that_a_local_file_works_too():
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match=r"'nobody/nothing' \(subset main"):
        load_rows("nobody/nothing", subset="main")


def kept_by_datasets(name, rows, cache, folder):
    """Create rows in the cache of `datasets`, as after loading them from the Hub."""
    datasets = pytest.importorskip("datasets")
    file = str(write(folder / "rows.jsonl", rows))
    datasets.load_dataset("json", data_files=file, cache_dir=str(cache))
    (config,) = (cache / "json").iterdir()
    (arrow,) = config.rglob("json-train.arrow")
    arrow.rename(arrow.with_name(f"{name.partition('/')[2]}-train.arrow"))
    (info,) = config.rglob("dataset_info.json")
    info.write_text(info.read_text().replace('"json"', f'"{name.partition("/")[2]}"'))
    config.rename(config.with_name("default"))
    (cache / "json").rename(cache / name.replace("/", "___"))


def test_where_the_hub_cannot_be_reached_it_is_asked_once_and_the_cache_is_taken(tmp_path):
    pytest.importorskip("datasets")
    kept_by_datasets("ann/sums", PLAIN, tmp_path / "cache", tmp_path)
    code = (
        "from gdpo.lab.tasks import load_rows\n"
        "print(len(load_rows('ann/sums')))\n"
        "from huggingface_hub import is_offline_mode\n"
        "print(is_offline_mode())\n"
        "load_rows('nobody/nothing')\n"
    )
    unreachable = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "*"}
    environment = {**os.environ, **unreachable, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(len(PLAIN)), "False"], done.stderr
    assert "cannot be loaded from the Hub: ConnectError: " in done.stderr
    assert "Retrying" not in done.stderr


def test_without_the_datasets_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[train\]'"):
        load_rows("openai/gsm8k")


def test_half_a_character_is_refused_with_its_line(tmp_path):
    rows = [{"question": "1+1?", "answer": "#### 2"}, {"question": "\ud800", "answer": "#### 2"}]
    path = write(tmp_path / "r.jsonl", rows)
    with pytest.raises(DataError, match=r"line 2: .*half a character"):
        load_problems(TASKS["gsm8k"], path)
