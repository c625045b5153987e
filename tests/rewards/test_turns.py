"""Tests rewards that score each turn (`of="turn"`)."""

import asyncio
import math
from copy import deepcopy

import numpy as np
import pytest
from tests.refusals import config_error, reward_error

from gdpo.rewards import Example, Gate, Reward, Scorer, apply_gates
from gdpo.testing import check_reward


def says(role, content):
    return {"role": role, "content": content}


TWO = [says("assistant", "aa"), says("user", "go on"), says("assistant", "a")]
ONE = [says("assistant", "aa")]
SEEN = []


def count_a(messages, reference):
    """Return the letters of the last message, and None where the reference says so."""
    SEEN.append([message["content"] for message in messages])
    assert messages[-1]["role"] == "assistant"
    content = messages[-1]["content"]
    return None if content == reference.get("none") else float(content.count("a"))


COUNT = Reward("count", count_a, 0, 9, of="turn")
IS_A = Reward("is_a", lambda text, _: float(text == "a"), 0, 1)


def scored(rewards, messages, *, references=None, **options):
    with Scorer(rewards, **options) as scorer:
        return scorer.score(messages, references or [{}] * len(messages))


def test_each_turn_is_scored_on_what_was_written_up_to_it_and_equal_histories_once():
    SEEN.clear()
    result = scored([COUNT, IS_A], [TWO, ONE, [*TWO, says("user", "x")]])
    assert result.turns == {"count": [[2, 1], [2], [2, 1]]}
    assert result.values.tolist() == [[3, 1], [2, 0], [3, 1]]
    assert SEEN == [["aa"], ["aa", "go on", "a"]]


def test_a_completion_without_a_message_of_the_model_has_no_score():
    result = scored([COUNT], [[says("user", "x")]])
    assert result.turns == {"count": [[]]}
    assert np.isnan(result.values).all()


def test_none_at_a_turn_makes_the_total_missing():
    result = scored([COUNT], [TWO, ONE], references=[{"none": "a"}, {}])
    assert math.isnan(result.values[0, 0])
    assert result.values[1, 0] == 2
    assert result.turns["count"][0][0] == 2
    assert result.failures == ()


def fails_on_a(messages, reference):
    return 1 / (messages[-1]["content"] != "a")


async def fails_on_a_later(messages, reference):
    await asyncio.sleep(0)
    return fails_on_a(messages, reference)


FAILING = [
    Reward("fails", fails_on_a, 0, 1, of="turn"),
    Reward("fails", fails_on_a, 0, 1, of="turn", deadline=20),
    Reward("fails", fails_on_a_later, 0, 1, of="turn"),
]


@pytest.mark.parametrize("reward", FAILING, ids=["here", "in a worker", "coroutine"])
def test_a_failure_names_rollout_and_turn(reward, caplog):
    result = scored([reward], [ONE, TWO, TWO], workers=1, retries=0)
    assert [(f.index, f.turn, f.kind) for f in result.failures] == [
        (1, 1, "raised ZeroDivisionError"),
        (2, 1, "raised ZeroDivisionError"),
    ]
    assert np.isnan(result.values[:, 0]).tolist() == [False, True, True]
    assert "failed on 2 of 3 rollouts" in caplog.text
    assert "1, turn 1" in caplog.text


def test_a_failure_can_be_the_lowest_value_of_its_turn_or_an_error():
    reward = FAILING[0]
    assert scored([reward], [TWO], on_error="worst").turns == {"fails": [[1, 0]]}
    with reward_error(r"'fails'.*completion 0, turn 1"):
        scored([reward], [TWO], on_error="raise")


def test_several_failures_of_a_rollout_count_once():
    result = scored([FAILING[0]], [[*ONE, says("assistant", "a"), says("assistant", "a")], ONE])
    assert len(result.failures) == 2
    assert result.failed("fails") == 1
    assert result.kinds("fails") == {"raised ZeroDivisionError": 1}


def test_a_reward_cannot_change_the_messages_of_others():
    def changes(messages, reference):
        messages[0]["content"] = "gone"
        messages[0]["parts"].clear()
        messages.clear()
        return 0.0

    given = [[{**each, "parts": [1]} for each in messages] for messages in (TWO, ONE)]
    before = deepcopy(given)
    rewards = [
        Reward("changes", changes, 0, 9, of="turn"),
        Reward("count", count_a, 0, 9, of="turn"),
    ]
    result = scored(rewards, given)
    assert result.turns["count"] == [[2, 1], [2]]
    assert result.failures == ()
    assert given == before


def test_control_characters_of_a_failure_do_not_reach_the_log(caplog):
    def fails(messages, reference):
        raise ValueError("\x1b[31m" + messages[-1]["content"])

    scored([Reward("fails", fails, 0, 9, of="turn")], [ONE])
    assert "⟨U+001B⟩[31maa" in caplog.text
    assert "\x1b" not in caplog.text


def test_the_contract_of_a_reward_of_turns_is_checked_on_messages():
    examples = (Example("aa", {}, 2.0), Example(TWO, {}, 1.0))
    check_reward(
        Reward("count", lambda m, _: min(9.0, m[-1]["content"].count("a")), 0, 9, examples, "turn"),
        texts=20,
    )
    with reward_error(r"returns 1\.0"):
        check_reward(Reward("count", count_a, 0, 9, (Example(TWO, {}, 3.0),), "turn"), texts=1)


def test_an_unknown_kind_of_reward_names_the_allowed_ones():
    with config_error("'turn'"):
        Reward("count", count_a, 0, 9, of="turns")


@pytest.mark.parametrize("otherwise", ["zero", "missing"])
def test_a_gate_on_totals_closes_all_turns(otherwise):
    turns = np.array([[[1.0, 0.5], [0.0, 0.5]], [[0.0, 0.4], [0.0, 0.4]]])
    gates = {"b": Gate("a", at_least=1, otherwise=otherwise)}
    gated = apply_gates(turns, ["a", "b"], gates, conditions=turns.sum(1)[:, None])
    closed = 0.0 if otherwise == "zero" else np.nan
    np.testing.assert_array_equal(gated[..., 1], [[0.5, 0.5], [closed, closed]])
    np.testing.assert_array_equal(gated[..., 0], turns[..., 0])
