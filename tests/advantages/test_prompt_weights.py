"""Weights of each prompt: what NaN means, which shapes are allowed, and user-written estimators.

The battery (test_battery.py) compares weights per prompt with batches of one prompt, with separate
rewards and with the oracles.
"""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tests.advantages.claims import SUBJECTS, options_of
from tests.refusals import config_error

from gdpo.advantages import AdvantageRule, RunningScale, arrays, gdpo, mo_grpo

NAN = float("nan")
REWARDS = np.random.default_rng(0).integers(0, 8, (4, 6, 2)) / 8
WEIGHTS = np.array([[1.0, 0.5], [2.0, NAN], [NAN, 1.0], [NAN, NAN]])


@pytest.fixture(params=[8192, 0], ids=["small", "large"])
def size(request, monkeypatch):
    """Small tensors are computed with NumPy, large ones with torch."""
    monkeypatch.setattr(arrays, "_SMALL", request.param)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("to_array", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_a_weight_of_nan_equals_a_missing_reward(name, to_array):
    estimator, given = SUBJECTS[name][0], options_of(name, REWARDS)
    missing = np.where(np.isnan(WEIGHTS)[:, None, :], NAN, REWARDS)
    got = estimator(to_array(REWARDS), to_array(WEIGHTS), **given)
    wanted = estimator(missing, np.nan_to_num(WEIGHTS)[:, None, :], **given)
    assert_allclose(np.asarray(got), wanted, atol=1e-12)
    assert np.any(np.asarray(got)[:3] != 0)
    if SUBJECTS[name][2].zero_variance_groups:
        assert not np.any(np.asarray(got)[3])


def test_nested_lists_are_weights_per_prompt():
    weights = np.nan_to_num(WEIGHTS)
    assert_array_equal(gdpo(REWARDS, weights.tolist()), gdpo(REWARDS, weights))
    rule = AdvantageRule("gdpo", ["a", "b"])
    assert_array_equal(rule(REWARDS, WEIGHTS.tolist()), rule(REWARDS, WEIGHTS))


@pytest.mark.parametrize(
    "weights",
    [np.ones((3, 2)), np.ones((4, 3)), np.ones((4, 6, 2)), np.full((4, 2), np.inf)],
    ids=["prompts", "rewards", "rollouts", "infinite"],
)
def test_weights_that_do_not_fit_are_refused(weights):
    with config_error("weights"):
        gdpo(REWARDS, weights.tolist())


def plain_sum(rewards, weights):
    """Written for one weight per reward, with NumPy's broadcasting."""
    return np.nansum(rewards * weights, axis=-1)


def test_an_estimator_written_for_lists_gets_weights_that_broadcast():
    rule = AdvantageRule(f"{__name__}:plain_sum", ["a", "b"])
    rule.check_prompt_weights()
    weights = np.array([[1.0, 0.0], [2.0, 3.0], [NAN, 1.0], [0.0, 0.5]])
    got = rule(REWARDS, weights)
    for p in range(4):
        own = np.nan_to_num(weights[p])
        assert_allclose(got[[p]], plain_sum(REWARDS[[p]], own), atol=1e-12)


def only_vectors(rewards, weights):
    return rewards @ np.asarray(weights).reshape(2)


@pytest.mark.parametrize("name", ["only_vectors", "first_prompts_weights"])
def test_an_estimator_without_weights_per_prompt_is_refused(name):
    rule = AdvantageRule(f"{__name__}:{name}", ["a", "b"])
    with config_error("does not take weights for each prompt"):
        rule.check_prompt_weights()


def first_prompts_weights(rewards, weights):
    weights = np.asarray(weights)
    return rewards @ (weights if weights.ndim == 1 else weights[0, 0] / 2)


def test_multipliers_ignore_rewards_that_do_not_apply():
    options = {"targets": {"b": 1.0}, "step_size": 1.0}
    rule = AdvantageRule("constrained_grpo", ["a", "b"], options)
    rewards = np.zeros((2, 4, 2))
    rewards[0, :, 1] = 1.0
    rule.update(rewards, [[1.0, 1.0], [1.0, NAN]])  # the mean of b is 1 where it applies
    assert rule.duals.multipliers[1] == 0
    rule.update(rewards, [[1.0, 1.0], [1.0, 1.0]])
    assert rule.duals.multipliers[1] == 0.5
    in_force = rule.weights_in_force(np.array([[1.0, 1.0], [1.0, NAN]]))
    assert_array_equal(in_force, [[1.0, 0.5], [1.0, NAN]])


def test_the_running_scale_takes_weights_per_prompt():
    scale = RunningScale()
    scale.update(REWARDS, WEIGHTS)
    total = np.concatenate([mo_grpo(REWARDS[[p]], np.nan_to_num(WEIGHTS[p])) for p in range(3)])
    assert scale.value == pytest.approx(np.sqrt(np.mean(total**2)))
