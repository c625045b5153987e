import json
import math
import re

import numpy as np
import pytest
from tests.environments import ROOT
from tests.refusals import config_error, reward_error

from gdpo.rewards import Reward, Scorer, calls, score
from gdpo.rewards.calls import score_one
from gdpo.rewards.scorer import check_distinct


def length(completion, reference):
    """Return the share of the wanted length; None without a wanted length."""
    wanted = reference["wanted"]
    return None if wanted is None else len(completion) / wanted


LENGTH = Reward("length", length, 0, 1)
IS_A = Reward("is_a", lambda completion, _: float(completion == "a"), 0, 1)


def test_rows_are_rollouts_and_columns_are_rewards_in_the_order_given():
    result = score([LENGTH, IS_A], ["a", "bb", "a"], [{"wanted": 2}, {"wanted": 2}, {"wanted": 4}])
    assert result.values.dtype == np.float64
    assert result.values.tolist() == [[0.5, 1], [1, 0], [0.25, 1]]
    assert result.failures == ()


def test_a_reward_that_does_not_apply_is_nan_and_no_failure():
    result = score([LENGTH, IS_A], ["a", "a"], [{"wanted": None}, {"wanted": 1}])
    assert np.isnan(result.values).tolist() == [[True, False], [False, False]]
    assert result.failures == ()


class Odd:
    """A number whose reading fails in its own way."""

    def __float__(self):
        raise RuntimeError("more than one element")


class Unreadable:
    """Something that cannot even be shown."""

    def __repr__(self):
        raise RuntimeError


