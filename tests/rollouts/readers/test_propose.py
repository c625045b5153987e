"""Which numbers are proposed as rewards, with which weights, and what is refused."""

import numpy as np
import pytest

from gdpo.rollouts.readers.names import Inner, Layout, is_named_reward, spread
from gdpo.rollouts.readers.propose import (
    contradicting,
    explained,
    found_in_total,
    named_totals,
    propose,
)

RNG = np.random.default_rng(0)
A, B, C = ((RNG.random(320) < rate).astype(float) for rate in (0.5, 0.7, 0.3))
STYLE = np.round(RNG.random(320), 2)
GROUPS = np.arange(320) // 4
PER_PROMPT = RNG.random(80)[GROUPS]
SOLVED = (PER_PROMPT > 0.5).astype(float)
LENGTH = RNG.integers(10, 99, 320).astype(float)
ONES = np.ones(320)
AB = {"a_reward": A, "b_reward": B}


def proposed(numbers, total=None, *, few=320, **more):
    numbers = {name: values[:few] for name, values in numbers.items()}
    return propose(numbers, GROUPS[:few], known=Layout(total=total), **more)


def weights(names, numbers, total=None):
    names = names if isinstance(names, dict) else {name: name for name in names}
    found = found_in_total(names, numbers, named_totals(names, numbers, Layout(total=total)))
    return None if found is None else dict(found.weights)


WEIGHTED = {
    "sum": (A + B, [1, 1]),
    "small weight": (A + 0.1 * B, [1, 0.1]),
    "constant": (A - 0.5 * (1 - B), [1, 0.5]),
    "negative": (2 * A - 0.25 * B, [2, -0.25]),
    "rounded": (np.round(A + 0.12345 * B, 4), [1, 0.1235]),
}


@pytest.mark.parametrize("case", WEIGHTED)
def test_the_weights_of_a_total_are_those_of_the_rewards(case):
    total, expected = WEIGHTED[case]
    for name in ("reward", "total", "objective", "sum_of_rewards", "R", "scalar_reward"):
        numbers = {name: total, "kl": STYLE, **AB}
        found = proposed(numbers, name)
        assert (found.total, list(found.names)) == (name, list(AB))
        found = weights(found.names, numbers, name)
        assert list(found.values()) == pytest.approx(expected, abs=2e-4)


