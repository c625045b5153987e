"""Schedules: weights that change by step, or after a reward has reached a mean."""

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tests.refusals import config_error

from gdpo.advantages import AdvantageRule, grpo

NAMES = ["format", "brevity"]
WEIGHTS = [1.0, 2.0]
LINEAR = {"schedules": {"brevity": {"from": 1.0, "to": 0.2, "steps": 4}}}
AFTER = {
    "schedules": {"brevity": {"after": {"reward": "format", "mean_at_least": 0.95}, "value": 0.25}}
}


def rule_of(name, *options, **declared):
    return AdvantageRule(name, NAMES, *options, **declared)


def batch(passing=0.5, seed=0):
    rewards = np.random.default_rng(seed).random((8, 4, 2))
    rewards[..., 0] = np.arange(32).reshape(8, 4) < 32 * passing
    return rewards


def weights_of(rule, batches):
    found = []
    for rewards in batches:
        found.append(rule.weights_in_force(WEIGHTS)[1])
        rule.update(rewards, WEIGHTS)
    return found


@pytest.mark.parametrize("estimator", ["gdpo", "grpo"])
def test_a_linear_schedule_starts_at_its_first_value_and_stays_at_its_last(estimator):
    rule = rule_of(estimator, LINEAR)
    assert weights_of(rule, [batch()] * 6) == pytest.approx([2.0, 1.6, 1.2, 0.8, 0.4, 0.4])


def test_the_advantages_use_the_weights_in_force_for_every_kind_of_weights():
    rule, rewards = rule_of("grpo", LINEAR), batch()
    rule.update(rewards, WEIGHTS)
    wanted = grpo(rewards, [1.0, 1.6])
    for weights in (WEIGHTS, np.array(WEIGHTS)):
        assert_allclose(rule(rewards, weights), wanted)
    theirs = rule(torch.tensor(rewards), torch.tensor(WEIGHTS, dtype=torch.float64))
    assert_allclose(theirs.numpy(), wanted)


def test_a_running_scale_sees_the_weights_in_force():
    rule = rule_of("gdpo", {**LINEAR, "scale_half_life": 4})
    for rewards in (batch(), batch(seed=1)):
        rule.update(rewards, WEIGHTS)
    plain = rule_of("gdpo", {"scale_half_life": 4})
    plain.update(batch(), WEIGHTS)
    plain.update(batch(seed=1), [1.0, 1.6])
    assert rule.state()["scale"] == plain.state()["scale"]


def test_a_condition_waits_for_64_groups_and_is_then_met_for_good():
    lucky, failing = batch(passing=1.0), batch(passing=0.0)
    rule = rule_of("gdpo", AFTER)
    assert weights_of(rule, [lucky] * 8 + [failing] * 20) == [2.0] * 8 + [0.5] * 20
    unlucky = rule_of("gdpo", AFTER)
    assert weights_of(unlucky, [failing] + [lucky] * 7 + [failing] * 9) == [2.0] * 17


def test_a_condition_counts_only_groups_that_the_reward_applies_to():
    rewards = batch(passing=1.0)
    rewards[1:, :, 0] = np.nan
    rule = rule_of("gdpo", AFTER)
    assert weights_of(rule, [rewards] * 65) == [2.0] * 64 + [0.5]


@pytest.mark.parametrize("options", [LINEAR, AFTER])
def test_a_resumed_schedule_goes_on_bit_for_bit(options):
    whole = rule_of("gdpo", options)
    batches = [batch(passing=1.0, seed=seed) for seed in range(12)]
    for rewards in batches[:6]:
        whole.update(rewards, WEIGHTS)
    resumed = rule_of("gdpo", options)
    resumed.restore(json.loads(json.dumps(whole.state())))
    for rewards in batches[6:]:
        assert_array_equal(resumed(rewards, WEIGHTS), whole(rewards, WEIGHTS))
        for rule in (whole, resumed):
            rule.update(rewards, WEIGHTS)
    assert resumed.state() == whole.state()


def test_a_saved_state_with_an_endless_step_or_without_schedules_is_refused():
    endless = {"schedules": {"step": float("inf"), "met": [], "means": {}}}
    for state in (endless, {"scale": 1.0, "rollouts": 1.0}):
        with config_error("schedules of this run"):
            rule_of("gdpo", LINEAR).restore(state)


def test_only_the_weights_that_change_are_metrics():
    rule = rule_of("gdpo", LINEAR)
    assert rule.metrics(NAMES, WEIGHTS) == {"rewards/brevity/weight": 2.0}
    assert rule_of("gdpo").metrics(NAMES, WEIGHTS) == {}


def test_a_constraint_and_a_schedule_multiply():
    options = {"targets": {"format": 1.0}, "step_size": 1.0, **LINEAR}
    rule = rule_of("constrained_grpo", options)
    rule.update(batch(passing=0.0), WEIGHTS)
    assert rule.weights_in_force(WEIGHTS) == pytest.approx([1.0, 1.6])
    assert set(rule.state()) == {"multipliers", "schedules"}


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({}, "schedules must map"),
        ({"brevty": {"to": 0.2, "steps": 3}}, "'brevty'.*brevity"),
        ({"brevity": 0.5}, "brevity is 0.5: write"),
        ({"brevity": {"to": 0.2}}, "write .*steps"),
        ({"brevity": {"to": 0.2, "steps": 0}}, "steps must be an integer"),
        ({"brevity": {"to": float("nan"), "steps": 3}}, "to must be a finite"),
        ({"brevity": {"to": "x", "steps": 3}}, "to must be a number"),
        ({"brevity": {"to": 10**400, "steps": 3}}, "brevity: to must be at most"),
        ({"brevity": {"from": 1e308, "to": -1e308, "steps": 3}}, "to - from"),
        ({"brevity": {"to": 0.2, "steps": 3, "value": 1}}, "write"),
        ({"brevity": {"to": 0.2, "step": 3}}, "brevity: unknown key 'step': did you mean 'steps'"),
        (
            {"brevity": {"after": {"reward": "format", "mean_atleast": 1}, "value": 1}},
            "after: unknown key 'mean_atleast': did you mean 'mean_at_least'",
        ),
        ({"brevity": {"after": {"reward": "format"}, "value": 1}}, "after is .*mean_at_least"),
        ({"brevity": {"after": {"reward": "x", "mean_at_least": 1}, "value": 2}}, "after: .*'x'"),
        ({"brevity": {"to": 1.0, "steps": 3}}, "brevity: from and to are both 1"),
        (
            {"brevity": {"after": {"reward": "format", "mean_at_least": 1}, "value": 1}},
            "brevity: from and value are both 1",
        ),
    ],
)
def test_a_schedule_that_cannot_work_is_an_error_at_once(schedule, message):
    with config_error(message):
        rule_of("grpo", {"schedules": schedule})


@pytest.mark.parametrize(("at_least", "when"), [(95, "never"), (0.0, "always")])
def test_a_condition_outside_of_the_declared_range_is_an_error_at_once(at_least, when):
    after = {"after": {"reward": "format", "mean_at_least": at_least}, "value": 0.2}
    options = {"schedules": {"brevity": after}}
    with config_error(f"brevity: .*format is {when} .*from 0 to 1"):
        rule_of("grpo", options, low=[0.0, 0.0], high=[1.0, 1.0])
    nan = float("nan")
    rule_of("grpo", options, low=[nan, 0.0], high=[nan, 1.0])
    rule_of("grpo", options)
