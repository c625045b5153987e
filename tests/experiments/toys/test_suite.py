"""Toys come out as experiments like those of trained models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdpo.errors import ConfigError
from gdpo.experiments.reading import Label, estimator_of
from gdpo.experiments.toys import TOYS, run_toy, suite, table
from gdpo.experiments.toys._suite import toy_experiment

SHORT = replace(TOYS["opposed"], steps=30)
HERE = "tests.experiments.toys.test_suite"


def fails(rewards, weights):
    if len(rewards) != 6:  # an estimator is tried out with 6 prompts
        raise RuntimeError("of the user's own")
    return np.zeros(rewards.shape[:2])


def test_an_experiment_has_a_run_per_label_and_seed_with_the_curves_of_the_toy():
    e = toy_experiment(SHORT, ["grpo", "gdpo"], [4, 2], processes=1, folder=Path("somewhere"))
    assert (e.name, e.labels, e.seeds, e.total_steps) == ("opposed", ("grpo", "gdpo"), (4, 2), 30)
    assert e.rewards == SHORT.measured
    assert [(r.label, r.seed, r.state, r.steps) for r in e.runs] == [
        (label, seed, "finished", 30) for label in ("grpo", "gdpo") for seed in (4, 2)
    ]
    assert len({run.path for run in e.runs}) == 4
    assert all(run.path.is_relative_to("somewhere/opposed") for run in e.runs)
    alone = run_toy(SHORT, "gdpo", seeds=[4, 2])
    np.testing.assert_array_equal(e.curves("gdpo", "heavier"), alone.curves["heavier"])


def test_two_processes_give_the_numbers_of_one():
    both = [toy_experiment(SHORT, ["grpo", "gdpo"], [0, 1], processes=n) for n in (1, 2)]
    for label in ("grpo", "gdpo"):
        np.testing.assert_array_equal(*(e.curves(label, "larger") for e in both))


def test_an_estimator_that_fails_is_recorded_and_the_others_go_on():
    e = toy_experiment(SHORT, [f"{HERE}:fails", "gdpo"], [0, 1], processes=1)
    assert [run.state for run in e.runs] == ["failed", "failed", "finished", "finished"]
    assert e.runs[0].why == "RuntimeError: of the user's own"
    assert "| failed | failed |" in table({"opposed": e})


def test_a_misspelt_estimator_is_found_before_anything_starts():
    seen = []
    with pytest.raises(ConfigError, match="gpdo"):
        suite(["gdpo", "gpdo"], [0], progress=lambda *now: seen.append(now), processes=1)
    assert not seen


def test_the_suite_runs_every_toy_and_reports_its_progress():
    seen, toys = [], [replace(toy, steps=3) for toy in TOYS.values()]
    done = suite(
        ["grpo", "gdpo"], [0], progress=lambda *now: seen.append(now), toys=toys, processes=1
    )
    assert list(done) == list(TOYS)
    assert [count for count, *_ in seen] == list(range(1, 2 * len(TOYS) + 1))
    assert seen[-1] == (2 * len(TOYS), 2 * len(TOYS), "ten_rewards", "gdpo")


def test_an_estimator_with_a_name_of_ones_own_runs_under_that_name():
    e = toy_experiment(SHORT, ["grpo", Label("ours", "gdpo")], [0], processes=2)
    assert e.labels == ("grpo", "ours")
    assert [run.path.name for run in e.runs] == ["grpo-seed-0", "ours-seed-0"]
    assert estimator_of(e.labels[1]) == "gdpo"
    alone = run_toy(SHORT, "gdpo", seeds=[0])
    np.testing.assert_array_equal(e.curves("ours", "heavier"), alone.curves["heavier"])
    assert "| `ours` |" in table({"opposed": e})


def test_the_table_counts_the_seeds_that_never_had_a_reward():
    rows = [[0.0] * wait + [1.0] * (30 - wait) for wait in (30, 10, 24, 20)]
    e = toy_experiment(SHORT, ["gdpo"], [0, 1, 2, 3], processes=1)
    made = [
        replace(run, means={"heavier": np.array(row), "larger": np.zeros(30)})
        for run, row in zip(e.runs, rows, strict=True)
    ]
    lines = table({"opposed": replace(e, runs=tuple(made))}).splitlines()
    assert lines[0] == "| opposed | heavier | larger |"
    assert lines[2] == "| `gdpo` | 24 [14 to >30], 1 never | never |"


def test_a_table_of_many_rewards_fits_into_80_columns_and_has_each_reward_once():
    toy = replace(TOYS["ten_rewards"], steps=3)
    e = toy_experiment(toy, ["grpo", Label("l" * 60, "gdpo")], [0], processes=1)
    tables = [text.splitlines() for text in table({"ten_rewards": e}).split("\n\n")]
    cells = [line[0].strip("| ").split(" | ") for line in tables]
    assert {first for first, *_ in cells} == {"ten_rewards"}
    assert [name for _, *names in cells for name in names] == [r.name for r in e.rewards]
    short = toy_experiment(toy, ["grpo"], [0], processes=1)
    lines = table({"ten_rewards": short}).splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if "grpo" in line]) < len(e.rewards)
