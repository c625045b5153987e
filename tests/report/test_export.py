"""An export has the figures and tables of a page, with its numbers, and parses."""

import csv
import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.report.hostile import TEXTS
from tests.report.runs import experiment_of, record, trained, unrecorded

from gdpo.errors import ConfigError
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import Label, Measured
from gdpo.lab.report import write_report
from gdpo.lab.report._tables import Estimate, Name, Table, to_csv, to_markdown
from gdpo.report.colours import style

SVG = "{http://www.w3.org/2000/svg}"
TABLES = {"results", "seeds", "runs", "advantages"}


def exported(folder, comparison):
    write_report(comparison, folder / "page.html", export=folder / "export")
    return folder / "export"


@pytest.fixture(scope="module")
def usual(tmp_path_factory, compared):
    folder, experiment = tmp_path_factory.mktemp("export"), compared[0].experiment
    runs = [
        replace(run, means={name: values - 0.2 for name, values in run.means.items()})
        if run.label == "grpo"
        else run
        for run in experiment.runs
    ]
    comparison = analyse(replace(experiment, runs=tuple(runs)), draws=100)
    return comparison, exported(folder, comparison), (folder / "page.html").read_text("utf-8")


def rows_of(file):
    return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline="")))


class Cells(HTMLParser):
    """The text of a page outside of its script and style."""

    def __init__(self, page):
        super().__init__()
        self.parts, self.skipped = [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.skipped = tag in ("script", "style")

    def handle_data(self, data):
        if not self.skipped:
            self.parts.append(data)


def test_every_table_and_every_figure_is_there_in_two_formats(usual):
    names = {path.name for path in usual[1].iterdir()}
    figures = {"reward-1-format", "reward-2-correct", "threshold-1-format"}
    assert {name.rpartition(".")[0] for name in names} == {*TABLES, *figures, "README"}
    for stem in TABLES:
        assert {f"{stem}.csv", f"{stem}.md"} <= names
    for stem in figures:
        assert {f"{stem}.svg", f"{stem}.csv"} <= names


def test_the_index_names_every_file_and_the_conclusion(usual):
    comparison, folder, _ = usual
    index = (folder / "README.md").read_text(encoding="utf-8")
    stems = {path.name.rpartition(".")[0] for path in folder.iterdir()} - {"README"}
    assert set(re.findall(r"^\| `([^`]+)`", index, re.MULTILINE)) == stems
    assert "grpo" in index
    assert comparison.experiment.name in index


def test_every_number_of_the_tables_stands_on_the_page(usual):
    _, folder, page = usual
    text = " ".join(Cells(page).parts)
    checked = 0
    for stem in ("results", "seeds"):
        for row in rows_of(folder / f"{stem}.csv"):
            for column, value in row.items():
                if value and column not in ("reward", "estimator", "runs", "failed", "pairs"):
                    assert value.replace("-", "−") in text, (column, value)
                    checked += 1
    assert checked > 40


def test_both_formats_of_a_table_have_the_same_numbers(usual):
    _, folder, _ = usual
    for stem in TABLES:
        text = (folder / f"{stem}.md").read_text(encoding="utf-8")
        for row in rows_of(folder / f"{stem}.csv"):
            for value in filter(None, row.values()):
                shown = value.replace("-", "−") if re.fullmatch(r"-?[\d.]+", value) else value
                assert shown in text, (stem, value)


def test_the_numbers_of_a_csv_file_are_numbers(usual):
    _, folder, _ = usual
    row = next(row for row in rows_of(folder / "results.csv") if row["reward"] == "correct")
    final = usual[0].outcome("grpo", "correct").final.value
    assert float(row["final"]) == pytest.approx(final, abs=0.01)
    assert row["difference from grpo"] == ""
    points = rows_of(folder / "reward-2-correct.csv")
    assert len(points) == 2 * 12
    assert float(points[0]["value"]) < 0


def test_a_picture_is_one_svg_file_with_its_curves_and_its_own_styles(usual):
    _, folder, page = usual
    for file in folder.glob("*.svg"):
        root = ElementTree.parse(file).getroot()
        assert root.tag == f"{SVG}svg"
        text = file.read_text(encoding="utf-8")
        assert not re.findall(r"class=|href|url\(|@import|<style|<script|var\(", text)
        assert root.get("font-family").endswith("sans-serif")
    root = ElementTree.parse(folder / "reward-1-format.svg").getroot()
    strokes = {path.get("stroke"): path.get("d") for path in root.iter(f"{SVG}path")}
    assert {style("grpo").light, style("gdpo").light} <= set(strokes)
    curves = re.findall(r'class="bold" d="(M[^"]+)"', page.split("<figure>")[1])
    drawn = {path.get("d") for path in root.iter(f"{SVG}path")}
    assert len(curves) == 2 + 2, "two curves, and two in the legend"
    assert set(curves[:2]) <= drawn, "the same shapes as on the page"
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert {"grpo", "gdpo", "format: mean reward"} <= set(words)


def test_a_picture_says_which_part_of_the_range_its_axis_shows(tmp_path):
    runs = [unrecorded(label, 1, tmp_path) for label in ("grpo", "gdpo")]
    runs = [replace(run, means={"format": np.full(12, 0.1 + k / 10)}) for k, run in enumerate(runs)]
    reward = Measured("format", 0.0, 1.0, 1.0)
    comparison = analyse(experiment_of(tmp_path, runs, rewards=(reward,)), draws=100)
    text = (exported(tmp_path, comparison) / "reward-1-format.svg").read_text(encoding="utf-8")
    assert "0.095 to 0.205" in text
    assert "0 to 1" in text


def test_a_single_run_is_exported_without_columns_of_a_comparison(tmp_path):
    run = trained(tmp_path / "runs", "gdpo", 1)
    folder = exported(tmp_path, analyse(experiment_of(tmp_path, [run]), draws=100))
    (row, _) = rows_of(folder / "results.csv")
    assert not [column for column in row if "difference" in column or "p," in column]
    assert (folder / "reward-1-format.svg").is_file()


@pytest.mark.parametrize("kind", ["file", "full"])
def test_nothing_is_written_over_and_nothing_at_all_then(tmp_path, kind):
    folder = tmp_path / "export"
    if kind == "file":
        folder.write_text("mine")
    else:
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")
    comparison = analyse(experiment_of(tmp_path, [unrecorded("gdpo", 1, tmp_path)]), draws=100)
    with pytest.raises(ConfigError, match=r"--export .*export"):
        write_report(comparison, tmp_path / "page.html", export=folder)
    assert not (tmp_path / "page.html").exists()
    assert (folder if kind == "file" else folder / "mine.txt").read_text() == "mine"


def test_an_empty_folder_is_filled_and_a_missing_parent_is_made(tmp_path):
    comparison = analyse(experiment_of(tmp_path, [unrecorded("gdpo", 1, tmp_path)]), draws=100)
    for folder in (tmp_path / "empty", tmp_path / "a" / "b"):
        if folder.name == "empty":
            folder.mkdir()
        write_report(comparison, tmp_path / "page.html", export=folder)
        assert (folder / "README.md").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "empty", "a"}


