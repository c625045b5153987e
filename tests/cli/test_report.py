"""`gdpo report` writes a page; `--export` writes a folder, and overwrites none."""

import csv

import pytest
from tests.experiments.conftest import write_run


@pytest.fixture
def runs(tmp_path):
    for label, level in (("grpo", 0.1), ("gdpo", 0.8)):
        for seed in range(5):
            write_run(tmp_path / "runs", label, seed, {"format": [level + seed / 100] * 4})
    return tmp_path / "runs"


def test_the_summary_is_printed_and_its_numbers_are_exported(printed, runs, tmp_path):
    out = printed("report", runs, "--export", tmp_path / "paper")
    assert str(tmp_path / "paper") in out
    assert "gdpo ends 0.7" in " ".join(out.split())
    assert "raw" in out
    assert len(out.splitlines()) <= 20
    assert (runs / "report.html").is_file()
    with (tmp_path / "paper" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["estimator"] for row in rows] == ["grpo", "gdpo"]
    assert float(rows[1]["difference"]) == pytest.approx(0.7)
    assert (tmp_path / "paper" / "curves.csv").is_file()


def test_a_folder_without_runs_is_named(mistake, tmp_path):
    assert "contains no run" in mistake("report", tmp_path)


@pytest.mark.parametrize("path", [".", "../paper", "../link"])
def test_the_current_folder_or_a_link_is_filled(printed, runs, tmp_path, monkeypatch, path):
    (tmp_path / "paper").mkdir()
    (tmp_path / "link").symlink_to("paper")
    monkeypatch.chdir(tmp_path / "paper")
    printed("report", runs, "--export", path)
    assert (tmp_path / "paper" / "ends.csv").is_file()