NUMBERS = {
    "an unknown name that does not add up to the total": ({"reward": STYLE, "gizmo": A}, "reward"),
    "penalties and a field inside an object": (
        {"a_penalty": A, "b_penalty": 1 - A, Inner("m.accuracy"): B},
        "a_penalty b_penalty",
    ),
    "a penalty beside a measure": ({"length_penalty": A, "accuracy": B}, "length_penalty accuracy"),
    "a rate of the dataset": ({"quality": STYLE, "pass_rate": PER_PROMPT}, "quality"),
    "an unknown name of a constant": ({"accuracy": A, "style": B, "gizmo": ONES}, "accuracy style"),
    "baselines in an object": ({**AB, "reward_baseline.a": C}, "a_reward b_reward"),
    "a reward that another one gives": ({"a_reward": A, "b_reward": 1 - A}, "a_reward b_reward"),
    "forms of all rewards": ({"raw_a_reward": A, "raw_b_score": B}, "raw_a_reward raw_b_score"),
    "a reward inside a total of another name": (
        {"total_reward": A + 0.5 * B, "reward": A, "b_reward": B},
        "b_reward reward",
    ),
    "one reward inside a total": (
        {"reward": A, "total_reward": A + 0.5 * B, **AB},
        "a_reward b_reward",
    ),
    "bounds of a reward": (
        {"raw_score": 3 * A, "minimum_score": -ONES, "maximum_score": 6 * ONES, "reward": A},
        "raw_score",
    ),
    "a total once more, in another unit": (
        {"reward": A + B, "scaled_reward": 10 * (A + B), "judge": A, "safety": B},
        "judge safety",
    ),
    "weight 0 by name": ({"reward": A + B, **AB, "c_reward": C}, "a_reward b_reward c_reward"),
    "constant in every group": (
        {"quality": STYLE, "safety": B, "clarity": PER_PROMPT},
        "quality safety",
    ),
    "a reward constant in every group": (
        {"a_reward": A, "clarity_reward": PER_PROMPT},
        "a_reward clarity_reward",
    ),
    "a task solved always or never": (
        {"correctness": SOLVED, "style": STYLE},
        "correctness style",
    ),
    "an expected score": ({**AB, "expected_score": PER_PROMPT}, "a_reward b_reward"),
    "a number of any name in the total": (
        {"reward": A + 0.5 * STYLE, "a_reward": A, "gizmo": STYLE},
        "a_reward gizmo",
    ),
    "an object without ids and notes": (
        dict.fromkeys(["rewards.a", "rewards.b", "rewards.n", "rewards.info.n", "rewards.x.id"], A),
        "a b",
    ),
    "an object of other numbers too": (
        {f"reward_info.{n}": A for n in ("accuracy", "kl", "loss.parse", "math.style")},
        "accuracy math.style",
    ),
    "an object for each reward": (
        {"rewards.a.value": A, "rewards.a.raw": STYLE, "rewards.x.b.value": B},
        "a x.b",
    ),
    "constant 0": ({**AB, "c_reward": 0 * ONES}, "a_reward b_reward"),
    "a constant monitor": (
        {"total": A + B, "accuracy": A, "style": B, "eos_seen": 0 * ONES},
        "accuracy style",
    ),
    "lengths and references": (
        {"accuracy": A, "length": STYLE, "is_text": B, "near_target": C},
        "accuracy",
    ),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_rewards_are_told_from_other_numbers(case):
    numbers, expected = NUMBERS[case]
    total = next((name for name in ("reward", "score", "total") if name in numbers), None)
    assert list(proposed(numbers, total).names) == expected.split()


REFUSED = {
    "a sum named as a reward": (
        {**AB, "c_reward": A + B},
        [["a_reward", "b_reward"], ["a_reward", "c_reward"], [*AB, "c_reward"]],
    ),
    "a reward called reward": ({"reward": A, "b_reward": B}, [["reward", "b_reward"], ["reward"]]),
    "a product": ({"reward": A * B, **AB}, [["reward"], ["reward", *AB], [*AB]]),
    "a part missing": ({"reward": A + B + C, **AB}, [["reward", *AB], [*AB]]),
    "rounded to two digits": (
        {"reward": np.round(A + 0.33 * STYLE, 2), "a_reward": A, "style_reward": STYLE},
        [["a_reward", "style_reward"]],
    ),
    "one reward alone": ({"reward": A, **AB}, [["a_reward"], [*AB]]),
    "two totals": ({"reward": C, "score": STYLE, "a_reward": A}, [["a_reward"]]),
    "raw and transformed": (
        {"score": A, "reward": 2 * A - 1, "b_reward": B},
        [["b_reward"], ["reward", "score", "b_reward"]],
    ),
    "a form of a reward": (
        {"raw_judge_reward": STYLE, "judge_reward": STYLE**2, "b_reward": B},
        [["judge_reward", "b_reward"], ["raw_judge_reward", "judge_reward", "b_reward"]],
    ),
    "forms of one part": (
        {"a_score": A, "b_score": B, "weighted_b_score": 0.1 * B, "score": A + 0.1 * B},
        [["a_score", "b_score"], ["a_score", "weighted_b_score"]],
    ),
    "a copy": ({"accuracy": A, "acc": A, "style": STYLE}, [["accuracy", "style"]]),
    "a copy beside a product": (
        {"score": A * STYLE, "accuracy": A, "acc": A, "style": STYLE},
        [["accuracy", "style"]],
    ),
    "several sets of weights": (
        {"score": A + 0.5 * B, **AB, "both_reward": A + B},
        [[*AB], ["b_reward", "both_reward"]],
    ),
    "an unknown name": ({"accuracy": A, "gizmo": B}, [["accuracy", "gizmo"], ["accuracy"]]),
    "a usual name beside rewards": (
        {"a_reward": A, "style": B},
        [["a_reward"], ["a_reward", "style"]],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_be_read_in_several_ways_is_refused_with_each(case):
    numbers, choices = REFUSED[case]
    total = next((name for name in ("reward", "score") if name in numbers), None)
    found = proposed(numbers, total)
    assert (bool(found.refused), dict(found.names)) == (True, {})
    offered = [sorted(each) for each in found.choices]
    assert [each for each in choices if sorted(each) not in offered] == []


def test_few_rollouts_show_less_than_many():
    accuracy = {"accuracy": A, "style": 2 * A}
    assert len(proposed(accuracy, few=8).names) == 2
    assert proposed(accuracy).refused
    assert len(proposed({"a_reward": A, "b_reward": 0 * ONES}, few=12).names) == 2
    assert "safety" in proposed({"accuracy": A, "safety": SOLVED}, few=80).names
    monitored = {"reward": A + STYLE, **AB, "kl": STYLE}
    assert list(proposed(monitored, "reward", few=8).names) == [*AB]
    apart = {"reward": STYLE, **AB}
    assert list(proposed(apart, "reward", few=15).names) == [*AB]
    assert proposed(apart, "reward", few=16).refused


MONITORS = (
    *("response_length", "gen_time_s", "n_tool_calls", "truncated", "pred", "difficulty", "level"),
    *("temperature", "kl", "logprobs", "seed", "num_turns", "overlong", "request_id", "retries"),
    *("completion_tokens", "latency_ms", "is_finished", "entropy", "responseLength", "case_idx"),
)


@pytest.mark.parametrize("kind", ["none", "every", "function"])
@pytest.mark.parametrize("name", MONITORS)
def test_one_list_of_names_is_no_reward_in_any_format(name, kind):
    found = proposed({"accuracy": A, "format": B, name: STYLE * 9}, kind=kind)
    if name == "is_finished" and kind == "function":  # a reward function may have this name
        return
    assert tuple(found.names) == ("accuracy", "format")
    assert found.left_out[name] == "name"


def test_a_format_that_names_its_rewards_has_lengths_and_constants_among_them():
    numbers = {"accuracy": A, "length": STYLE, "is_text": B, "near_target": ONES}
    assert list(proposed(numbers, kind="function").names) == list(numbers)
    numbers = {"score": A + B, "acc": A, "format": B, "judge": C}
    found = proposed(numbers, "score", kind="every")
    assert (list(found.names), found.left_out["judge"]) == (["acc", "format"], "weight 0")
    assert (found.name_of("x"), found.name_of("final_reward")) == ("x", None)  # in later rollouts
    assert list(proposed({"score": A, "acc": A, "judge": C}, "score").names) == ["acc"]


def test_names_that_do_not_show_what_they_are_are_rewards_if_the_user_named_the_others():
    numbers = {"accuracy": A, "gizmo": B}
    assert list(proposed(numbers, described=True).names) == ["accuracy", "gizmo"]


def test_a_field_that_is_left_out_is_told_with_the_reason():
    others = {"c_reward": ONES, "quality": STYLE, "level": STYLE, "kl": ONES}
    found = proposed({**AB, **others, "total": A + B})
    assert found.left_out == {**dict.fromkeys(others, "name"), "c_reward": "constant"}
    assert proposed({"quality": STYLE, "clarity": PER_PROMPT}).left_out == {"clarity": "dataset"}
    clarity = PER_PROMPT.copy()
    clarity[0] += 1  # in every group but one
    assert "clarity" in proposed({"quality": STYLE, "clarity": clarity}).names


@pytest.mark.parametrize(
    ("name", "ragged"), [("style_rewards", True), ("step_rewards", False), ("rewards", False)]
)
def test_a_list_with_a_value_for_each_turn_is_added_up(name, ragged):
    last = np.where(C > 0, np.nan, STYLE) if ragged else STYLE
    numbers = {name: B + np.nan_to_num(last), f"{name}.0": B, f"{name}.1": last, "a_reward": A}
    per_turn = name != "rewards"
    found = proposed(numbers)
    assert (name in found.names) == per_turn
    assert found.left_out[f"{name}.1" if per_turn else name] == "list"
    assert weights(["0", "1"], numbers | {"c_reward": A - 2 * B}) is None


def test_a_list_that_is_longer_in_later_rollouts_has_no_further_rewards():
    found = proposed({"rewards.0": A, "rewards.1": B})
    assert [found.name_of(f"rewards.{name}") for name in "12c"] == ["1", None, "c"]


FLAGS = ("reward_from_cache", "reward_is_final", "has_reward", "reward_clipped", "reward_ready")


def test_a_flag_about_a_reward_is_none():
    for name in FLAGS:
        assert list(proposed({**AB, name: C}).names) == [*AB]
    assert proposed({"a_reward": A, "reward_clipped": STYLE}).refused  # no flag


NAMES = {
    True: ("reward_is_correct", "length_penalty"),
    False: (
        *("minimum_score", "max_reward", "reward_std", "penalty_weight", "time_penalty"),
        *("bonus_id", "ref_reward", "reference_reward", "chosen_reward", "prev_score"),
    ),
}


def test_names_of_rewards_are_told_from_statistics_bounds_and_weights():
    for named, names in NAMES.items():
        assert {name: is_named_reward(name) for name in names} == dict.fromkeys(names, named)


def test_weights_in_a_total_need_the_sum_of_all_named_rewards():
    numbers = {"reward": A + 0.1 * B, "a": A, "b": B}
    assert weights("ab", numbers, "reward") == pytest.approx({"a": 1, "b": 0.1})
    assert weights(["reward", "a", "b"], numbers, "reward") is None
    assert weights("ab", numbers | {"reward": A}, "reward") is None
    both = numbers | {"both": A + B}
    assert weights(["a", "b", "both"], both, "reward") is None
    judged = numbers | {"judge": np.where(A > 0, np.nan, 0.3)}  # 0.3 (1 - A) if missing is 0
    assert weights(["a", "b", "judge"], judged, "reward")["judge"] == 0
    assert weights("ab", {n: v[:8] for n, v in numbers.items()}, "reward") is None


def test_a_reward_that_is_missing_where_the_total_adds_nothing_counts_as_0():
    numbers = {"score": A + 0.1 * B - 0.5, "a": A, "b": np.where(B > 0, 1.0, np.nan)}
    found = found_in_total({"a": "a", "b": "b"}, numbers, ["score"])
    assert (found.zeros, found.constant) == ({"b"}, pytest.approx(-0.5))


def test_a_total_that_contains_a_reward_and_is_no_sum_contradicts_the_weights():
    numbers = {"reward": A * STYLE, "a": A, "style": STYLE, "x": A}
    names = {"a": "a", "style": "style"}
    assert contradicting(names, numbers, ["reward"]) == "reward"
    assert contradicting(names, numbers | {"reward": C}, ["reward"]) == ""
    assert contradicting(names, {n: v[:12] for n, v in numbers.items()}, ["reward"]) == ""
    assert contradicting(names, numbers, ["x"]) == ""  # which is no total by its name


@pytest.mark.parametrize("total", [0.02 * B + 0.01 * A, 0 * A, 1e200 * A])
def test_unrelated_fields_explain_no_total(total):
    assert explained("bc", {"b": B, "c": np.where(C, np.inf, 0), "total": total}, "total") is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([1.0, 0.5], {"0": 1.0, "1": 0.5}),
        ([True, None], {"0": True, "1": None}),
        ([{"name": "a", "value": 1}, {"name": "b", "value": 2}], {"a": 1, "b": 2}),
        ([{"a": 1}, {"b": 2}], {"a": 1, "b": 2}),
        ([["a", 1], ["b", 2]], {"a": 1, "b": 2}),
        ('{"a": 1, "b": 2}', {"a": 1, "b": 2}),
        ("[1, 2]", {"0": 1, "1": 2}),
        ("a: 1", None),
        ("1.5", None),
        ([], None),
        ([[1, 2], [3]], None),
        ([0.1] * 65, None),
    ],
)
def test_rewards_may_be_a_list_pairs_objects_or_json(value, found):
    assert spread(value) == found


def test_a_list_is_named_by_as_many_names():
    assert spread([1, 2], ["a", "b"]) == {"a": 1, "b": 2}
    assert spread([1, 2], ["a"]) == {"0": 1, "1": 2}
