import io

import pytest
from benchmarks.demo._report import Curve, conclusions, draw_picture, report_table
from benchmarks.demo.run import TrainingView, trainings_display, trend
from rich.console import Console

from gdpo.lab.tasks import TASKS


def curve(values, low=0.0, high=1.0, label="gdpo", reward="format"):
    return Curve(label, reward, low, high, tuple(values))


def text_of(*renderables):
    console = Console(record=True, width=120, file=io.StringIO())
    for renderable in renderables:
        console.print(renderable)
    return console.export_text()


def test_start_and_end_are_means_of_a_tenth_of_the_steps():
    found = curve([0.0, 0.2] + [0.5] * 16 + [0.8, 1.0])
    assert found.start == pytest.approx(0.1)
    assert found.end == pytest.approx(0.9)


def test_the_threshold_is_four_fifths_of_the_way_up_the_range():
    assert curve([0.0], -3.0, 3.0).threshold == pytest.approx(1.8)


def test_a_curve_has_reached_its_threshold_when_five_steps_have_it_on_average():
    assert curve([0.0] * 10 + [1.0] * 10).steps_to_threshold == 14  # 4 of steps 10 to 14 are 1
    assert curve([1.0] + [0.0] * 19).steps_to_threshold is None
    assert curve([1.0] * 20).steps_to_threshold == 5
    assert curve([0.9, 0.9]).steps_to_threshold == 2
    assert curve([-3.0] * 9 + [1.9] * 9, -3.0, 3.0).steps_to_threshold == 14


def test_smoothing_keeps_a_constant_and_the_number_of_steps():
    assert curve([0.25] * 100).smooth == (0.25,) * 100
    assert len(curve([0.1]).smooth) == 1


def test_the_table_has_a_row_per_reward_and_estimator():
    shown = text_of(
        report_table(
            [
                curve([0.1] * 50, label="grpo"),
                curve([0.1] * 20 + [0.95] * 30),
                curve([2.0] * 50, -3.0, 3.0, "grpo", "correctness"),
                curve([-1.0] * 50, -3.0, 3.0, "gdpo", "correctness"),
            ]
        )
    )
    rows = [line.replace("│", " ").split() for line in shown.splitlines() if "│" in line]
    assert rows == [
        ["format", "(0", "to", "1)", "GRPO", "0.10", "0.10", "0.8", "never"],
        ["GDPO", "0.10", "0.95", "0.8", "25"],
        ["correctness", "(-3", "to", "3)", "GRPO", "2.00", "2.00", "1.8", "5"],
        ["GDPO", "-1.00", "-1.00", "1.8", "never"],
    ]


def reaches(step, label):
    """A curve whose mean of five steps reaches 80 % of the range at a step, or never."""
    start = 50 if step is None else step - 4
    return curve(([0.0] * start + [1.0] * 50)[:50], label=label)


@pytest.mark.parametrize(
    ("grpo", "gdpo", "ends", "expected"),
    [
        (None, None, ("0.00", "0.00"), "Neither reached 80 % of the range by step 50."),
        (None, 20, ("0.00", "1.00"), "Only GDPO reached 80 % of the range (step 20)."),
        (30, None, ("1.00", "0.00"), "Only GRPO reached 80 % of the range (step 30)."),
        (25, 25, ("1.00", "1.00"), "Both reached 80 % of the range at step 25."),
        (30, 20, ("1.00", "1.00"), "GDPO reached 80 % of the range 10 steps earlier (step 20"),
        (20, 30, ("1.00", "1.00"), "GRPO reached 80 % of the range 10 steps earlier (step 20"),
    ],
)
def test_the_conclusion_is_computed_from_the_curves(grpo, gdpo, ends, expected):
    both = [reaches(grpo, "grpo"), reaches(gdpo, "gdpo")]
    [line] = conclusions(both)
    assert line.startswith(f"format: GRPO ended at {ends[0]}, GDPO ended at {ends[1]}. {expected}")


def test_a_run_of_one_step_has_a_conclusion_per_reward():
    both = [
        curve([value], -3.0, 3.0, label, reward)
        for reward, value in (("format", 3.0), ("correctness", -1.5))
        for label in ("grpo", "gdpo")
    ]
    first, second = conclusions(both)
    assert first.startswith("format")
    assert "Both" in first
    assert "ended at -1.50" in second
    assert "Neither" in second


def test_the_picture_is_drawn_for_one_step_and_for_many(tmp_path):
    for steps in (1, 30):
        path = tmp_path / f"{steps}.png"
        both = [curve([0.5] * steps, label=label) for label in ("grpo", "gdpo")]
        draw_picture(path, both, setup="A test.")
        assert path.read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2, "no half-written picture is left"


def test_a_trend_is_on_the_scale_of_the_reward():
    assert trend([0.0, 0.0], 0.0, 1.0) == "▁▁"
    assert trend([1.0, 1.0], 0.0, 1.0) == "██"
    assert trend([-3.0, 3.0], -3.0, 3.0) == "▁█"
    assert trend([], 0.0, 1.0) == ""


def rows(steps):
    return [
        {"step": i + 1, "rewards/format/mean": i / 100, "rewards/correctness/mean": -1.0}
        for i in range(steps)
    ]


def test_output_that_is_not_a_terminal_gets_a_line_every_ten_steps_and_at_the_end():
    console = Console(record=True, width=100, file=io.StringIO())
    view = TrainingView("gdpo", 25)
    with trainings_display(console, [view], TASKS["tool_calling"].rewards) as update:
        for steps in (0, 3, 12, 13, 25, 25):
            view.rows = rows(steps)
            update()
    assert console.export_text().splitlines() == [
        "GDPO step 10 of 25: format 0.09, correctness -1.00",
        "GDPO step 25 of 25: format 0.24, correctness -1.00",
    ]


def test_a_terminal_shows_both_estimators_together():
    console = Console(record=True, width=110, force_terminal=True, file=io.StringIO())
    views = [TrainingView("grpo", 25, rows(5)), TrainingView("gdpo", 25)]
    with trainings_display(console, views, TASKS["tool_calling"].rewards) as update:
        update()
    shown = console.export_text()
    for expected in ("GRPO", "step 5 of 25", "GDPO", "starting", "format (0 to 1)", "0.04"):
        assert expected in shown
