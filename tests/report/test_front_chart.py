"""The picture and the tables of a trade-off have the terminal's numbers, whatever the names."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.experiments.test_analysis import run

from gdpo.errors import ConfigError
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.fronts import trade_off
from gdpo.lab.experiments.reading import Experiment, Measured
from gdpo.lab.report import front_summary, write_report
from gdpo.lab.report._front_chart import front_chart

ENDS = {
    "grpo w=1": (0.2, -1.0),
    "grpo w=0.5": (0.1, -2.0),
    "gdpo w=1": (0.3, 1.0),
    "gdpo w=0.5": (0.6, -0.5),
}
NAMES = ("x", "y")


def compared(ends, *, names=NAMES, seeds=3):
    rewards = (Measured(names[0], 0.0, 1.0, 1.0), Measured(names[1], -3.0, 3.0, 1.0))
    runs = tuple(
        replace(
            run(label, s),
            means={names[0]: np.full(100, x + 0.01 * s), names[1]: np.full(100, y + 0.1 * s)},
        )
        for label, (x, y) in ends.items()
        for s in range(seeds)
    )
    experiment = Experiment(
        "t", Path("r"), tuple(ends), tuple(range(seeds)), rewards, 100, runs, 0.8, frozenset()
    )
    return analyse(experiment, draws=100)


def printed(comparison, names=NAMES):
    console = Console(width=400)
    with console.capture() as capture:
        console.print(front_summary(comparison, names))
    return capture.get()


def page_of(folder, comparison, names=NAMES, **options):
    write_report(comparison, folder / "page.html", front=names, **options)
    return (folder / "page.html").read_text(encoding="utf-8")


def section_of(page):
    return page.partition('<section aria-labelledby="front">')[2].partition("</section>")[0]


def test_the_chart_has_a_point_for_each_variant_where_its_means_are():
    found = trade_off(compared(ENDS), NAMES)
    chart = front_chart(found)
    marks = {mark.label: mark for series in chart.series for mark in series.marks}
    assert list(marks) == list(ENDS)
    for number, point in enumerate(found.points, 1):
        mark = marks[point.label]
        assert (mark.x, mark.number) == (chart.across.at(point.first.value), number)
        assert mark.y == chart.up.at(point.second.value)
    assert marks["gdpo w=0.5"].x > marks["gdpo w=1"].x
    assert marks["gdpo w=0.5"].y > marks["gdpo w=1"].y, "pixels are counted from the top"
    assert marks["gdpo w=1"].cross.count("M") == 2, "an interval in each direction"


def test_estimators_have_different_markers():
    grpo, gdpo = front_chart(trade_off(compared(ENDS), NAMES)).series
    assert grpo.marker != gdpo.marker, "readable without colours"


def test_the_page_has_the_numbers_of_the_terminal(tmp_path):
    comparison = compared(ENDS)
    text, section = printed(comparison), section_of(page_of(tmp_path, comparison))
    numbers = re.findall(r"[−+]?\d\.\d\d+", text.partition("front: no variant")[0])
    assert len(numbers) == 4 * 6
    shown = re.sub(r"<title>.*?</title>", "", section)
    assert [n for n in numbers if n not in shown] == []
    assert section.count('class="variant"') == len(ENDS)
    assert section.count("mark off") == 1


def test_a_page_without_a_front_has_no_section(tmp_path):
    assert section_of(page_of(tmp_path, compared(ENDS), None)) == ""


def test_an_export_has_the_table(tmp_path):
    comparison = compared(ENDS)
    page_of(tmp_path, comparison, export=tmp_path / "export")
    folder, text = tmp_path / "export", printed(comparison)
    assert {path.name for path in folder.glob("front*")} == {"front.csv", "front.md"}
    with (folder / "front.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == list(ENDS)
    assert [row["front"] for row in rows] == ["yes", "no", "yes", "yes"]
    for row in rows:
        value = f"{row['y']} [{row['y, low']}, {row['y, high']}]".replace("-", "−")
        assert value in text
    point = trade_off(comparison, NAMES).points[2]
    ends = [float(rows[2][column]) for column in ("y", "y, low", "y, high")]
    assert ends == pytest.approx(
        [point.second.value, point.second.low, point.second.high], abs=0.01
    )
    assert "| `front` | csv, md |" in (folder / "README.md").read_text("utf-8")


def test_without_a_front_nothing_of_it_is_exported(tmp_path):
    page_of(tmp_path, compared(ENDS), None, export=tmp_path / "export")
    assert not list((tmp_path / "export").glob("front*"))


def test_points_have_the_number_of_their_row(tmp_path):
    section = section_of(page_of(tmp_path, compared(ENDS)))
    rows = re.findall(r"<td>(\d)</td><th scope=\"row\"><bdi>([^<]+)<", section)
    assert rows == [(str(i), label) for i, label in enumerate(ENDS, 1)]
    marks = re.findall(r"<title>([^<]+)</title>.*?>(\d)</text>", section)
    assert {(number, label) for label, number in marks} == set(rows)


def test_one_variant_with_one_seed_is_a_point_without_a_cross(tmp_path):
    comparison = compared({"gdpo": (0.5, 0.0)}, seeds=1)
    chart = front_chart(trade_off(comparison, NAMES))
    [[mark]] = [series.marks for series in chart.series]
    assert mark.cross == ""
    section = section_of(page_of(tmp_path, comparison, export=tmp_path / "export"))
    assert "0.500" in section


@pytest.mark.parametrize("missing", ["state", "nan", "absent"])
def test_a_variant_without_a_value_is_not_drawn_but_listed(tmp_path, missing):
    comparison = compared(ENDS)
    lost = [
        each
        if each.label != "gdpo w=1"
        else replace(each, state="running")
        if missing == "state"
        else replace(each, means=each.means | {"y": np.full(100, np.nan)})
        if missing == "nan"
        else replace(each, means={"x": each.means["x"]})
        for each in comparison.experiment.runs
    ]
    comparison = analyse(replace(comparison.experiment, runs=tuple(lost)), draws=100)
    section = section_of(page_of(tmp_path, comparison, export=tmp_path / "export"))
    assert section.count('class="variant"') == len(ENDS) - 1
    assert "<bdi>gdpo w=1</bdi></th>" in section
    assert "nan" not in section.lower()


def test_without_any_value_there_are_only_tables(tmp_path):
    comparison = compared(ENDS)
    lost = tuple(replace(each, state="running") for each in comparison.experiment.runs)
    comparison = analyse(replace(comparison.experiment, runs=lost), draws=100)
    section = section_of(page_of(tmp_path, comparison, export=tmp_path / "export"))
    assert "<figure" not in section
    assert "<bdi>gdpo w=1</bdi></th>" in section


@pytest.mark.parametrize(
    ("front", "message"), [(("x", "z"), r"no reward 'z'.*x and y"), (("x", "x"), "two rewards")]
)
def test_a_front_that_cannot_be_drawn_is_refused_like_in_the_terminal(tmp_path, front, message):
    comparison = compared(ENDS)
    errors = []
    for show in (
        lambda: write_report(comparison, tmp_path / "page.html", front=front),
        lambda: front_summary(comparison, front),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            show()
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
    assert not (tmp_path / "page.html").exists()


def test_names_are_never_markup(tmp_path):
    evil = '"><img/src=x/onerror=alert(1)>'
    names = (f"{evil}a", f"$x_1$ {evil}b\u202e")
    ends = {f"{evil} k=<b>": (0.2, 1.0), f"{evil} k=$x_1$": (0.3, 0.5), f"{evil}2 k=_": (0.1, 0.1)}
    page = page_of(tmp_path, compared(ends, names=names), names, export=tmp_path / "export")
    section = section_of(page)
    assert "<img" not in section
    assert "<b>:" not in section
    assert "\u202e" not in section