def test_a_failed_export_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gdpo.lab.report.export.to_markdown", full)
    comparison = analyse(experiment_of(tmp_path, [unrecorded("gdpo", 1, tmp_path)]), draws=100)
    with pytest.raises(OSError, match="space"):
        write_report(comparison, tmp_path / "page.html", export=tmp_path / "export")
    assert {path.name for path in tmp_path.iterdir()} == {"page.html"}


@pytest.fixture
def comparison(tmp_path):
    (tmp_path / "runs").mkdir()
    run = unrecorded("gdpo", 1, tmp_path / "runs")
    return analyse(experiment_of(tmp_path / "runs", [run]), draws=100)


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("path", [".", "../empty", "link", "./link/../empty"])
def test_an_empty_folder_is_filled_by_any_of_its_paths(tmp_path, monkeypatch, comparison, path):
    empty = tmp_path / "empty"
    empty.mkdir()
    before = empty.stat().st_ino
    (tmp_path / "link").symlink_to(empty, target_is_directory=True)
    monkeypatch.chdir(empty if path.startswith(".") and "link" not in path else tmp_path)
    write_report(comparison, tmp_path / "page.html", export=Path(path))
    assert {"README.md", "results.csv"} <= {file.name for file in empty.iterdir()}
    assert not list(empty.glob(".*"))
    assert empty.stat().st_ino == before, "a mount point cannot be replaced"
    assert {each.name for each in tmp_path.iterdir()} == {"page.html", "empty", "link", "runs"}


