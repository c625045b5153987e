"""Each guess about the fields of a file is checked on the values."""

import numpy as np
import pytest

from gdpo.rollouts.readers.infer import (
    NO_KEY,
    Layout,
    Sample,
    grouping,
    infer,
    is_named_reward,
    named_by_user,
    restarted,
    spread,
)

RNG = np.random.default_rng(0)
A, B, C = ((RNG.random(320) < rate).astype(float) for rate in (0.5, 0.7, 0.3))
STYLE = np.round(RNG.random(320), 2)
GROUPS = np.arange(320) // 4
PER_PROMPT = RNG.random(80)[GROUPS]


def inferred(numbers, total=None, **more):
    return infer(Sample(numbers, GROUPS), Layout(total=total), **more)


@pytest.mark.parametrize(
    ("total", "weights"),
    [
        (A + B, {"a_reward": 1, "b_reward": 1}),
        (A + 0.1 * B, {"a_reward": 1, "b_reward": 0.1}),
        (A - 0.5 * (1 - B), {"a_reward": 1, "b_reward": 0.5}),
        (2 * A - 0.25 * B, {"a_reward": 2, "b_reward": -0.25}),
    ],
)
def test_the_weights_of_a_total_are_those_of_the_rewards(total, weights):
    found = inferred({"reward": total, "a_reward": A, "b_reward": B}, "reward")
    assert found.weights == pytest.approx(weights)
    assert (found.total, found.refused) == ("reward", "")


@pytest.mark.parametrize("digits", [2, 4])
def test_a_total_may_be_rounded(digits):
    total = np.round(A + 0.3 * STYLE, digits)
    found = inferred({"reward": total, "a_reward": A, "style_reward": STYLE}, "reward")
    assert found.weights == pytest.approx({"a_reward": 1, "style_reward": 0.3}, abs=0.005)


@pytest.mark.parametrize("off", [0.02, 0.004])
def test_a_total_that_is_off_by_more_than_its_rounding_is_none(off):
    total = np.round(A + 0.3 * STYLE, 3)
    total[::7] += off
    found = inferred({"reward": total, "a_reward": A, "style_reward": STYLE}, "reward")
    assert not found.names
    assert found.choices[:2] == (
        ("a_reward", "style_reward"),
        ("reward", "a_reward", "style_reward"),
    )


@pytest.mark.parametrize(
    "total",
    [A * B, np.where(B > 0, A, -1.0), A + B + C],
    ids=["product", "only if", "part missing"],
)
def test_a_number_that_depends_on_the_rewards_in_another_way_is_refused_with_both(total):
    found = inferred({"reward": total, "a_reward": A, "b_reward": B}, "reward")
    assert not found.names
    assert found.choices[:2] == (("a_reward", "b_reward"), ("reward", "a_reward", "b_reward"))
    assert found.choices[2:] == (("reward",),)


@pytest.mark.parametrize("name", ["reward", "score", "reward_score"])
def test_a_reward_called_reward_next_to_another_is_a_reward(name):
    found = inferred({name: A, "format_reward": B}, name)
    assert tuple(found.names) == (name, "format_reward")
    assert found.weights == {}


def test_a_reward_inside_a_total_of_another_name_is_a_reward():
    numbers = {"total_reward": A + 0.5 * B, "reward": A, "format_reward": B}
    found = inferred(numbers, "reward")
    assert found.weights == pytest.approx({"reward": 1, "format_reward": 0.5})
    assert found.total == "total_reward"


def test_raw_and_transformed_forms_are_one_reward():
    found = inferred({"score": A, "reward": 2 * A - 1, "reward_format": B}, "reward")
    assert tuple(found.names) == ("reward", "reward_format")
    assert found.copied == (("score", "reward"),)
    numbers = {"raw_judge_reward": STYLE, "judge_reward": STYLE**2, "b_reward": B}
    assert tuple(inferred(numbers).names) == ("judge_reward", "b_reward")
    numbers = {"a_score": A, "b_score": B, "weighted_b_score": 0.1 * B, "score": A + 0.1 * B}
    assert inferred(numbers, "score").weights == pytest.approx({"a_score": 1, "b_score": 0.1})


def test_bounds_of_a_reward_are_no_rewards():
    low, high = np.full(320, -3.0), np.full(320, 6.0)
    numbers = {"raw_score": 3 * A, "minimum_score": low, "maximum_score": high, "reward": A}
    assert tuple(inferred(numbers, "reward").names) == ("reward",)
    assert not any(map(is_named_reward, ("minimum_score", "max_reward", "reward_std")))


def test_a_reward_that_the_total_lacks_has_weight_0_if_its_name_says_reward():
    numbers = {"reward": A + B, "a_reward": A, "b_reward": B, "c_reward": C}
    assert inferred(numbers, "reward").weights["c_reward"] == 0
    numbers = {"score": A + B, "acc": A, "format": B, "judge": C}
    found = inferred(numbers, "score", kind="every")
    assert (tuple(found.names), found.left_out["judge"]) == (("acc", "format"), "weight 0")


def test_a_total_of_one_reward_alone_does_not_decide_about_the_others():
    found = inferred({"reward": A, "acc_reward": A, "format_reward": B}, "reward")
    assert found.choices == (("acc_reward", "format_reward"), ("acc_reward",))


def test_a_reward_that_is_missing_where_the_total_adds_nothing_counts_as_0():
    some = np.where(B > 0, 1.0, np.nan)
    found = inferred({"score": A + 0.1 * B, "acc": A, "format": some}, "score", kind="every")
    assert found.zeros == {"format"}


