"""An estimator with its options, as a configuration names them."""

import json
import random

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tests.refusals import config_error

from gdpo.advantages import AdvantageRule, RunningScale, gdpo, mo_grpo, sa_mrpo, saw, turn_gdpo

NAMES = ["format", "correct"]
WEIGHTS = [1.0, 1.0]
REWARDS = np.random.default_rng(0).random((4, 6, 2))


def rule_of(name, *options, **declared):
    return AdvantageRule(name, NAMES, *options, **declared)


@pytest.mark.parametrize("floor", [[0.0, 3.0], {"correct": 3.0}, {"format": None, "correct": 3.0}])
@pytest.mark.parametrize("to_array", [np.asarray, torch.tensor])
def test_options_reach_the_estimator_and_numbers_by_name_their_reward(floor, to_array):
    rule = rule_of("gdpo", {"noise_floor": floor, "max_advantage": 1})
    wanted = gdpo(to_array(REWARDS), WEIGHTS, noise_floor=[0.0, 3.0], max_advantage=1)
    assert_array_equal(rule(to_array(REWARDS), WEIGHTS), wanted)


def test_declared_ranges_are_used_where_an_estimator_needs_them_and_options_override_them():
    declared = {"low": [0.0, 0.0], "high": [1.0, 1.0]}
    rule = rule_of("sa_mrpo", **declared)
    assert_array_equal(rule(REWARDS, WEIGHTS), sa_mrpo(REWARDS, WEIGHTS, low=[0, 0], high=[1, 1]))
    other = rule_of("sa_mrpo", {"high": [2.0, 5.0], "gamma": 1}, **declared)
    assert_array_equal(
        other(REWARDS, WEIGHTS), sa_mrpo(REWARDS, WEIGHTS, low=[0, 0], high=[2, 5], gamma=1)
    )
    rule_of("gdpo", **declared)  # has no use for them


def test_a_bound_by_name_leaves_the_declared_ones_of_the_others():
    nothing = float("nan")
    rule = rule_of("saw", {"low": {"format": -1.0}}, low=[nothing, 0.0])
    assert_array_equal(rule(REWARDS, WEIGHTS), saw(REWARDS, WEIGHTS, low=[-1.0, 0.0]))


def test_token_counts_are_asked_for_and_come_with_the_batch():
    counts = np.arange(24).reshape(4, 6) + 1
    rule = rule_of("gdpo", {"token_counts": True})
    assert rule.wants_token_counts
    wanted = gdpo(REWARDS, WEIGHTS, token_counts=counts)
    assert_array_equal(rule(REWARDS, WEIGHTS, token_counts=counts), wanted)
    with config_error("token_counts"):
        rule(REWARDS, WEIGHTS)
    plain = rule_of("gdpo")
    assert not plain.wants_token_counts
    assert_array_equal(plain(REWARDS, WEIGHTS, token_counts=counts), gdpo(REWARDS, WEIGHTS))


def test_constraints_learn_and_their_state_survives_json():
    options = {"targets": {"format": 1.0}, "step_size": 2.0}
    rule = rule_of("constrained_grpo", options)
    assert_array_equal(rule(REWARDS, WEIGHTS), mo_grpo(REWARDS, [0.0, 1.0]))
    rule.update(torch.zeros(2, 4, 2), WEIGHTS)
    assert rule.metrics(NAMES, WEIGHTS) == {"rewards/format/multiplier": 2.0}
    assert_allclose(rule(REWARDS, WEIGHTS), mo_grpo(REWARDS, [2.0, 1.0]))
    other = rule_of("constrained_grpo", options)
    other.restore(json.loads(json.dumps(rule.state())))
    assert_array_equal(other(REWARDS, WEIGHTS), rule(REWARDS, WEIGHTS))


def test_a_rule_without_state_has_none():
    rule = rule_of("gdpo")
    rule.update(REWARDS, WEIGHTS)
    rule.restore({})
    assert rule.state() == rule.metrics(NAMES, WEIGHTS) == {}


