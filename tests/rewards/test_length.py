"""Length rewards."""

import pickle

import pytest
from tests.refusals import config_error

from gdpo.rewards import score
from gdpo.rewards.length import soft_overlong, token_limit, token_range
from gdpo.testing import check_reward

REWARDS = [
    token_limit(1),
    token_limit(4000, name="short"),
    soft_overlong(100, 20),
    soft_overlong(100, 100),
    soft_overlong(100, 0),
    soft_overlong(1, 1),
    token_range(100, 200, width=50),
    token_range(0, 0, width=1),
    token_range(20, 30, width=500),
]


def values(reward, *num_tokens):
    return [reward.function(n, {}) for n in num_tokens]


@pytest.mark.parametrize("reward", REWARDS, ids=lambda r: f"{r.name} {r.function.keywords}")
def test_reward_keeps_its_contract(reward):
    check_reward(reward, texts=50)


@pytest.mark.parametrize("reward", REWARDS, ids=lambda r: f"{r.name} {r.function.keywords}")
def test_reward_judges_tokens_and_can_be_sent_to_another_process(reward):
    assert reward.of == "tokens"
    copy = pickle.loads(pickle.dumps(reward))
    assert values(copy, 0, 1, 99, 10_000) == values(reward, 0, 1, 99, 10_000)


def test_the_limit_itself_is_allowed():
    assert values(token_limit(4000), 0, 4000, 4001, 10**9) == [1, 1, 0, 0]


def test_the_punishment_is_full_at_the_maximum_and_nothing_before_the_buffer():
    assert values(soft_overlong(100, 20), 0, 80, 81, 85, 90, 99, 100, 101, 10**9) == [
        *(0, 0, -0.05, -0.25, -0.5, -0.95, -1, -1, -1)
    ]
    assert values(soft_overlong(100, 0), 99, 100, 101) == [0, 0, -1]


@pytest.mark.parametrize(("maximum", "buffer"), [(100, 20), (100, 100), (100, 0), (7, 3), (1, 1)])
def test_soft_overlong_gives_trls_numbers(maximum, buffer):
    from trl.rewards import get_soft_overlong_punishment

    num_tokens = range(2 * maximum + 1)
    theirs = get_soft_overlong_punishment(maximum, buffer)([[0] * n for n in num_tokens])
    assert values(soft_overlong(maximum, buffer), *num_tokens) == theirs


def test_a_range_falls_on_both_sides_over_its_width():
    reward = token_range(100, 200, width=50)
    assert values(reward, 0, 50, 51, 75, 99, 100, 150, 200, 201, 225, 249, 250, 10**9) == [
        *(0, 0, 0.02, 0.5, 0.98, 1, 1, 1, 0.98, 0.5, 0.02, 0, 0)
    ]
    assert values(token_range(5, 5, width=1), 4, 5, 6) == [0, 1, 0]
    assert values(token_range(20, 30, width=80), 0) == [0.75]


def test_a_scorer_gives_it_the_tokens_and_not_the_characters():
    completions, tokens = ["a" * 50, "b", "a" * 50], [3, 5, 4]
    scores = score([token_limit(4)], completions, [{}] * 3, num_tokens=tokens)
    assert scores.values[:, 0].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: token_limit(0), "token_limit: limit .*got 0"),
        (lambda: token_limit(True), "token_limit: limit .* got True"),
        (lambda: token_limit("4000"), "token_limit: limit .* got '4000'"),
        (lambda: soft_overlong(0, 0), "soft_overlong: maximum .*got 0"),
        (lambda: soft_overlong(10, -1), "soft_overlong: buffer .*got -1"),
        (lambda: soft_overlong(10, 11), r"buffer .*maximum \(10\), got 11"),
        (lambda: token_range(-1, 5, width=1), "token_range: low .*got -1"),
        (lambda: token_range(0, None, width=1), "token_range: high .* got None"),
        (lambda: token_range(6, 5, width=1), r"low .*high \(5\), got 6"),
        (lambda: token_range(1, 5, width=0), "token_range: width .*got 0"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(make, message):
    with config_error(message):
        make()
