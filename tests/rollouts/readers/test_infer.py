"""Each guess about the fields of a file is checked on the values."""

import numpy as np
import pytest

from gdpo.rollouts.readers.infer import Sample, explained, infer, named_by_user
from gdpo.rollouts.readers.keys import NO_KEY, grouping, restarted
from gdpo.rollouts.readers.names import Layout, is_named_reward, spread

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
    assert found.choices == (("accuracy", "gizmo"), ("accuracy",))
    found = inferred({"accuracy_reward": A, "style": B})
    assert found.choices == (("accuracy_reward",), ("accuracy_reward", "style"))


def test_an_object_of_rewards_has_no_ids_and_no_notes():
    names = ("rewards.a", "rewards.b", "rewards.n", "rewards.info.n", "rewards.math.id")
    assert tuple(inferred(dict.fromkeys(names, A)).names) == ("a", "b")


def test_the_sum_of_a_list_and_another_reward_are_no_total_of_named_rewards():
    numbers = {"rewards": A + B, "rewards.0": A, "rewards.1": B, "c_reward": A - 2 * B}
    assert named_by_user(Sample(numbers, GROUPS), Layout(), ("0", "1")).weights == {}


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


@pytest.mark.parametrize("name", ["R", "return", "scalar_reward", "final", "w"])
def test_a_weighted_sum_of_the_rewards_is_their_total_whatever_its_name_is(name):
    numbers = {"rewards.a": A, "rewards.b": B, name: A + 0.1 * B, "kl": STYLE}
    found = inferred(numbers)
    assert (found.total, found.weights) == (name, pytest.approx({"a": 1, "b": 0.1}))


def test_a_reward_that_follows_from_the_others_is_not_their_total():
    found = inferred({"a_reward": A, "accuracy": (A + B) / 2, "b_reward": B})
    assert found.total is None


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("total", [True, False])
def test_a_field_that_is_the_same_in_all_rollouts_has_no_weight_and_is_no_reward(value, total):
    numbers = {"a_reward": A, "b_reward": B, "c_reward": np.full(320, value)}
    more = {"total": A + 0.2 * B + 0.5 * value} if total else {}
    found = inferred({**numbers, **more}, "total" if total else None)
    assert list(found.names) == ["a_reward", "b_reward"]
    assert (found.left_out["c_reward"], found.constants) == ("constant", {"c_reward": value})
    assert "c_reward" in inferred(numbers, kind="function").names


def test_few_rollouts_do_not_show_that_a_field_is_constant():
    rows = slice(0, 12)
    numbers = {"a_reward": A[rows], "b_reward": np.zeros(12)}
    assert len(infer(Sample(numbers, GROUPS[rows]), Layout()).names) == 2


def test_a_total_with_more_than_one_set_of_weights_is_refused_with_each_reading():
    numbers = {"score": A + 0.5 * B, "a_reward": A, "b_reward": B, "both_reward": A + B}
    found = inferred(numbers, "score")
    assert not found.names
    assert found.choices[:2] == (("a_reward", "b_reward"), ("b_reward", "both_reward"))
    asked = named_by_user(Sample(numbers, GROUPS), Layout(total="score"), [*numbers][1:])
    assert (asked.weights, asked.contradicts) == ({}, "score")
    alike = {"score": A + 0.5 * B, "a_reward": A, "b_reward": B, "c_reward": C, "d_reward": C}
    assert inferred(alike, "score").weights["d_reward"] == 0  # it is in no set of weights
    judge = np.where(A > 0, np.nan, 0.3)  # which is 0.3 (1 - A) if missing values count as 0
    judged = {"score": A + 0.1 * B, "a_reward": A, "b_reward": B, "judge_reward": judge}
    weights = inferred(judged, "score").weights
    assert weights == pytest.approx({"a_reward": 1, "b_reward": 0.1, "judge_reward": 0})


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("name", ["step_rewards", "rewards"])
def test_a_list_with_a_value_for_each_turn_is_added_up(name, ragged):
    last = np.where(C > 0, np.nan, STYLE) if ragged else STYLE
    numbers = {name: B + np.nan_to_num(last), f"{name}.0": B, f"{name}.1": last, "a_reward": A}
    per_turn = ragged or name != "rewards"
    found = inferred(numbers)
    assert (name in found.names) == per_turn
    assert found.left_out[f"{name}.1" if per_turn else name] == "list"