def test_an_empty_folder_stays_empty_when_its_export_fails(tmp_path, monkeypatch, comparison):
    (tmp_path / "empty").mkdir()
    moves, rename = [], Path.rename

    def fails_later(self, target):
        moves.append(target)
        if len(moves) == 3:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fails_later)
        with pytest.raises(OSError, match="space"):
            write_report(comparison, tmp_path / "page.html", export=tmp_path / "empty")
    assert len(moves) == 3
    assert not list((tmp_path / "empty").iterdir())


def test_a_file_that_appears_in_an_empty_folder_is_kept(tmp_path, monkeypatch, comparison):
    empty = tmp_path / "empty"
    empty.mkdir()

    def slow(table):
        (empty / "results.csv").write_text("mine")
        return to_markdown(table)

    monkeypatch.setattr("gdpo.lab.report.export.to_markdown", slow)
    with pytest.raises(ConfigError, match=r"--export .*empty"):
        write_report(comparison, tmp_path / "page.html", export=empty)
    assert [path.read_text() for path in empty.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "kind", ["below a file", "link to itself", "read-only", "read-only parent"]
)
def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path, monkeypatch, comparison, kind):
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "link")
    folder = {
        "below a file": tmp_path / "file" / "export",
        "link to itself": tmp_path / "link",
        "read-only": tmp_path / "closed",
        "read-only parent": tmp_path / "closed" / "a" / "b",
    }[kind]
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path / "closed")
    with pytest.raises(ConfigError, match=rf"--export {folder} .*folder"):
        write_report(comparison, tmp_path / "page.html", export=folder)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("page", ["page.html", "pages/page.html"])
def test_the_folder_of_the_page_is_refused_first(tmp_path, comparison, page):
    folder = tmp_path / "paper"
    with pytest.raises(ConfigError, match=r"page\.html"):
        write_report(comparison, folder / page, export=folder)
    assert not folder.exists()


@pytest.mark.skipif(os.name != "posix", reason="processes are only looked up on POSIX")
@pytest.mark.parametrize("exists", [False, True])
def test_what_a_killed_export_left_is_removed(tmp_path, comparison, exists):
    folder = tmp_path / "paper"
    name = f".{ended_process()}.partial" if exists else f".paper.{ended_process()}.partial"
    left = (folder if exists else tmp_path) / name
    left.mkdir(parents=True)
    (left / "results.csv").touch()
    of_others = tmp_path / f".other.{ended_process()}.partial"
    living = tmp_path / f".paper.{os.getppid()}.partial"
    for kept in (of_others, living):
        kept.mkdir()
    write_report(comparison, tmp_path / "page.html", export=folder)
    assert (folder / "README.md").is_file()
    assert not left.exists()
    assert of_others.is_dir()
    assert living.is_dir()


