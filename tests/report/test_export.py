"""An export has the numbers of a comparison as CSV files, and overwrites nothing."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from tests.refusals import config_error
from tests.report.hostile import TEXTS
from tests.report.runs import experiment_of, unrecorded

from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import Label, Measured
from gdpo.lab.report import write_report

FILES = {"results.csv", "ends.csv", "runs.csv", "curves.csv"}


def exported(folder, comparison):
    """Return the rows of each exported file."""
    write_report(comparison, folder / "page.html", export=folder / "export")
    assert {path.name for path in (folder / "export").iterdir()} == FILES
    return {path.stem: rows_of(path) for path in (folder / "export").iterdir()}


def rows_of(file):
    return list(csv.DictReader(io.StringIO(file.read_text("utf-8"), newline="")))


def compared(folder, *, seeds=range(5), labels=("grpo", "gdpo"), **options):
    """Return a comparison in which each label ends 0.2 higher than the one before."""
    runs = [
        replace(run, means={n: np.full(12, 0.1 + 0.2 * k + 0.01 * seed) for n in run.means})
        for k, label in enumerate(labels)
        for seed in seeds
        for run in [unrecorded(label, seed, folder)]
    ]
    return analyse(experiment_of(folder, runs, **options), draws=100)


def test_the_results_are_those_of_the_comparison_with_intervals_and_p_values(tmp_path):
    comparison = compared(tmp_path)
    grpo, gdpo = exported(tmp_path, comparison)["results"][:2]
    outcome, found = comparison.outcome("gdpo", "format"), comparison.differences[0]
    assert (gdpo["reward"], gdpo["estimator"], gdpo["runs"]) == ("format", "gdpo", "5")
    for column, value in {
        "final": outcome.final.value,
        "final, low": outcome.final.low,
        "difference": found.final.value,
        "p corrected": found.p_adjusted,
        "p smallest": found.p_floor,
    }.items():
        assert float(gdpo[column]) == value, column
    assert grpo["difference"] == grpo["p corrected"] == "", "the baseline"
    assert gdpo["median steps"] == "", "not reached"


def test_the_end_of_a_sweep_is_one_row_for_each_variant_over_its_ended_runs(tmp_path):
    labels = ("gdpo length.weight=1", Label("mine length.weight=0.5", "a:b"))
    comparison = compared(tmp_path, seeds=range(3), labels=labels)
    first, second = exported(tmp_path, comparison)["ends"]
    assert (first["variant"], second["variant"]) == labels
    assert (first["estimator"], second["estimator"]) == ("gdpo", "a:b")
    # Each seed adds 0.01: t(2) x 0.01 / sqrt(3)
    assert float(second["format"]) == pytest.approx(0.31)
    assert float(second["format, high"]) == pytest.approx(
        0.31 + 4.3027 * 0.01 / np.sqrt(3), rel=1e-3
    )
    *others, last = comparison.experiment.runs
    running = (*others, replace(last, state="running"))
    comparison = analyse(replace(comparison.experiment, runs=running), draws=100)
    (tmp_path / "later").mkdir()
    _, second = exported(tmp_path / "later", comparison)["ends"]
    assert (second["runs"], float(second["format"])) == ("2", pytest.approx(0.305))


def test_every_run_and_every_step_is_there(tmp_path):
    comparison = compared(tmp_path, seeds=(1, 2))
    *others, last = comparison.experiment.runs
    short = replace(
        last, state="failed", why="out\nof memory", means={"format": np.array([0.1, np.nan])}
    )
    short = replace(short, lengths={"mean": np.array([7.0, 8.0])})
    comparison = analyse(replace(comparison.experiment, runs=(*others, short)), draws=100)
    found = exported(tmp_path, comparison)
    *_, run = found["runs"]
    assert (run["state"], run["steps"], run["reason"]) == ("failed", "2", "out of memory")
    assert float(found["runs"][0]["final format"]) == pytest.approx(0.11)
    assert len(found["curves"]) == 3 * 12 + 2
    before, end = found["curves"][-2:]
    assert (before["format"], before["mean length"]) == ("0.1", "7.0")
    assert (end["seed"], end["step"], end["format"]) == ("2", "2", "")


@pytest.mark.parametrize("kind", ["file", "full", "below a file"])
def test_what_is_no_empty_folder_is_refused_before_anything_is_written(tmp_path, kind):
    folder = tmp_path / "export"
    if kind == "full":
        folder.mkdir()
    mine = folder / "mine.txt" if kind == "full" else folder
    mine.write_text("mine")
    target = folder / "a" if kind == "below a file" else folder
    with config_error(r"--export .*export.*new folder"):
        write_report(compared(tmp_path), tmp_path / "page.html", export=target)
    assert not (tmp_path / "page.html").exists()
    assert mine.read_text() == "mine"


def test_an_empty_folder_is_filled_and_a_missing_parent_is_made(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "a" / "b"):
        write_report(compared(tmp_path), tmp_path / "page.html", export=folder)
        assert {path.name for path in folder.iterdir()} == FILES


@pytest.mark.parametrize(
    "name",
    [
        "=cmd|' /C calc'!A0",
        "+1",
        "@x",
        "".join(TEXTS[k][:300] for k in sorted({*TEXTS} - {"long line", "surrogates"})),
    ],
)
def test_a_name_is_no_formula_and_breaks_no_row(tmp_path, name):
    rewards = (Measured(name, 0.0, 1.0, 1.0), Measured(f"{name}2", -3.0, 3.0, 1.0))
    runs = [unrecorded(name, 1, tmp_path, rewards=rewards, state="failed", why=name)]
    comparison = analyse(experiment_of(tmp_path, runs, rewards=rewards, name=name), draws=100)
    exported(tmp_path, comparison)
    for file in (tmp_path / "export").iterdir():
        rows = list(csv.reader(io.StringIO(file.read_text("utf-8"), newline="")))
        assert len({len(row) for row in rows}) == 1
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@"))]