def test_a_running_scale_includes_its_own_group_and_its_state_survives_json():
    options = {"scale_half_life": 3, "noise_floor": {"format": 0.5}}
    rule, scale = rule_of("gdpo", options), RunningScale(3, [0.5, 0.0])
    for group in REWARDS[:3, None]:
        scale.update(group, WEIGHTS)
        wanted = gdpo(group, WEIGHTS, noise_floor=[0.5, 0.0], scale=scale.value)
        for _ in range(2):  # without an update, a call changes nothing
            assert_array_equal(rule(group, WEIGHTS), wanted)
        rule.update(group, WEIGHTS)
    assert rule.state() == scale.state()
    other = rule_of("gdpo", options)
    other.restore(json.loads(json.dumps(rule.state())))
    last = REWARDS[3:]
    assert_array_equal(other(last, WEIGHTS), rule(last, WEIGHTS))
    with config_error("running scale"):
        other.restore({"multipliers": [1.0, None]})


def test_an_estimator_of_ones_own_takes_its_own_options():
    rule = rule_of(f"{__name__}:with_an_option", {"factor": 5})
    assert_array_equal(rule(REWARDS, WEIGHTS), 5 * REWARDS[..., 0])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpdo", {}, "'gpdo': did you mean 'gdpo'"),
        ("gdpo", {"noise_flor": 1}, "'noise_flor': did you mean 'noise_floor'"),
        ("gdpo", {"noise_floor": {"formt": 1}}, "noise_floor: .*'formt'"),
        ("gdpo", {"noise_floor": [1, 2, 3]}, "noise_floor"),
        ("gdpo", {"noise_floor": "much"}, "options of estimator 'gdpo'"),
        ("gdpo", {"noise_floor": [True, 0.1]}, "noise_floor .*True"),
        ("gdpo", {"max_advantage": "5"}, "max_advantage"),
        ("gdpo", {"max_advantage": 10**400}, "options of estimator 'gdpo'"),
        ("sa_mrpo", {"low": [0, 0, 0], "high": [1, 1]}, "low"),
        ("constrained_grpo", {"targets": 0.9}, "targets"),
        ("constrained_grpo", {"targets": {"format": float("inf")}}, "targets"),
        ("builtins:max", {}, "builtin.* max|max"),
        ("gdpo", {"token_counts": [1]}, "token_counts"),
        ("gdpo", {"scale": 2.0}, "'scale': .*scale_half_life"),
        ("gdpo", {"scale_half_life": "long"}, "scale_half_life.*'long'"),
        ("gdpo", {"scale_half_life": 128, "token_counts": True}, "token_counts"),
        ("mo_grpo", {"scale_half_life": 128}, "'mo_grpo' .*'scale_half_life'"),
        ("sa_mrpo", {}, "'low' .* format, correct"),
        ("sa_mrpo", {"low": {"format": 0}, "high": [1, 1]}, "'low' .*correct"),
        ("constrained_grpo", {}, "targets"),
        ("constrained_grpo", {"target": {}}, "'target': did you mean 'targets'"),
        ("constrained_grpo", {"targets": {"format": "high"}}, "targets .*'high'"),
        ("constrained_grpo", {"targets": {"format": 1}, "step_size": 0}, "step_size"),
    ],
)
def test_what_cannot_work_is_an_error_at_once(name, options, message):
    with config_error(message):
        rule_of(name, options)


# Estimators for turns


OF_TURNS = np.random.default_rng(0).random((3, 4, 5, 2))
TURNS = np.random.default_rng(0).integers(1, 6, (3, 4))


def test_an_estimator_for_turns_gets_the_turns_and_its_options_by_name():
    rule = rule_of("turn_gdpo", {"outcome": {NAMES[1]: True}}, turns=True)
    assert rule.wants_turns
    wanted = turn_gdpo(OF_TURNS, [1.0, 2.0], turns=TURNS, outcome=[False, True])
    assert_array_equal(rule(OF_TURNS, [1.0, 2.0], turns=TURNS), wanted)
    rule.check_prompt_weights()
    each = np.array([[1.0, 2.0], [0.5, np.nan], [0.0, 1.0]])
    wanted = turn_gdpo(OF_TURNS, each, turns=TURNS, outcome=[False, True])
    assert_array_equal(rule(OF_TURNS, each, turns=TURNS), wanted)
    with config_error("needs the number of turns of each rollout"):
        rule(OF_TURNS, [1.0, 2.0])
    assert not rule_of("gdpo", turns=True).wants_turns