@pytest.mark.parametrize(
    "name", ["reward_from_cache", "reward_is_final", "has_reward", "reward_clipped", "reward_ready"]
)
def test_a_flag_about_a_reward_is_none(name):
    assert list(inferred({"a_reward": A, "b_reward": B, name: C}).names) == ["a_reward", "b_reward"]
    assert is_named_reward("reward_is_correct")
    assert "reward_clipped" in inferred({"a_reward": A, "reward_clipped": STYLE}).names


def test_a_number_called_score_that_is_constant_in_every_group_and_not_in_the_total_is_left_out():
    numbers = {"reward": A + B, "a_reward": A, "b_reward": B, "prompt_score": PER_PROMPT}
    found = inferred(numbers, "reward")
    assert list(found.names) == ["a_reward", "b_reward"]
    assert found.left_out["prompt_score"] == "dataset"


@pytest.mark.parametrize("rate", [PER_PROMPT, np.round(3 * PER_PROMPT) / 3])
def test_a_rate_of_the_prompt_is_of_the_dataset_although_its_name_says_pass(rate):
    found = inferred({"a_reward": A, "b_reward": B, "prior_pass_rate": rate})
    assert list(found.names) == ["a_reward", "b_reward"]


def test_a_count_of_passed_tests_may_be_a_reward():
    found = inferred({"a_reward": A, "num_tests_passed": np.round(4 * STYLE)})
    assert found.choices == (("a_reward",), ("a_reward", "num_tests_passed"))


def test_few_rollouts_do_not_show_that_a_reward_is_not_the_total():
    numbers = {"reward": (A + 0.3 * C + STYLE)[:32], "a_reward": A[:32], "b_reward": B[:32]}
    assert infer(Sample(numbers, GROUPS[:32]), Layout(total="reward")).refused
    assert infer(Sample(numbers | {"reward": C[:32]}, GROUPS[:32]), Layout(total="reward")).refused
    assert not inferred({"reward": C, "a_reward": A, "b_reward": B}, "reward").refused


def test_a_number_in_the_total_keeps_it_from_being_a_reward_of_its_own():
    numbers = {"reward": 3 * STYLE * A, "helpfulness": STYLE, "b_reward": B}
    assert inferred(numbers, "reward").refused


def test_a_total_is_not_explained_by_monitors_of_few_rollouts():
    rng = np.random.default_rng(1)
    monitors = {name: rng.normal(size=8) for name in ("rank", "latency", "kl", "entropy", "loss")}
    numbers = {"reward": rng.normal(size=8), "a_reward": A[:8], "b_reward": B[:8], **monitors}
    found = infer(Sample(numbers, GROUPS[:8]), Layout(total="reward"))
    assert not {*found.names} & {*monitors}


def test_a_monitor_that_is_constant_is_no_part_of_the_total():
    numbers = {"total": A + B, "accuracy": A, "style": B, "eos_seen": np.zeros(320)}
    assert list(inferred(numbers, "total").names) == ["accuracy", "style"]


def test_rewards_that_the_user_names_and_the_total_contradicts_are_reported():
    sample = Sample({"reward": A * STYLE, "a_reward": A, "style": STYLE}, GROUPS)
    assert named_by_user(sample, Layout(total="reward"), ["a_reward", "style"]).contradicts
    other = Sample({"reward": C, "a_reward": A, "style": STYLE}, GROUPS)
    assert not named_by_user(other, Layout(total="reward"), ["a_reward", "style"]).contradicts


def test_few_rollouts_whose_total_is_not_the_plain_sum_are_reported():
    rows = slice(0, 8)
    for weight, contradicts in ((0.2, "reward"), (1, "")):
        numbers = {"reward": (A + weight * B)[rows], "rewards.a": A[rows], "rewards.b": B[rows]}
        found = infer(Sample(numbers, GROUPS[rows]), Layout(total="reward"))
        assert found.contradicts == contradicts


@pytest.mark.parametrize("name", ["sum_of_rewards", "objective", "sum_of_all_scores"])
def test_a_total_of_another_name_that_is_no_sum_is_refused(name):
    assert inferred({name: A * STYLE, "a_reward": A, "style_reward": STYLE}).refused


def test_all_that_may_be_rewards_are_offered_if_the_total_decides_nothing():
    numbers = {"reward": A * B + C, "a_reward": A, "b_reward": B, "helpfulness": STYLE}
    assert ("a_reward", "b_reward", "helpfulness") in inferred(numbers, "reward").choices
    assert ("reward", "a_reward", "b_reward", "helpfulness") in inferred(numbers, "reward").choices
    numbers = {"reward": A, "a_reward": A, "b_reward": B, "helpfulness": STYLE}
    assert ("a_reward", "b_reward", "helpfulness") in inferred(numbers, "reward").choices


