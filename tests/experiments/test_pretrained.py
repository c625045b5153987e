"""The experiment on a pretrained model: its task, its problems, and its decisions."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.pretrained.__main__ import ended
from benchmarks.pretrained._hypotheses import (
    MEASURES,
    SHARE,
    Times,
    as_late,
    decide,
    earlier,
    equal,
    no_later,
    no_lower,
    verdict,
)
from benchmarks.pretrained._prepare import PHRASES, half_solved, prepare, problems, worked
from benchmarks.pretrained._tables import times as when_reached
from benchmarks.pretrained.arithmetic import ARITHMETIC
from tests.experiments.conftest import DECLARED

from gdpo.lab.experiments.reading import ComparedRun, Measured
from gdpo.testing import check_reward

SEEDS = 5
NOISE = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])


def times(*steps, never=0):
    reached = np.arange(len(steps)) >= never
    return Times(np.array(steps, dtype=float), reached)


@pytest.mark.parametrize("reward", ARITHMETIC.rewards, ids=lambda reward: reward.name)
def test_the_rewards_are_valid(reward):
    check_reward(reward)


def test_gold_responses_earn_every_reward():
    for row in problems()["pool"]:
        problem = ARITHMETIC.read_row(row)
        gold = ARITHMETIC.gold_completion(problem.reference)
        for reward in ARITHMETIC.rewards:
            assert reward.function(gold, problem.reference) == reward.high


@pytest.mark.parametrize(
    ("completion", "scores"),
    [
        ("6 * 7 = 42", (3.0, 1.0, 0.0)),
        ("6 * 7 = 42\n<answer>42</answer>", (3.0, 1.0, 1.0)),
        ("6 * 7 = 42\n<answer>41</answer>", (-3.0, 1.0, 1.0)),
        ("<answer>42</answer> is it", (3.0, 0.0, 0.0)),
        ("6 * 7 = ", (-3.0, 0.0, 0.0)),
        ("", (-3.0, 0.0, 0.0)),
        ("4" * 30_000, (-3.0, 0.0, 0.0)),
    ],
)
def test_rewards_of_a_completion(completion, scores):
    reference = {"problem": "6 * 7", "result": 42}
    assert tuple(r.function(completion, reference) for r in ARITHMETIC.rewards) == scores


def test_no_problem_is_in_two_parts():
    parts = problems()
    texts = [row["problem"] for rows in parts.values() for row in rows]
    assert len(texts) == len(set(texts))
    assert {name: len(rows) for name, rows in parts.items()} == {
        "held_out": 160,
        "pool": 640,
        "other_kinds": 128,
        "worked": 960,
    }


def test_training_has_only_sums_of_two_and_products():
    parts = problems()
    for row in parts["pool"] + parts["held_out"]:
        left, sign, right = row["problem"].split()
        assert row["result"] == {"+": int.__add__, "*": int.__mul__}[sign](int(left), int(right))
    for row in parts["other_kinds"]:
        assert "-" in row["problem"] or row["problem"].count("+") == 2


def test_training_keeps_the_problems_that_are_half_solved():
    rows = [{"problem": str(right)} for right in range(9)]
    kept = half_solved(rows, [6 * right / 8 - 3 for right in range(9)])
    assert [row["problem"] for row in kept] == ["2", "3", "4", "5", "6"]


def test_six_percent_of_the_worked_responses_have_the_tags():
    texts = [each["completion"][0]["content"] for each in worked(problems()["worked"])]
    assert sum("<answer>" in text for text in texts) / len(texts) == pytest.approx(0.06, abs=0.02)
    assert len({text[:10] for text in texts}) > len(PHRASES)


def test_h1_needs_an_order_that_chance_does_not_give():
    early, late = times(10, 11, 12, 13, 14), times(20, 21, 22, 23, 24)
    assert earlier("", early, late).verdict == "supported"
    assert earlier("", late, early).verdict == "refuted"
    assert earlier("", early, times(12, 13, 14, 9, 10)).verdict == "undecided"
    assert earlier("", early, late).value == -10
    assert earlier("", times(50, 52, 54, 56, 58), times(*[60] * 5, never=5)).verdict == "supported"


BASE = np.full(SEEDS, 0.5)
UNEVEN = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
UNKNOWN = np.array([np.nan, *NOISE[1:]])


@pytest.mark.parametrize(
    ("decision", "ours", "theirs", "expected"),
    [
        (no_lower, BASE + NOISE, BASE, "supported"),  # by the whole interval
        (no_lower, BASE + NOISE - 0.05, BASE, "undecided"),
        (no_lower, BASE + NOISE - 0.10, BASE, "refuted"),
        (no_lower, BASE + UNKNOWN, BASE, "undecided"),  # a run without an evaluation
        (equal, BASE + NOISE, BASE, "supported"),
        (equal, BASE + NOISE + 0.05, BASE, "undecided"),
        (equal, BASE + NOISE + 0.10, BASE, "refuted"),
        (equal, BASE + NOISE - 0.10, BASE, "refuted"),
        (equal, BASE, BASE, "supported"),  # although the interval is unknown
        (equal, UNEVEN + 0.01, UNEVEN, "supported"),  # equal up to rounding
    ],
)
def test_a_share_is_decided_within_its_margin(decision, ours, theirs, expected):
    assert decision("", ours, theirs, SHARE).verdict == expected


def test_h4_allows_five_steps():
    base = times(20, 21, 22, 23, 24)
    later = [no_later("", times(*(base.steps + n + 50 * NOISE)), base) for n in (0, 5, 10)]
    assert [each.verdict for each in later] == ["supported", "undecided", "refuted"]
    assert later[2].value == pytest.approx(10)


@pytest.mark.parametrize("decision", [no_later, as_late])
def test_steps_decide_nothing_if_two_runs_do_not_reach_the_threshold(decision):
    slow = times(60, 59, 58, 57, 56, never=1)
    assert decision("", slow, times(60, 59, 58, 57, 55, never=1)).verdict == "supported"
    assert decision("", slow, times(60, 60, 58, 57, 56, never=2)).verdict == "undecided"
    assert decision("", times(60, 60, 58, 57, 56, never=2), slow).verdict == "undecided"


def test_a_run_that_failed_early_never_reached_the_threshold():
    curve = np.array([0.0] * 10 + [1.0] * 10)
    runs = [made_run(curve), made_run(curve[:12], state="failed"), made_run(None, state="failed")]
    found = when_reached(runs, Measured("tags", 0.0, 1.0, 1.0), 60)
    assert found.steps.tolist() == [14, 60, 60]
    assert found.reached.tolist() == [True, False, False]


def made_run(curve, *, state="finished"):
    means = {} if curve is None else {"tags": curve}
    return ComparedRun("gdpo", 1, Path("run"), state, "", means)


def as_experiment(runs):
    folder = runs.with_name(f"{runs.name}-experiment")
    folder.mkdir()
    runs.rename(folder / "compare")
    return folder


def test_results_are_not_read_before_every_run_has_ended(two_estimators):
    unfinished = json.dumps({"rewards": DECLARED})
    (two_estimators / "grpo-seed-1" / "environment.json").write_text(unfinished)
    folder = as_experiment(two_estimators)
    with pytest.raises(SystemExit, match="have not ended: grpo-seed-1"):
        ended(folder)


def test_results_are_not_read_from_a_run_that_lost_a_step(two_estimators):
    file = two_estimators / "gdpo-seed-2" / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    folder = as_experiment(two_estimators)
    with pytest.raises(SystemExit, match=r"gdpo-seed-2/metrics.jsonl has 3 of 4 steps"):
        ended(folder)


def test_a_recipe_that_was_changed_is_not_overwritten(tmp_path):
    (tmp_path / "recipe.yaml").write_text("task: gsm8k\n")
    with pytest.raises(SystemExit, match="was changed"):
        prepare(tmp_path)
    assert (tmp_path / "recipe.yaml").read_text() == "task: gsm8k\n"


def test_every_hypothesis_is_decided_from_its_own_estimators():
    spread = np.array([0.0, 1, 2, 3, 4])
    steps = {"grpo": 30, "gdpo": 20, "mo_grpo": 20, "dara_symmetric": 15}
    when = {name: times(*(first + spread)) for name, first in steps.items()}
    right = {"grpo": 0.7, "gdpo": 0.5, "mo_grpo": 0.5, "dara_symmetric": 0.1}
    shares = {name: dict.fromkeys(MEASURES, value + NOISE) for name, value in right.items()}
    shares["mo_grpo"]["equation"] = np.full(SEEDS, 0.9) - NOISE
    decisions = decide(when, shares)
    found = [verdict(decisions[name]) for name in ("H1", "H2", "H3", "H4")]
    assert found == ["supported", "refuted", "refuted", "supported"]