def test_a_column_that_is_constant_in_every_group_belongs_to_the_dataset():
    numbers = {"quality": STYLE, "accuracy": A, "clarity": PER_PROMPT}
    found = inferred(numbers)
    assert tuple(found.names) == ("quality", "accuracy")
    assert found.left_out["clarity"] == "dataset"
    numbers["clarity"] = PER_PROMPT.copy()
    numbers["clarity"][0] += 1  # in every group but one
    assert "clarity" in inferred(numbers).names
    assert "clarity_reward" in inferred({"a_reward": A, "clarity_reward": PER_PROMPT}).names


def test_a_task_that_is_solved_always_or_never_leaves_its_correctness_a_reward():
    solved = (PER_PROMPT > 0.5).astype(float)
    assert tuple(inferred({"correctness": solved, "style": STYLE}).names) == (
        "correctness",
        "style",
    )


def test_a_reward_of_two_values_needs_more_groups_to_be_of_the_dataset():
    solved = (PER_PROMPT > 0.5).astype(float)
    few = slice(0, 80)
    numbers = {"accuracy": A[few], "safety": solved[few]}
    assert "safety" in infer(Sample(numbers, GROUPS[few]), Layout()).names
    assert "safety" not in inferred({"accuracy": A, "safety": solved}).names


MONITORS = (
    *("response_length", "gen_time_s", "n_tool_calls", "truncated", "pred", "difficulty", "level"),
    *("temperature", "kl", "logprobs", "seed", "num_turns", "overlong", "request_id", "retries"),
    *("completion_tokens", "latency_ms", "is_finished", "entropy", "responseLength", "case_idx"),
)


@pytest.mark.parametrize("kind", ["none", "every", "function"])
@pytest.mark.parametrize("name", MONITORS)
def test_one_list_of_names_is_no_reward_in_any_format(name, kind):
    found = inferred({"accuracy": A, "format": B, name: STYLE * 9}, kind=kind)
    if name == "is_finished" and kind == "function":  # a reward function may have this name
        return
    assert tuple(found.names) == ("accuracy", "format")
    assert found.left_out[name] == "name"


def test_a_length_in_the_total_is_a_part_of_it():
    length = RNG.integers(10, 99, 320).astype(float)
    numbers = {"reward": A - 0.001 * length, "acc_reward": A, "response_length": length}
    found = inferred(numbers, "reward")
    assert found.weights == pytest.approx({"acc_reward": 1, "response_length": -0.001})


def test_names_that_do_not_show_what_they_are_are_refused():
    found = inferred({"accuracy": A, "gizmo": B})
    assert found.choices == (("accuracy",), ("accuracy", "gizmo"))
    found = inferred({"accuracy_reward": A, "style": B})
    assert found.choices == (("accuracy_reward",), ("accuracy_reward", "style"))


def test_an_object_of_rewards_has_no_ids_and_no_notes():
    names = ("rewards.a", "rewards.b", "rewards.n", "rewards.info.n", "rewards.math.id")
    assert tuple(inferred(dict.fromkeys(names, A)).names) == ("a", "b")


def test_rewards_that_the_user_names_have_the_weights_of_a_total_too():
    sample = Sample({"reward": A + 0.1 * B, "a": A, "b": B}, GROUPS)
    assert named_by_user(sample, Layout(total="reward"), ("a", "b")).weights["b"] == 0.1
    assert named_by_user(sample, Layout(total="reward"), ("reward", "a", "b")).weights == {}
    sample = Sample({"reward": A, "a": A, "b": B}, GROUPS)
    assert named_by_user(sample, Layout(total="reward"), ("a", "b")).weights == {}


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


def keys(*values):
    return np.array([NO_KEY if value is None else value for value in values])


def groups_of(ids, prompts, steps=None):
    none = np.full(len(ids), NO_KEY)
    steps = np.zeros(len(ids), np.int64) if steps is None else steps
    found = grouping(steps, ids, prompts, none, none)
    return found, [np.flatnonzero(found.keys == key).tolist() for key in found.keys]


def test_an_id_is_a_group_if_its_prompts_agree():
    found, together = groups_of(keys(1, 1, 2, 2), keys(5, 5, 5, 5))
    assert (found.split, together[0], together[2]) == (False, [0, 1], [2, 3])


def test_id_and_prompt_are_a_group_if_most_ids_have_several_prompts():
    found, together = groups_of(keys(1, 1, 1, 1, 2, 2), keys(5, 5, 6, 6, 7, 7))
    assert not found.split  # in half of them
    found, together = groups_of(keys(1, 1, 1, 1), keys(5, 5, 6, 6))
    assert (found.split, together[0], together[2]) == (True, [0, 1], [2, 3])


def test_prompts_of_single_rollouts_split_no_group():
    found, together = groups_of(keys(1, 1, 2, 2), keys(5, 6, 7, 8))
    assert (found.split, together[0], together[2]) == (False, [0, 1], [2, 3])


def test_the_same_id_in_another_step_is_another_group():
    found, _ = groups_of(keys(1, 1, 1, 1), keys(5, 5, 6, 6), np.array([0, 0, 1, 1]))
    assert not found.split


def test_a_row_without_an_id_is_grouped_by_its_prompt():
    found, _ = groups_of(keys(1, None), keys(5, 6))
    assert found.keys.tolist() == [1, 6]


def test_an_id_that_comes_again_with_another_prompt_has_restarted():
    ids, first, later = keys(1, 1, 2, 2), keys(5, 5, 6, 6), keys(7, 7, 6, 6)
    found, _ = groups_of(ids, first)
    _, seen = restarted(found, ids, first, None)
    again, seen = restarted(groups_of(ids, later)[0], ids, later, seen)
    assert again.keys[0] == again.keys[1] != 1
    assert again.keys[2:].tolist() == [2, 2]
    assert seen[0].tolist() == [1, 2]