@pytest.mark.parametrize("name", ["expected_score", "reference_score", "gold_reward"])
def test_a_score_of_the_dataset_is_no_reward(name):
    found = inferred({"a_reward": A, "b_reward": B, name: PER_PROMPT})
    assert list(found.names) == ["a_reward", "b_reward"]


@pytest.mark.parametrize("name", ["ref_reward", "reference_reward", "chosen_reward", "prev_score"])
def test_a_reward_of_other_completions_is_none(name):
    assert not is_named_reward(name)


def test_a_total_that_is_constant_drops_no_reward():
    numbers = {"reward": np.ones(320), "a_reward": A, "helpfulness": STYLE}
    found = inferred(numbers, "reward")
    assert found.choices == (("a_reward",), ("a_reward", "helpfulness"))
    found = inferred({"reward": np.ones(320), "x": A}, "reward")
    assert found.choices == (("x",), ("reward",))


def test_ids_of_single_rows_are_no_groups_if_most_prompts_are_shared():
    found, _ = groups_of(keys(1, 2, 3, 4), keys(5, 5, 6, 7))
    assert not found.alone
    found, _ = groups_of(keys(1, 2, 3, 4), keys(5, 5, 6, 6))
    assert found.alone
    found, _ = groups_of(keys(1, 2, 3, 4), keys(5, 5, 6, 6), np.arange(4))
    assert not found.alone


def test_what_is_named_as_an_answer_needs_few_groups_to_be_of_the_dataset():
    few = slice(0, 16)
    numbers = {"accuracy": A[few], "answer_quality": PER_PROMPT[few], "clarity": PER_PROMPT[few]}
    found = infer(Sample(numbers, GROUPS[few]), Layout())
    assert "answer_quality" not in found.names
    assert "clarity" in found.names


def test_few_rollouts_do_not_show_that_one_reward_repeats_another():
    numbers = {"accuracy": A[:8], "style": 2 * A[:8]}
    assert len(infer(Sample(numbers, GROUPS[:8]), Layout()).names) == 2
    numbers = {"accuracy": A, "style": 2 * A}
    assert len(inferred(numbers).names) == 1


def test_a_number_that_follows_with_negative_weights_is_a_reward():
    numbers = {"a_reward": A, "b_reward": STYLE, "c_reward": -A - STYLE}
    assert len(inferred(numbers).names) == 3
    assert inferred({**numbers, "c_reward": A + STYLE}).total == "c_reward"