def test_an_own_estimator_has_the_same_name_in_every_table(tmp_path):
    runs = [trained(tmp_path / "runs", label, 1) for label in ("grpo", "gdpo")]
    runs[1] = replace(runs[1], label=Label("mine", "evil:x"))
    folder = exported(tmp_path, analyse(experiment_of(tmp_path, runs), draws=100))
    for stem in ("results", "advantages"):
        assert [row["estimator"] for row in rows_of(folder / f"{stem}.csv")][-1] == "mine"
    page = " ".join(Cells((tmp_path / "page.html").read_text("utf-8")).parts)
    advantages = page.partition("The same rollouts under every estimator")[2]
    assert "mine" in advantages
    assert "evil:x" not in advantages


LONG = (
    "=cmd|' /C calc'!A0 & {100 %} $x_1$ #1 ~ ^ \\input{/etc/passwd} <b>`*[x](y)*`" + " word" * 200
)


def hostile(folder, name, why):
    rewards = (Measured(name, 0.0, 1.0, 1.0), Measured(f"{name}2", -3.0, 3.0, 1.0))
    names = tuple(reward.name for reward in rewards)
    run = trained(folder / "runs", name, 1, steps=8, names=names)
    stuck = np.random.default_rng(0).random((8, 4, 2)) * [0, 1]
    for step in range(1, 9):
        record(run.path, name, step, stuck, names=names)
    broken = replace(run, seed=2, state="failed", why=why)
    return analyse(experiment_of(folder, [run, broken], rewards=rewards, name=name), draws=100)


def test_nothing_is_shortened_in_an_export(tmp_path):
    folder = exported(tmp_path, hostile(tmp_path, "reward", LONG))
    for stem in ("runs.csv", "runs.md"):
        assert (folder / stem).read_text(encoding="utf-8").count(" word") == 200
    assert "…" not in (folder / "findings.csv").read_text(encoding="utf-8")
    assert rows_of(folder / "findings.csv")


def test_a_name_is_no_formula_and_no_markup(tmp_path):
    folder = exported(tmp_path, hostile(tmp_path, LONG[:80], LONG))
    for file in folder.glob("*.csv"):
        for row in csv.reader(io.StringIO(file.read_text(encoding="utf-8"), newline="")):
            assert not [cell for cell in row if cell.startswith(("=", "+", "@"))]
            assert not [cell for cell in row if cell.startswith("-") and not float(cell) < 0]
    for file in folder.glob("*.md"):
        text = file.read_text(encoding="utf-8")
        assert "<b>" not in text
        assert not re.search(r"(?<!\\)\]\(", text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*TEXTS} - {"long line", "surrogates"}))
def test_hostile_names_leave_every_file_whole(tmp_path, kind):
    folder = exported(tmp_path, hostile(tmp_path, TEXTS[kind][:300], TEXTS[kind]))
    widths = {}
    for file in folder.iterdir():
        if file.suffix == ".svg":
            root = ElementTree.parse(file).getroot()
            assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
                "svg", "title", "desc", "rect", "g", "path", "text",
            }  # fmt: skip
        elif file.suffix == ".csv":
            rows = list(csv.reader(io.StringIO(file.read_text(encoding="utf-8"), newline="")))
            widths[file.name] = {len(row) for row in rows}
        else:
            text = file.read_text(encoding="utf-8")
            assert not {c for c in text if not c.isprintable()} - {"\n"}
    assert all(len(width) == 1 for width in widths.values())
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", file.name) for file in folder.iterdir())


TABLE = Table(
    "t",
    "a_b",
    ("name", "-x"),
    ((Name("-5"), Estimate("−0.50", "−1.00", "0.10")), (Name("=1"), "–"), (Name("a|b&c"), "−1")),
)


def test_a_csv_file_has_an_interval_in_three_columns():
    assert to_csv(TABLE).splitlines() == [
        'name,\'-x,"\'-x, low","\'-x, high"',
        "'-5,-0.50,-1.00,0.10",
        "'=1,,,",
        "a|b&c,-1,,",
    ]


def test_a_markdown_table_has_as_many_cells_in_every_row():
    rows = [line for line in to_markdown(TABLE).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}
    assert r"a\|b&amp;c" in rows[-1]
