"""What a run shows, and what it says at its end."""

import io

import pytest
import yaml
from rich.console import Console

from gdpo.lab.recipes.recipe import DataConfig, Recipe, RewardConfig
from gdpo.lab.runs.summary import duration, readme, reward_changes, summary_table
from gdpo.lab.training._progress import RunView, dashboard, one_line, show
from gdpo.lab.training.preflight import quiet
from gdpo.rewards import Reward

REWARDS = [
    Reward("format", lambda completion, reference: 0.0, low=0, high=1),
    Reward("correct[ness]", lambda completion, reference: 0.0, low=-3, high=3),
]


def row(step, **figures):
    return {
        "step": step,
        "loss": 0.0,
        "step_time": 2.0,
        "rewards/format/mean": step / 100,
        "rewards/format/influence_share": 0.25,
        "rewards/format/zero_variance_groups": 0.5,
        "rewards/correct[ness]/mean": -1.0,
        "completions/mean_length": 80.4,
        "completions/clipped_ratio": 0.1,
        "learning_rate": 1e-6,
        **figures,
    }


@pytest.fixture
def view():
    view = RunView("tiny", [(reward.name, 1.0) for reward in REWARDS], total_steps=100)
    view.rows.extend(row(step) for step in range(1, 11))
    return view


def printed(renderable):
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def line_of(text, reward):
    return next(line for line in text.splitlines() if line.startswith(reward))


def test_a_share_just_below_0_is_not_shown_as_minus_0(view):
    view.rows.append(row(11, **{"rewards/format/influence_share": -0.001}))
    assert "influence share 0 %" in one_line(view)


def test_the_dashboard_has_a_line_per_reward(view):
    text = printed(dashboard(view))
    assert "step 10 of 100" in text
    assert "3:00 min left" in text
    format_line = line_of(text, "format")
    assert "0.100" in format_line
    assert "50 %" in format_line
    assert "25 %" in format_line
    other = line_of(text, "correct[ness]")
    assert "-1.000" in other
    assert "–" in other  # what was not measured is not 0
    assert "80 tokens per response, 10 % truncated" in text


def test_without_a_terminal_there_is_a_line_per_step(view):
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    with show(view, console) as display:
        display.update()
        view.rows.append(row(11))
        display.update()
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(
        "step 11/100 | format 0.110, zero variance in 50 %, influence share 25 %"
    )
    assert "2:58 min left" in lines[1]


def test_a_terminal_gets_a_display_in_place(view):
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    with show(view, console) as display:
        display.update()
        display.stopping()
        display.update()
    assert "Ctrl-C again" in console.file.getvalue()


def test_a_log_is_reported_of_a_stop_too(view, capfd):
    with show(view, Console(file=io.StringIO(), force_terminal=False)) as display:
        display.stopping()
    assert "Ctrl-C again" in capfd.readouterr().err


def test_missing_figures_are_no_zeros():
    view = RunView("tiny", [("format", 1.0)], total_steps=2)
    view.rows.append({"step": 1, "rewards/format/mean": None, "loss": 0.0})
    assert "format –, zero variance in –, influence share –" in one_line(view)


def step_without_a_generation(step):
    return {"step": step, "loss": 0.0, "step_time": 2.0, "learning_rate": 1e-6}


def test_a_step_without_a_generation_shows_the_figures_of_its_generation(view):
    view.rows.append(step_without_a_generation(11))
    assert one_line(view).startswith(
        "step 11/100 | format 0.100, zero variance in 50 %, influence share 25 %"
    )
    assert "80 tokens per response, 10 % truncated" in one_line(view)
    text = printed(dashboard(view))
    format_line = line_of(text, "format")
    assert all(figure in format_line for figure in ("0.100", "50 %", "25 %"))
    assert "80 tokens per response, 10 % truncated" in text


def test_what_the_newest_generation_could_not_measure_is_not_taken_from_an_older_one(view):
    view.rows.append({**row(11), "rewards/format/mean": None})
    assert "format –, zero variance" in one_line(view)


def test_only_steps_with_a_generation_count_for_the_change_of_a_reward():
    rows = [
        row(step) if step % 4 == 1 else step_without_a_generation(step) for step in range(1, 81)
    ]
    first, _ = reward_changes(rows, REWARDS, [1.0, 1.0])
    assert (first.start, first.end) == pytest.approx((0.03, 0.75))  # steps 1, 5 and 73, 77
    short, _ = reward_changes(rows[:4], REWARDS, [1.0, 1.0])
    assert short.end == pytest.approx(0.01)


def test_durations_are_rounded():
    assert duration(59.6) == "1:00 min"
    assert duration(3599.7) == "1:00 h"


def test_a_reward_changes_from_its_first_to_its_last_tenth():
    rows = [row(step) for step in range(1, 21)] + [{"step": 20, "eval_reward": 9.0}]
    first, second = reward_changes(rows, REWARDS, [1.0, 0.5])
    assert (first.start, first.end) == pytest.approx((0.015, 0.195))
    assert first.change == pytest.approx(0.18)
    assert (second.weight, second.low, second.high) == (0.5, -3, 3)
    table = printed(summary_table([first, second]))
    assert "+0.180" in table
    assert "correct[ness]" in table


def test_the_table_has_the_last_weight_if_a_schedule_or_a_request_changes_it():
    rows = [row(step) | {f"rewards/{REWARDS[0].name}/weight": 1 / step} for step in (1, 2, 4)]
    first, second = reward_changes(rows, REWARDS, [1.0, 0.5])
    assert (first.weight, second.weight) == (0.25, 0.5)


def test_a_reward_that_was_never_measured_has_no_change():
    (change, _) = reward_changes([{"step": 1, "loss": 0.0}], REWARDS, [1.0, 1.0])
    assert change.start is None
    assert change.change is None
    (change, _) = reward_changes([], REWARDS, [1.0, 1.0])
    assert change.end is None


def test_libraries_are_quiet_and_downloads_are_not():
    import logging
    import warnings

    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging as hf

    before = (hf.get_verbosity(), hf.is_progress_bar_enabled(), logging.getLogger("trl").level)
    with quiet():
        warnings.warn("of a library", FutureWarning, stacklevel=1)  # an error, were it not silenced
        assert hf.get_verbosity() == logging.ERROR
        assert not hf.is_progress_bar_enabled()
        assert not are_progress_bars_disabled()
        assert logging.getLogger("trl").level == logging.ERROR
        with pytest.raises(UserWarning):
            warnings.warn("of a user", UserWarning, stacklevel=1)
    after = (hf.get_verbosity(), hf.is_progress_bar_enabled(), logging.getLogger("trl").level)
    assert after == before


def test_the_readme_has_the_metadata_of_a_model_card():
    recipe = Recipe(
        task="gsm8k",
        model="Qwen/Qwen2.5-1.5B-Instruct",
        data=DataConfig(source="openai/gsm8k"),
        rewards=(RewardConfig(name="correctness"), RewardConfig(name="format", weight=0.5)),
    )
    _, head, text = readme(recipe, {"seed": 3}, (), steps=3).split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "Qwen/Qwen2.5-1.5B-Instruct",
        "datasets": ["openai/gsm8k"],
        "tags": ["gdpo", "trl", "multi-reward", "gsm8k"],
    }
    assert text.lstrip().startswith("# gsm8k-gdpo\n")