@pytest.mark.parametrize("name", ["c_reward", "w"])
def test_a_number_that_three_values_of_others_explain_by_chance_is_no_total(name):
    a, b, c = np.tile([(1, 0, 0.3), (0, 1, 0.7), (0, 0, 0)], (100, 1)).T
    few = infer(Sample({"a_reward": a, "b_reward": b, name: c}, np.arange(300) // 4), Layout())
    assert few.total is None


def test_a_number_that_follows_from_one_reward_is_not_the_total_of_all():
    numbers = {"rewards.a": A, "rewards.b": np.ones(320), "w": 2 * A}
    assert inferred(numbers).total is None


def test_a_sum_of_some_of_the_rewards_is_not_the_total_of_all():
    numbers = {"rewards.a": A, "rewards.b": B, "rewards.c": C, "w": A + 2 * B}
    assert inferred(numbers).total is None


def test_a_part_of_the_total_is_not_found_among_monitors_of_few_rollouts():
    rows = slice(0, 8)
    numbers = {"a_reward": A[rows], "b_reward": B[rows], "kl": STYLE[rows]}
    numbers["reward"] = A[rows] + STYLE[rows]
    found = infer(Sample(numbers, GROUPS[rows]), Layout(total="reward"))
    assert list(found.names) == ["a_reward", "b_reward"]


def test_a_number_of_any_name_may_be_a_part_of_the_total():
    numbers = {"reward": A + 0.5 * STYLE, "a_reward": A, "gizmo": STYLE}
    assert inferred(numbers, "reward").weights == pytest.approx({"a_reward": 1, "gizmo": 0.5})


def test_a_reward_that_a_length_gives_is_a_reward_beside_others():
    length = RNG.integers(10, 99, 320).astype(float)
    numbers = {"reward": -0.01 * length, "a_reward": A, "response_length": length}
    assert list(inferred(numbers, "reward").names) == ["reward", "a_reward"]


def test_a_total_of_one_of_several_logged_numbers_is_the_only_reward():
    found = inferred({"score": A, "acc": A, "judge": C}, "score")
    assert (found.kind, list(found.names)) == ("total", ["score"])


def test_a_number_named_as_a_total_is_tried_before_one_named_reward():
    numbers = {"reward": A, "a_reward": A, "b_reward": B, "total_reward": A + 0.5 * B}
    assert inferred(numbers, "reward").total == "total_reward"


def test_a_number_that_contains_one_of_the_rewards_is_not_a_reward_of_its_own():
    assert inferred({"reward": A * STYLE, "a_reward": A, "b_reward": B}, "reward").refused


def test_two_numbers_named_as_totals_that_contain_nothing_are_refused():
    assert inferred({"reward": C, "score": STYLE, "a_reward": A}, "reward").refused


def test_a_score_beside_an_object_of_rewards_is_a_reward_if_it_contains_none_of_them():
    found = inferred({"rewards.a": A, "rewards.b": B, "score": C}, "score")
    assert list(found.names) == ["score", "a", "b"]


def test_one_number_of_an_unknown_name_leaves_the_scalar_the_only_reward():
    assert list(inferred({"reward": C, "gizmo": STYLE}, "reward").names) == ["reward"]


def test_a_count_of_what_was_earned_leaves_a_doubt_beside_usual_names():
    numbers = {"accuracy": A, "num_tests_passed": np.round(4 * STYLE)}
    assert inferred(numbers).choices == (("accuracy",), ("accuracy", "num_tests_passed"))


def test_names_that_do_not_show_what_they_are_are_rewards_if_the_user_named_the_others():
    assert list(inferred({"accuracy": A, "gizmo": B}, described=True).names) == [
        "accuracy",
        "gizmo",
    ]


def test_a_clipped_form_of_a_part_of_the_total_is_a_copy():
    numbers = {"a_reward": A, "judge_reward": STYLE, "clipped_judge_reward": np.minimum(STYLE, 0.5)}
    found = inferred({"score": A + STYLE, **numbers}, "score")
    assert list(found.names) == ["a_reward", "judge_reward"]
    assert found.left_out["clipped_judge_reward"] == "copy"


@pytest.mark.parametrize(
    "total", [0.02 * B + 0.01 * A, 0 * A, 1e200 * A], ids=["tiny", "constant", "huge"]
)
def test_unrelated_fields_explain_no_total(total):
    """The rounding of a tiny one is half as large as its variation."""
    assert explained(["b", "c"], {"b": B, "c": C, "total": total}, "total") is None


@pytest.mark.parametrize(("weight", "contradicts"), [(1, ""), (1.04, "reward")])
def test_a_total_of_few_rollouts_may_differ_from_the_sum_by_its_rounding(weight, contradicts):
    fine = np.round(np.linspace(0.1234, 0.9876, 8) ** 2, 4)
    total = np.round(A[:8] + weight * fine, 2)
    numbers = {"reward": total, "rewards.a": A[:8], "rewards.b": fine}
    found = infer(Sample(numbers, GROUPS[:8]), Layout(total="reward"))
    assert found.contradicts == contradicts


def test_an_object_of_other_numbers_too_has_no_monitors_at_any_depth():
    numbers = {f"reward_info.{name}": A for name in ("accuracy", "kl", "loss.parse", "math.style")}
    assert list(inferred(numbers).names) == ["accuracy", "math.style"]
    assert "kl" in inferred({"rewards.accuracy": A, "rewards.kl": B}).names


def test_a_few_rollouts_do_not_contradict_the_rewards_that_the_user_named():
    sample = Sample({"reward": (A * STYLE)[:12], "a_reward": A[:12]}, GROUPS[:12])
    assert not named_by_user(sample, Layout(total="reward"), ["a_reward"]).contradicts


def test_penalties_have_neither_weights_nor_times():
    assert is_named_reward("length_penalty")
    assert not any(map(is_named_reward, ("penalty_weight", "time_penalty", "bonus_id")))


def test_a_length_beside_other_fields_is_no_reward_outside_of_formats_of_functions():
    numbers = {"accuracy": A, "length": STYLE, "is_text": B, "near_target": C}
    assert list(inferred(numbers).names) == ["accuracy"]
    assert list(inferred(numbers, kind="function").names) == list(numbers)


def test_an_object_that_describes_a_reward_gives_it_its_name():
    numbers = {"rewards.a.value": A, "rewards.a.raw": STYLE, "rewards.b.value": B}
    assert list(inferred(numbers).names) == ["a", "b"]
