"""One table of rollouts reads the same in every form in which people store it."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rollouts.readers.test_bad_input import read

from gdpo.rollouts.readers import read_texts

BOM = b"\xef\xbb\xbf"


def delimited(path, rows, delimiter=",", point="."):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows[0])
        for row in rows:
            cells = [
                str(v).replace(".", point) if isinstance(v, float) else v for v in row.values()
            ]
            writer.writerow(cells)
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
    files = [{"filename": name} for name in names]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": None}))
    return folder


def text(path, content, *, bom=False):
    path.write_bytes(BOM * bom + content.encode())
    return path


def lines(rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows)


FORMS = {
    "jsonl": lambda d, rows: text(d / "a.jsonl", lines(rows)),
    "lines named json": lambda d, rows: text(d / "a.json", lines(rows)),
    "list": lambda d, rows: text(d / "a.json", json.dumps(rows)),
    "pretty list": lambda d, rows: text(d / "a.json", json.dumps(rows, indent=2) + "\n"),
    "list named jsonl": lambda d, rows: text(d / "a.jsonl", json.dumps(rows, indent=1)),
    "object": lambda d, rows: text(d / "a.json", json.dumps({"n": 1, "data": rows, "x": [2, 3]})),
    "pretty object": lambda d, rows: text(d / "a.json", json.dumps({"rollouts": rows}, indent=2)),
    "csv": lambda d, rows: delimited(d / "a.csv", rows),
    "tsv": lambda d, rows: delimited(d / "a.tsv", rows, "\t"),
    "tabs named csv": lambda d, rows: delimited(d / "a.csv", rows, "\t"),
    "semicolons": lambda d, rows: delimited(d / "a.csv", rows, ";"),
    "decimal commas": lambda d, rows: delimited(d / "a.csv", rows, ";", ","),
    "parquet": lambda d, rows: pq.write_table(pa.Table.from_pylist(rows), d / "a.parquet") or d,
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
    rows[0]["good_reward"] = 0.5  # so that the comma of a file with decimal commas is one
    expected = None
    for name, write in FORMS.items():
        path = write(tmp_path_factory.mktemp("form"), rows)
        forms = [content(path)]
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
