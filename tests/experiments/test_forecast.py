"""Forecasts from the first steps: their numbers, the AUC, and when a candidate is better."""

import numpy as np
import pytest
from benchmarks.forecast import (
    CANDIDATES,
    NUMBERS,
    Pair,
    auc,
    bootstrap,
    clearly_better,
    counts,
    first_steps,
    mean_auc,
    pairs_of,
    table_of,
)
from tests.experiments.conftest import write_run

from gdpo.lab.experiments.reading import ComparisonPlan
from gdpo.rollouts import Rollout, rollout_file, write_rollouts

RANGES = {"right": (-3.0, 3.0), "tags": (0.0, 1.0)}


def step(number, rewards, advantages):
    """Rollouts of a step, from rewards [prompt, sample, reward] and advantages [prompt, sample]."""
    return [
        Rollout(
            run="run",
            step=number,
            group_id=g,
            sample_id=s,
            prompt="",
            completion="",
            rewards=dict(zip(RANGES, rewards[g][s], strict=True)),
            weights={"right": 1.0, "tags": 1.0},
            advantage=advantages[g][s],
            num_tokens=1,
            finish_reason="stop",
        )
        for g in range(len(rewards))
        for s in range(len(rewards[g]))
    ]


def numbers_of(steps, reward):
    return dict(zip(NUMBERS, first_steps(steps, RANGES)[reward], strict=True))


def test_numbers_of_the_first_steps_by_hand():
    first = step(1, [[(-3, 0), (3, 0)], [(-3, 0), (-3, 0)]], [[-1, 1], [0, 0]])
    second = step(2, [[(-3, 0), (-3, 1)], [(3, 1), (3, 1)]], [[-2, 2], [0, 0]])
    sizes = np.std([-1, 1, 0, 0]), np.std([-2, 2, 0, 0])
    found = first_steps([first, second], RANGES)  # rate, signal, mean, slope; the candidates
    right, tags = 0.25 / 2, 0.5 / 2
    assert found["right"] == pytest.approx((0.5, 0.25, 0.375, 0, 1 / 3, right, right / sizes[0]))
    assert found["tags"] == pytest.approx((0.75, 0.25, 0.375, 0, 2 / 3, tags, tags / sizes[1]))


def test_slope_is_the_end_minus_the_start():
    steps = [step(n, [[(-3, n > 3), (-3, n > 2)]], [[-1, 1]]) for n in range(1, 6)]
    assert numbers_of(steps, "tags")["slope"] == 1.0


def test_a_reward_without_any_signal_has_zeros():
    flat = step(1, [[(3, 0), (3, 0)]], [[0, 0]])
    assert set(numbers_of([flat], "tags").values()) == {0.0}


def pair(number, learned, *, comparison="a", seed=0, reward="tags"):
    return Pair(comparison, seed, reward, (number,) * len(NUMBERS), learned)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([0.1, 0.2, 0.3, 0.4], 1.0), ([0.4, 0.3, 0.2, 0.1], 0.0), ([1, 1, 1, 1], 0.5),
     ([0, 1, 1, 2], 0.875)],
)  # fmt: skip
def test_auc_counts_ties_as_one_half(numbers, expected):
    pairs = [pair(n, i > 1) for i, n in enumerate(numbers)]
    assert np.all(auc(pairs) == expected)


def test_auc_agrees_with_counting_every_pair():
    rng = np.random.default_rng(0)
    numbers, learned = rng.integers(6, size=50), rng.random(50) < 0.4
    wins = [(a > b) + 0.5 * (a == b) for a in numbers[learned] for b in numbers[~learned]]
    pairs = [pair(float(n), bool(good)) for n, good in zip(numbers, learned, strict=True)]
    assert auc(pairs)[0] == pytest.approx([np.mean(wins)] * len(NUMBERS))


