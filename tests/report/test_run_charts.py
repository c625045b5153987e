"""The axes show the effect, and no panel is empty."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.report.runs import REWARDS, experiment_of, unrecorded

from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import Measured
from gdpo.lab.report import write_report
from gdpo.lab.report._run_charts import account, curves, survival
from gdpo.report.charts import Chart, fitted, ticks


def with_means(folder, label, seed, values):
    run = unrecorded(label, seed, folder, steps=len(values))
    return replace(run, means={**run.means, "format": np.asarray(values, np.float64)})


def analysed(folder, runs):
    return analyse(experiment_of(folder, runs), draws=100)


def compared(folder, **means):
    """A comparison from the curves of the seeds of each label, in the reward `format`."""
    runs = [
        with_means(folder, label, seed, values)
        for label, each in means.items()
        for seed, values in enumerate(each)
    ]
    return analysed(folder, runs)


def page_of(comparison, folder):
    write_report(comparison, folder / "page.html")
    return (folder / "page.html").read_text("utf-8")


def constant(value):
    return [value] * 12


def stepping(at):
    """A curve whose mean over 5 steps reaches the threshold at a step."""
    return [0.0] * (at - 4) + [1.0] * (16 - at)


def test_an_axis_fits_curves_that_cover_a_small_part_of_the_range_and_the_page_says_so(tmp_path):
    comparison = compared(tmp_path, grpo=[constant(0.029)], gdpo=[constant(0.114)])
    chart = curves(comparison, REWARDS[0])
    assert 0.02 < chart.low < 0.029
    assert 0.114 < chart.high < 0.125
    assert chart.up(0.029) - chart.up(0.114) > 0.85 * (chart.BOTTOM - chart.TOP)
    texts = [line["text"][0] for line in chart.data()["lines"]]
    assert texts == ["0.029", "0.114"], "the digits of the range and not of the axis"
    note = chart.axis_note
    assert "0.0247 to 0.118" in note
    assert "0 to 1" in note
    page = page_of(comparison, tmp_path)
    assert page.count(note) == 1
    assert page.count('class="axis-note"') == 1, "the other reward covers its range"


def test_a_threshold_outside_of_the_axis_is_not_drawn(tmp_path):
    low = curves(compared(tmp_path, grpo=[constant(0.1)], gdpo=[constant(0.2)]), REWARDS[0])
    wide = curves(compared(tmp_path, grpo=[constant(0.1)], gdpo=[stepping(8)]), REWARDS[0])
    assert low.threshold == wide.threshold == pytest.approx(0.8)
    assert (low.shows_threshold, wide.shows_threshold) == (False, True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.2, 0.4], (0.19, 0.41)),
        ([0.0, 0.4], (0.0, 0.42)),
        ([0.7, 1.0], (0.685, 1.0)),
        ([0.1, 0.8], (0.0, 1.0)),
        ([0.5, 0.5], (0.0, 1.0)),
        ([1.0, np.nan], (0.0, 1.0)),
        ([], (0.0, 1.0)),
        ([0.0, 1.5], (0.0, 1.575)),
        ([-0.5, 1.5], (-0.6, 1.6)),
    ],
)
def test_an_axis_has_a_margin_and_stays_in_the_range_that_the_values_keep_to(values, expected):
    assert fitted(np.array(values), 0.0, 1.0) == pytest.approx(expected)


def test_an_axis_without_a_range_is_not_empty():
    assert fitted(np.array([2.0]), 2.0, 2.0) == (2.0, 3.0)


def test_nobody_everybody_at_once_and_one_seed_have_no_chart_of_times(tmp_path):
    nobody = compared(tmp_path, grpo=[constant(0.1)] * 2, gdpo=[constant(0.2)] * 2)
    at_once = compared(tmp_path, grpo=[constant(1.0)] * 2, gdpo=[constant(0.9)] * 2)
    one_seed = compared(tmp_path, grpo=[stepping(8)], gdpo=[constant(0.1)])
    assert [survival(each, REWARDS[0]) for each in (nobody, at_once, one_seed)] == [None] * 3


def test_runs_that_reached_the_threshold_at_different_steps_are_drawn(tmp_path):
    curve = {"grpo": [stepping(8), stepping(9)], "gdpo": [stepping(7), constant(0.1)]}
    chart = survival(compared(tmp_path, **curve), REWARDS[0])
    assert isinstance(chart, Chart)
    assert [line.censored for line in chart.lines] == [(), (12.0,)]


@pytest.mark.parametrize(("seeds", "bands"), [(4, False), (5, True)])
def test_only_five_runs_have_a_band(tmp_path, seeds, bands):
    curve = {"grpo": [stepping(5 + k) for k in range(seeds)], "gdpo": [constant(0.1)] * seeds}
    chart = survival(compared(tmp_path, **curve), REWARDS[0])
    assert [line.low is not None for line in chart.lines] == [bands] * 2


def test_there_is_no_band_once_all_runs_have_reached_the_threshold(tmp_path):
    curve = {"grpo": [stepping(5 + k) for k in range(5)], "gdpo": [constant(0.1)] * 5}
    grpo, gdpo = survival(compared(tmp_path, **curve), REWARDS[0]).lines
    assert (grpo.value[8], grpo.value[9]) == (pytest.approx(20), 0.0)
    assert np.isfinite(grpo.low[5:9]).all()
    assert np.isnan(grpo.high[9:]).all()
    assert np.isfinite(gdpo.high).all()


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ((0.349, 2.97), [0.5, 1, 1.5, 2, 2.5]),
        ((0.0247, 0.118), [0.04, 0.06, 0.08, 0.1]),
        ((-3, 3), [-2, 0, 2]),
    ],
)
def test_an_axis_has_at_least_three_ticks_at_round_numbers(ends, expected):
    assert ticks(*ends) == pytest.approx(expected)


def test_a_run_without_a_step_has_no_time(tmp_path):
    runs = [unrecorded("grpo", seed, tmp_path, steps=12 * (seed < 2)) for seed in range(3)]
    reward = Measured("format", 0.0, 1.0, 1.0)
    assert survival(analysed(tmp_path, runs), reward) is None


def accounted(folder, *, windows=((11, 0.25, -0.5, 0.1, -0.2), (21, 0.1, 0.2, 0.0, 0.3)), seeds=1):
    """Runs with the account of the reward `format` in windows that end before a step."""
    keys = ("by/format", "by/correct", "rest", "measured")
    table = {f"format/{key}": np.full(24, np.nan) for key in keys}
    for step, *values in windows:
        for key, value in zip(keys, values, strict=True):
            table[f"format/{key}"][step - 1] = value
    runs = [
        replace(with_means(folder, "gdpo", seed, [0.5] * 24), account=table)
        for seed in range(seeds)
    ]
    return analysed(folder, runs)


def test_the_account_of_a_reward_is_stacked_in_its_windows(tmp_path):
    comparison = accounted(tmp_path)
    (chart,) = account(comparison)  # the other reward has no account
    assert chart.title == "format"
    assert chart.x.tolist() == [0, 0, 10, 10, 10, 20]
    lines = {line.label: line for line in chart.lines}
    assert list(lines) == ["format", "correct", "rest", "measured change"]
    bands = {
        label: [sorted([round(line.low[place], 6), round(line.high[place], 6)]) for place in (1, 4)]
        for label, line in lines.items()
        if line.low is not None
    }
    assert bands == {
        "format": [[0, 0.25], [0, 0.1]],
        "correct": [[-0.5, 0], [0.1, 0.3]],
        "rest": [[0.25, 0.35], [0.3, 0.3]],
    }
    assert lines["measured change"].value[[1, 2, 4, 5]].tolist() == [-0.2, -0.2, 0.3, 0.3]
    assert all(np.isnan(line.value[[0, 3]]).all() for line in chart.lines)
    assert (chart.low, chart.high) == pytest.approx((-0.5, 0.35))
    assert [line["text"][1] for line in chart.data()["lines"]] == ["+0.25", "-0.5", "+0.1", "-0.2"]
    page = page_of(comparison, tmp_path)
    assert "What changed each reward" in page
    assert "Each block is a window of 10 steps" in page


def test_a_window_whose_total_does_not_agree_shows_the_measured_change_alone(tmp_path):
    nothing = (np.nan,) * 3
    (chart,) = account(accounted(tmp_path, windows=[(11, *nothing, 0.5)]))
    *parts, measured = chart.data()["lines"]
    assert [line["text"][2] for line in parts] == ["–"] * 3
    assert measured["text"][2] == "+0.5"
    assert (chart.low, chart.high) == (0, 0.5)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_window_whose_measured_change_is_no_number_is_left_out(tmp_path, number):
    whole, broken = (11, 0.25, -0.5, 0.1, -0.2), (21, 0.1, 0.2, number, number)
    (chart,) = account(accounted(tmp_path, windows=(whole, broken)))
    assert chart.x.tolist() == [0, 0, 10]
    assert account(accounted(tmp_path, windows=(broken,))) == []


def test_windows_in_a_log_of_several_steps_are_not_drawn(tmp_path):
    """The row of step 20 has the window of steps 1 to 10."""
    (run,) = accounted(tmp_path, windows=((20, 0.25, -0.5, 0.1, -0.2),)).experiment.runs
    sparse = np.where(np.arange(24) % 10 == 9, 0.5, math.nan)
    run = replace(run, means=dict.fromkeys(run.means, sparse))
    assert account(analysed(tmp_path, [run])) == []


def test_several_runs_and_runs_without_an_account_have_no_chart_of_it(tmp_path):
    assert account(accounted(tmp_path, seeds=2)) == []
    comparison = compared(tmp_path, gdpo=[constant(0.5)])
    assert account(comparison) == []
    assert "What changed each reward" not in page_of(comparison, tmp_path)