def test_a_schedule_changes_the_weights_of_an_estimator_for_turns():
    schedules = {NAMES[0]: {"from": 1.0, "to": 0.0, "steps": 1}}
    rule = rule_of("turn_gdpo", {"schedules": schedules}, turns=True)
    rule.update(OF_TURNS.sum(axis=2), [1.0, 1.0])
    wanted = turn_gdpo(OF_TURNS, [0.0, 1.0], turns=TURNS)
    assert_array_equal(rule(OF_TURNS, [1.0, 1.0], turns=TURNS), wanted)


def own_of_turns(rewards, weights, *, turns):
    return turn_gdpo(rewards, weights, turns=turns)


def of_turns_with_one_weight(rewards, weights, *, turns):
    return rewards @ np.ones(2) * np.asarray(weights)[0]


@pytest.mark.parametrize("name", ["turn_gdpo", f"{__name__}:own_of_turns"])
def test_an_estimator_for_turns_is_refused_where_there_are_none(name):
    with config_error(r"GDPOTrainer \(TRL\) or in verl"):
        rule_of(name)
    rule = rule_of(name, turns=True)
    assert rule(OF_TURNS, [1, 1], turns=TURNS).shape == (3, 4, 5)
    rule.check_prompt_weights()


def test_the_result_of_an_own_estimator_for_turns_is_checked():
    rule = rule_of(f"{__name__}:of_turns_with_one_weight", turns=True)
    with config_error("does not take weights for each prompt"):
        rule.check_prompt_weights()
    rule.estimator = lambda rewards, weights, *, turns: rewards[:, :, 0, 0]
    with config_error(r"return an array \[prompt, sample, turn\] of shape"):
        rule(OF_TURNS, [1, 1], turns=TURNS)


# A user's estimator is tried out


def misspelt(rewards, weights):
    return rewrds[..., 0]  # noqa: F821


def of_wrong_shape(rewards, weights):
    return rewards


def not_finite(rewards, weights):
    return rewards[..., 0] * float("nan")


def leaves(rewards, weights):
    raise SystemExit(0)


def overwrites_rewards(rewards, weights):
    rewards[...] = 0
    return rewards[..., 0]


def overwrites_weights(rewards, weights):
    weights[0] = 5.0
    return rewards[..., 0]


def overwrites_turns(rewards, weights, *, turns):
    turns[0, 0] = 1
    return rewards[..., 0] * 0.0


def of_one_argument(rewards):
    called.append(rewards)


def with_a_third_argument(rewards, weights, more):
    called.append(rewards)


called = []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("misspelt", r"NameError: name 'rewrds' .*test_rule\.py, line \d+"),
        ("of_wrong_shape", r"shape \(6, 16, 2\): return an array \[prompt, sample\]"),
        ("not_finite", "not finite"),
        ("leaves", "SystemExit"),
        ("overwrites_rewards", "'rewards'.* copy"),
        ("overwrites_weights", "'weights'.* copy"),
        ("overwrites_turns", "'turns'.* copy"),
        ("of_one_argument", r"\(rewards, weights\), .*signature is \(rewards\)"),
        ("with_a_third_argument", r"keyword-only"),
    ],
)
@pytest.mark.parametrize("weights", [None, [1.0, 1.0], torch.ones(2, dtype=torch.float64)])
def test_a_broken_estimator_of_ones_own_is_refused_when_it_is_named(function, message, weights):
    name = f"{__name__}:{function}"
    with config_error(f"estimator '{name}' .*{message}"):
        rule_of(name, turns=True, weights=weights)
    assert not called


def test_a_function_that_cannot_be_an_estimator_is_never_called():
    with config_error(r"'os:system' .*\(command\)"):
        rule_of("os:system")


def of_tensors(rewards, weights):
    return torch.einsum("psk,k->ps", rewards, weights)


def of_numpy(rewards, weights):
    return np.einsum("psk,k->ps", rewards, weights, out=np.empty(rewards.shape[:2]))


def of_large_groups(rewards, weights, *, least=8):
    if rewards.shape[1] < least or len(rewards) < 2:
        raise ValueError("the groups are too small")
    return rewards @ weights