def failing_at_x(function, name):
    """Return the failure of a reward for the completion x, and the result. No other entry fails."""
    result = score([Reward(name, function, 0, 1), IS_A], ["a", "x", "a"], [{}] * 3)
    assert np.isnan(result.values).tolist() == [[False, False], [True, False], [False, False]]
    (failure,) = result.failures
    return failure, result


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (math.nan, "not a number"),
        ("1", "not a number"),
        (b"1", "not a number"),
        ([1], "not a number"),
        (Odd(), "not a number"),
        (Unreadable(), "not a number"),
        (10**400, "not a number"),
        (1.001, "out of range"),
        (-0.001, "out of range"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_is_no_reward_is_nan_and_a_failure(returned, kind):
    failure, _ = failing_at_x(lambda completion, _: returned if completion == "x" else 1, "odd")
    assert (failure.reward, failure.index, failure.kind) == ("odd", 1, kind)
    assert "allowed" in failure.message


@pytest.mark.parametrize("returned", [0, 1, True, np.float32(0.5), np.int64(1), np.array(0.5)])
def test_whatever_is_a_number_within_the_range_is_taken(returned):
    value = score_one(Reward("odd", lambda *_: returned, 0, 1), "a", {})
    assert type(value) is float
    assert value == float(returned)


def test_a_reward_that_raises_costs_its_own_entry_only():
    def fragile(completion, reference):
        return reference["missing"] if completion == "x" else 1.0

    failure, result = failing_at_x(fragile, "fragile")
    assert failure.kind == "raised KeyError"
    assert "missing" in failure.message
    assert (result.failed("fragile"), result.failed("is_a")) == (1, 0)


def reads_json(completion, _):
    return json.loads(completion)["score"]


def test_what_a_reward_raises_is_told_with_the_place_in_its_own_code():
    reward = Reward("json", reads_json, 0, 1)
    line = reads_json.__code__.co_firstlineno + 1
    for completion in ("no json", "[]"):
        assert score_one(reward, completion, {}).message.endswith(f" (test_scorer.py:{line})")


def test_the_place_of_a_long_chain_of_calls_is_the_last_one_of_the_reward():
    def deep(completion, _):
        return 1 + deep(completion, _)

    failure = score_one(Reward("deep", deep, 0, 1), "a", {})
    assert failure.kind == "raised RecursionError"
    assert "(test_scorer.py:" in failure.message


def test_with_raise_the_cause_is_kept_and_otherwise_not():
    reward = Reward("json", reads_json, 0, 1)
    with reward_error(r"TypeError: .*test_scorer") as caught:
        score([reward], ["[]"], [{}], on_error="raise")
    assert isinstance(caught.value.__cause__, TypeError)
    assert score([reward], ["[]"], [{}]).failures[0].error is None


def test_what_is_no_reward_is_refused_with_the_remedy():
    with config_error(r"Reward\('length', length, low=0, high=1\)"):
        Scorer([LENGTH, length])
    with config_error(r"gdpo\.Reward.* str 'length'"):
        Scorer(["length"])
    with config_error(r"list.* Reward"):
        Scorer(LENGTH)


def test_a_message_is_short_however_long_the_exceptions_text():
    def wordy(completion, _):
        raise ValueError("x" * 1_000_000)

    result = score([Reward("wordy", wordy, 0, 1)], ["a"], [{}])
    assert len(result.failures[0].message) <= 200


def test_the_first_failure_of_each_kind_is_logged_with_its_count_and_completion(caplog):
    def fragile(completion, _):
        return 1 / 0 if completion.startswith("r") else {"n": math.nan}.get(completion, 1)

    completions = ["a", "r1", "n", "r2", "r3"]
    score([Reward("fragile", fragile, 0, 1)], completions, [{}] * 5)
    lines = caplog.messages
    assert len(lines) == 2
    for line, count, kind, first in zip(
        lines, (3, 1), ("ZeroDivisionError", "not a number"), ("'r1'", "'n'"), strict=True
    ):
        assert f"'fragile' failed on {count} of 5" in line
        assert kind in line
        assert line.endswith(first)


def test_only_the_beginning_of_a_completion_is_logged(caplog):
    score([Reward("bad", lambda *_: 7, 0, 1)], ["y" * 10_000], [{}])
    assert len(caplog.text) < 1000


def test_nothing_to_score_gives_an_empty_array():
    assert score([IS_A, LENGTH], [], []).values.shape == (0, 2)
    assert score([], ["a"], [{}]).values.shape == (1, 0)


def test_two_rewards_of_one_name_are_refused():
    with config_error("repeated: is_a, length"):
        check_distinct(["length", "is_a", "x", "is_a", "length"])
    with config_error("repeated: is_a"):
        score([IS_A, IS_A], ["a"], [{}])


def test_completions_and_references_of_unequal_number_are_refused():
    with config_error(r"2 completions .*1 references"):
        score([IS_A], ["a", "b"], [{}])


def test_the_example_of_the_reference_gives_what_it_says(capsys):
    page = (ROOT / "docs" / "reference" / "rewards.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = [block for block in blocks if "Scorer" in block]
    exec(compile(code, "rewards.md", "exec"), {})
    assert capsys.readouterr().out.strip() == code.rpartition("  # ")[2].strip()


def spoils(completion, reference):
    reference["tests"].append("spoiled")
    reference["answer"] = "spoiled"
    return 1.0


async def spoils_later(completion, reference):
    return spoils(completion, reference)


def is_unspoiled(completion, reference):
    return float(reference == {"answer": "5", "tests": ["a"]})


@pytest.mark.parametrize("function", [spoils, spoils_later])
@pytest.mark.parametrize("deadline", [None, 60])
def test_a_reward_that_changes_its_reference_changes_it_for_nobody_else(function, deadline):
    rewards = [
        Reward(f"{name} {kind}", does, 0, 1, of=kind, deadline=limit)
        for kind in ("text", "tokens", "turn")
        for name, does, limit in (("changes", function, deadline), ("reads", is_unspoiled, None))
    ]
    own, shared = {"answer": "5", "tests": ["a"]}, {"answer": "5", "tests": ["a"]}
    with Scorer(rewards, workers=1) as scorer:
        scores = scorer.score(["x", "y", "z"], [own, shared, shared], num_tokens=[1, 2, 3])
    assert scores.values.tolist() == [[1] * 6] * 3
    assert own == shared == {"answer": "5", "tests": ["a"]}


def test_a_retry_gets_the_reference_as_it_was(monkeypatch):
    monkeypatch.setattr(calls, "_PAUSE_S", 0.0)
    seen = []

    async def fails_once(completion, reference):
        seen.append(reference["answer"])
        reference["answer"] = "spoiled"
        return 1 / (len(seen) - 1)

    with Scorer([Reward("fails", fails_once, 0, 1)]) as scorer:
        assert scorer.score(["x"], [{"answer": "5"}]).values.tolist() == [[1]]
    assert seen == ["5", "5"]


class Uncopied(Exception):
    """Cannot be unpickled, because its argument is missing then."""

    def __init__(self, *, place):
        super().__init__(place)


def test_a_reference_that_cannot_be_copied_is_one_failure():
    found = score([ALWAYS], ["a", "b"], [{"seen": Uncopied(place=1)}, {}])
    assert found.values.ravel().tolist() == pytest.approx([math.nan, 1.0], nan_ok=True)
    (failure,) = found.failures
    assert failure.kind == "raised TypeError"


ALWAYS = Reward("always", lambda completion, reference: 1.0, 0, 1)
