"""The experiment on a pretrained model: its task and its problems."""

import pytest
from benchmarks.pretrained._prepare import problems
from benchmarks.pretrained.arithmetic import ARITHMETIC

from gdpo.testing import check_reward


@pytest.mark.parametrize("reward", ARITHMETIC.rewards, ids=lambda reward: reward.name)
def test_the_rewards_are_valid(reward):
    check_reward(reward, texts=50)


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
