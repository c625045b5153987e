"""Forecasts from the first steps: their numbers, the AUC, and when a candidate is better."""

import numpy as np
import pytest
from benchmarks.forecast import Pair, auc, aucs, bootstrap, clearly_better, counts, first_steps

from gdpo.rollouts import Rollout

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


def test_numbers_of_the_first_steps_by_hand():
    first = step(1, [[(-3, 0), (3, 0)], [(-3, 0), (-3, 0)]], [[-1, 1], [0, 0]])
    second = step(2, [[(-3, 0), (-3, 1)], [(3, 1), (3, 1)]], [[-2, 2], [0, 0]])
    numbers = first_steps([first, second], RANGES)
    assert numbers["right"] == pytest.approx(
        {"rate": 0.5, "signal": 0.25, "influence": 1 / 3, "forecast": 0.125, "so far": 0.375}
    )
    assert numbers["tags"] == pytest.approx(
        {"rate": 0.75, "signal": 0.25, "influence": 2 / 3, "forecast": 0.25, "so far": 0.375}
    )


def test_a_reward_without_any_signal_has_zeros():
    flat = step(1, [[(3, 0), (3, 0)]], [[0, 0]])
    assert first_steps([flat], RANGES)["tags"] == {
        "rate": 0.0,
        "signal": 0.0,
        "influence": 0.0,
        "forecast": 0.0,
        "so far": 0.0,
    }


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([0.1, 0.2, 0.3, 0.4], 1.0), ([0.4, 0.3, 0.2, 0.1], 0.0), ([1, 1, 1, 1], 0.5),
     ([0, 1, 1, 2], 0.875)],
)  # fmt: skip
def test_auc_counts_ties_as_one_half(numbers, expected):
    assert auc(numbers, [False, False, True, True]) == expected


def test_auc_agrees_with_counting_every_pair():
    rng = np.random.default_rng(0)
    numbers, learned = rng.integers(6, size=50), rng.random(50) < 0.4
    wins = [
        (a > b) + 0.5 * (a == b)
        for a in numbers[learned]
        for b in numbers[~learned]
    ]  # fmt: skip
    assert auc(numbers, learned) == pytest.approx(np.mean(wins))


def test_auc_of_one_kind_only_is_unknown():
    assert np.isnan(auc([1.0, 2.0], [True, True]))


def made_pairs(rng, runs, **strength):
    """Pairs of runs with two rewards, whose numbers follow the outcome with given strengths."""
    names = ("rate", "signal", "influence", "forecast")
    found = []
    for run in range(runs):
        for _ in range(2):
            learned = bool(rng.random() < 0.5)
            numbers = {n: strength.get(n, 0) * learned + rng.normal() for n in names}
            found.append(Pair(str(run), numbers, learned))
    return found


def test_a_strong_candidate_is_clearly_better_and_the_others_are_not():
    rng = np.random.default_rng(0)
    tasks = [made_pairs(rng, 100, rate=0.5, signal=0.5, forecast=3) for _ in range(2)]
    mean = np.mean([aucs(pairs) for pairs in tasks], axis=0)
    assert clearly_better(mean, bootstrap(tasks, 200)).tolist() == [False, True]


def test_a_small_gain_is_not_clearly_better():
    mean = np.array([0.80, 0.70, 0.84, 0.86])
    drawn = np.tile(mean, (10, 1))
    assert clearly_better(mean, drawn).tolist() == [False, True]
    drawn[:2, 0] = 0.9
    assert clearly_better(mean, drawn).tolist() == [False, False]


def test_draws_keep_the_rewards_of_a_run_together():
    pairs = [Pair(str(i // 2), dict.fromkeys(("rate", "signal", "influence", "forecast"), float(i)),
                  i % 2 == 0) for i in range(4)]  # fmt: skip
    drawn = bootstrap([pairs], 50)
    assert set(np.unique(drawn)) <= {0.0, 0.25}


def test_a_task_needs_ten_pairs_of_both_kinds():
    numbers = {"rate": 0.0}
    learned = [Pair("a", numbers, True)] * 10
    assert not counts(learned + [Pair("a", numbers, False)] * 9)
    assert counts(learned + [Pair("a", numbers, False)] * 10)