def test_within_a_reward_the_identity_of_the_reward_is_no_forecast():
    pairs = [pair(1.0, True, reward="format") for _ in range(5)]
    pairs += [pair(0.0, False, reward="correct") for _ in range(5)]
    assert auc(pairs)[0, 0] == 1.0
    assert np.isnan(auc(pairs)[1]).all()
    pairs += [pair(0.5, True), pair(0.6, False), pair(0.1, False, comparison="b")]
    assert auc(pairs)[1, 0] == 0.0


def test_a_task_whose_runs_agree_on_each_reward_is_not_in_the_mean_within_rewards():
    agreed = [pair(1.0, True, reward="format"), pair(0.0, False, reward="correct")]
    mixed = [pair(1.0, True), pair(0.0, False)]
    table = table_of([agreed, mixed])
    assert mean_auc(table, table).tolist() == [[1.0] * len(NUMBERS)] * 2
    assert not np.isnan(bootstrap([agreed, mixed], 2)).any()


def made_pairs(rng, runs, **strength):
    """Pairs of runs with two rewards, whose numbers follow the outcome with given strengths."""
    found = []
    for seed in range(runs):
        for reward in ("right", "tags"):
            learned = bool(rng.random() < 0.5)
            numbers = (strength.get(n.split()[0], 0) * learned + rng.normal() for n in NUMBERS)
            found.append(Pair("a", seed, reward, tuple(numbers), learned))
    return found


def test_a_strong_candidate_is_clearly_better_and_the_others_are_not():
    rng = np.random.default_rng(0)
    tasks = [made_pairs(rng, 100, rate=0.5, signal=0.5, forecast=3) for _ in range(2)]
    mean = np.mean([auc(pairs) for pairs in tasks], axis=0)
    found = clearly_better(mean, bootstrap(tasks, 100))
    assert dict(zip(CANDIDATES, found.tolist(), strict=True)) == {
        "influence": False,
        "forecast": True,
        "scaled forecast": False,
    }


def test_a_small_gain_is_not_clearly_better():
    mean = np.tile([0.80, 0.70, 0.70, 0.70, 0.84, 0.86, 0.86], (2, 1))
    drawn = np.tile(mean, (10, 1, 1))
    assert clearly_better(mean, drawn).tolist() == [False, True, True]
    drawn[:2, 0, 0] = 0.9
    assert clearly_better(mean, drawn).tolist() == [False, False, False]


def test_a_gain_must_also_hold_within_a_reward():
    mean = np.tile([0.5] * 4 + [0.9] * 3, (2, 1))
    mean[1, -1] = 0.5
    drawn = np.tile(mean, (10, 1, 1))
    assert clearly_better(mean, drawn).tolist() == [True, True, False]


def test_draws_keep_the_runs_of_a_seed_together():
    pairs = [pair(float(i), i % 2 == 0, seed=i // 2) for i in range(4)]
    drawn = bootstrap([pairs], 50)
    assert set(np.unique(drawn)) == {0.0, 0.25}


def test_a_task_needs_ten_pairs_of_both_kinds():
    learned = [pair(0.0, True)] * 10
    assert not counts(learned + [pair(0.0, False)] * 9)
    assert counts(learned + [pair(0.0, False)] * 10)


def test_runs_that_have_not_finished_are_listed_and_left_out(tmp_path):
    for seed, finished in ((1, True), (2, False)):
        curves = {"tags": [0.2] * 9 + [0.8 - 1e-12], "right": [3.0] * 10}
        declared = {name: dict(zip(("low", "high"), RANGES[name], strict=True)) for name in curves}
        path = write_run(
            tmp_path, "gdpo", seed, curves, finished=finished, steps=10, declared=declared
        )
        for number in range(1, 6):
            rollouts = step(number, [[(3, 0), (3, 0.4)]], [[-1, 1]])
            write_rollouts(rollout_file(path / "rollouts", number), rollouts)
    ComparisonPlan((path / "recipe.yaml").read_text(), ("gdpo",), (1, 2)).write(tmp_path)
    pairs, left_out = pairs_of([tmp_path])
    assert [(p.seed, p.reward, p.learned) for p in pairs] == [(1, "tags", True)]
    assert left_out == [str(path)]