def of_groups_of_four(rewards, weights):
    return (np.eye(4) - 0.25) @ np.asarray(rewards) @ np.asarray(weights)


def of_one_prompt(rewards, weights):
    (group,) = np.asarray(rewards)
    return (group @ np.asarray(weights))[None]


def of_weights_per_prompt(rewards, weights):
    assert weights.ndim == 3
    return (rewards * weights).sum(-1)


class Remembering:
    """Subtracts the mean of all batches so far."""

    def __init__(self):
        self.seen = []

    def __call__(self, rewards, weights):
        self.seen.append(rewards.mean())
        return rewards[..., 0] - np.mean(self.seen)


remembering = Remembering()


def test_trying_an_object_leaves_its_state_as_it_was():
    rule_of(f"{__name__}:remembering")
    assert remembering.seen == []


def at_random(rewards, weights):
    return np.random.rand(*rewards.shape[:2]) + random.random() + torch.rand(1).item()  # noqa: NPY002


def of_shares(rewards, weights):
    assert abs(sum(weights) - 1) < 1e-9
    return rewards @ weights


def of_pass_rates(rewards, weights):
    rate = (rewards[..., :1] == 1).mean(1, keepdims=True)
    return ((rewards[..., :1] - rate) / (rate * (1 - rate)) ** 0.5)[..., 0]


def with_ranges(rewards, weights, *, low, high):
    low, high = np.array(low), np.array(high)
    assert np.all((np.asarray(rewards) >= low) & (np.asarray(rewards) <= high))
    return ((rewards - low) / (high - low)) @ np.asarray(weights)


def with_token_counts(rewards, weights, *, token_counts):
    return rewards[..., 0] / token_counts


def with_an_option(rewards, weights, *, factor):
    return factor * rewards[..., 0]


def of_turns_and_counts(rewards, weights, *, turns, token_counts=None):
    assert rewards.ndim == 4
    assert turns.max() > 1
    assert token_counts is not None
    return rewards[..., 0] * (np.arange(rewards.shape[2]) < turns[..., None])


@pytest.mark.parametrize(
    "function",
    [
        *("of_tensors", "of_numpy", "of_large_groups", "of_shares", "of_groups_of_four"),
        *("of_one_prompt", "at_random", "of_weights_per_prompt", "of_pass_rates", "with_ranges"),
        *("with_token_counts", "of_turns_and_counts"),
    ],
)
def test_an_estimator_of_ones_own_that_has_needs_is_not_refused(function):
    options = {"token_counts": True} if "counts" in function else {}
    declared = {"low": [-2.0, 5.0], "high": [-1.0, 9.0]} if function == "with_ranges" else {}
    rule_of(f"{__name__}:{function}", options, turns=True, **declared)


def test_trying_an_estimator_leaves_the_random_states_as_they_were():
    def drawn():  # not Python's: type checks draw from it in tests
        return np.random.rand(), torch.rand(1).item()  # noqa: NPY002

    states = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    expected = drawn()
    np.random.set_state(states[0])  # noqa: NPY002
    torch.set_rng_state(states[1])
    rule_of(f"{__name__}:at_random")
    assert drawn() == expected


def test_the_kind_of_array_and_the_values_of_the_weights_are_those_of_the_run():
    rule_of(f"{__name__}:of_tensors", weights=torch.ones(2, dtype=torch.float64))
    with config_error("of_numpy"):
        rule_of(f"{__name__}:of_numpy", weights=torch.ones(2, dtype=torch.float64))
    with config_error("of_shares"):
        rule_of(f"{__name__}:of_shares", weights=[1.0, 1.0])


def of_tensors_per_prompt(rewards, weights):
    return torch.nansum(rewards * weights, dim=-1)


def test_weights_per_prompt_are_tried_with_the_kind_of_array_that_works():
    rule_of(f"{__name__}:of_tensors_per_prompt").check_prompt_weights()


@pytest.mark.parametrize(
    ("function", "message"),
    [("with_token_counts", "token_counts: true"), ("with_an_option", "'factor'")],
)
def test_a_required_option_of_ones_own_estimator_is_named(function, message):
    with config_error(message):
        rule_of(f"{__name__}:{function}")
