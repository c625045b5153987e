import gzip
import json
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.checkout import python
from tests.refusals import config_error, data_error, missing_extra_error

from gdpo.lab.tasks import TASKS, load_problems, load_rows
from gdpo.lab.tasks.rows import _hub_rows, _is_file

ROWS = [{"a": 1, "b": ["x"]}, {"a": None, "b": ["ü", {"c": 2}]}, {"a": 3.5, "b": []}]
PLAIN = [{"a": i, "b": [{"role": "user", "content": "ü"}]} for i in range(600)]


NO_OBJECTS = (b"[1]", b"3", b'"text"', b"null")


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


def test_a_parquet_file_gives_its_rows_in_order(saved):
    path = saved("r.parquet", PLAIN)
    assert load_rows(path) == PLAIN
    assert load_rows(path, limit=300) == PLAIN[:300]


def test_subset_and_split_do_not_matter_to_a_file(tmp_path):
    path = write(tmp_path / "r.json", ROWS)
    assert load_rows(path, subset="main", split="test") == ROWS


def test_a_byte_order_mark_and_blank_lines_are_skipped(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('\n{"a": 1}\n  \n{"a": 2}\n', encoding="utf-8-sig")
    assert load_rows(path) == [{"a": 1}, {"a": 2}]


def test_a_limit_does_not_read_on(saved):
    assert load_rows(saved("r.jsonl", '{"a": 1}\n{broken\n'), limit=1) == [{"a": 1}]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(tmp_path, limit):
    with config_error(f"limit .*got {limit}"):
        load_rows(write(tmp_path / "r.json", ROWS), limit=limit)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("trian.jsonl", r"trian\.jsonl .* train\.json"),
        ("q.parquet", r" other\.json, train\.jsonl\.gz$"),
        ("nowhere/r.json", "nowhere"),
        ("", r"folder.*: other\.json, train\.jsonl\.gz$"),
    ],
)
def test_a_missing_file_names_the_nearest_ones(tmp_path, saved, asked, message):
    write(tmp_path / "train.jsonl.gz", ROWS)
    write(tmp_path / "other.json", ROWS)
    saved("notes.txt", "")
    with data_error(message):
        load_rows(tmp_path / asked)


ENDINGS = r"\.jsonl, \.jsonl\.gz, .*\.parquet"
BROKEN = b'{"a": 1}\n\n{"a": \n'


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        *((name, b"a,b\n", ENDINGS) for name in ("r.csv", "rows", "r.parquet.gz")),
        ("r.jsonl", BROKEN, r"r\.jsonl, line 3"),
        ("r.jsonl.gz", gzip.compress(BROKEN, mtime=0), r"r\.jsonl\.gz, line 3"),
        ("r.jsonl", b"[" * 100_000, r"line 1 .*JSON"),
        ("r.jsonl", b'{"a": "\xff"}\n', "UTF-8"),
        *(("r.jsonl", b'{"a": 1}\n%b\n' % row, r"r\.jsonl, line 2") for row in NO_OBJECTS),
        *(("r.json", b'[{"a": 1}, %b]' % row, r"r\.json, row 2") for row in NO_OBJECTS),
        ("r.json", b'{"a": 1}', r"line.*\.jsonl"),
        ("r.json", b'{"a": 1}\n{"a": 2}\n', r"line.*\.jsonl"),
        *((name, b"\n \n", "has no rows") for name in ("r.jsonl", "r.json")),
        *((name, b"", "has no rows") for name in ("r.jsonl", "r.json")),
        ("r.json", b"[]", "has no rows"),
        ("r.jsonl.gz", b'{"a": 1}', "read"),
        ("r.json.gz", gzip.compress(b"[]" * 999, mtime=0)[:-9], "read"),
        ("r.json.gz", gzip.compress(b"[]", mtime=0)[:10] + b"\xff" * 20, "read"),
        ("r.parquet", b"PAR1 no more", "read"),
        ("r.parquet", b"", "read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_cannot_be_read_is_named_with_what_is_wrong(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with data_error(message):
        load_rows(path)


def test_an_empty_table_has_no_rows(tmp_path):
    parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "r.parquet")
    with data_error("has no rows"):
        load_rows(tmp_path / "r.parquet")


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
    with data_error(r"openai/gsm8k: .*\.parquet"):
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
    with data_error(r"split 'tset'\) .*the Hub"):
        _hub_rows(str(folder), None, "tset")


def test_a_dataset_that_cannot_be_had_says_that_a_local_file_works_too():
    pytest.importorskip("datasets")
    with data_error(r"'nobody/nothing' \(subset main"):
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
    done = python("-c", code, env=unreachable | {"HF_DATASETS_CACHE": str(tmp_path / "cache")})
    assert done.stdout.split() == [str(len(PLAIN)), "False"], done.stderr
    assert "cannot be loaded from the Hub: ConnectError: " in done.stderr
    assert "Retrying" not in done.stderr


def test_without_the_datasets_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with missing_extra_error(r"pip install '\.\[train\]'"):
        load_rows("openai/gsm8k")


def test_half_a_character_is_refused_with_its_line(tmp_path):
    rows = [{"question": "1+1?", "answer": "#### 2"}, {"question": "\ud800", "answer": "#### 2"}]
    path = write(tmp_path / "r.jsonl", rows)
    with data_error(r"line 2: .*half a character"):
        load_problems(TASKS["gsm8k"], path)
