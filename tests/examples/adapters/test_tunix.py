"""Tests the adapter for tunix against recorded interfaces of tunix."""

from threading import Thread

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.conformance.others.adapters import adapter
from tests.examples.adapters.stand_ins import (
    NAMES,
    WEIGHTS,
    by_formula,
    install,
    one_by_one,
    registering,
    scored,
)
from tests.refusals import config_error

TEXTS = ["p"] * 12, ["c"] * 12


class SequenceLevel:
    """Stands in for tunix's reward manager: returns the sum, and logs each reward."""

    def __init__(self, reward_fns, algo_config):
        self.reward_fns, self.algo_config = reward_fns, algo_config

    def __call__(self, prompts, completions, **kwargs):
        rewards = np.stack([f(prompts, completions, **kwargs) for f in self.reward_fns], axis=1)
        logged = {
            f"rewards/{function.__name__}": (rewards[:, i], np.mean)
            for i, function in enumerate(self.reward_fns)
        }
        return {"rewards": np.nansum(rewards, axis=1), "log_metrics": logged}


@pytest.fixture
def registry(monkeypatch):
    managers, estimators = {"sequence-level": SequenceLevel}, {}
    contents = {
        "get_reward_manager": managers.__getitem__,
        "register_reward_manager": registering(managers),
        "register_advantage_estimator": registering(estimators),
    }
    install(monkeypatch, **{"tunix.rl.function_registry": contents})
    return managers, estimators


@pytest.fixture
def register(registry):
    return adapter("tunix").register


def constant(name, values):
    def function(prompts, completions, **kwargs):
        return values

    function.__name__ = name
    return function


def of_rewards(names=NAMES):
    """Return the reward functions with these names."""
    return [constant(name, scored(12)[:, NAMES.index(name)]) for name in names]


def test_rewards_reach_the_estimator_one_by_one_and_get_the_advantages_of_the_formula(
    registry, register
):
    managers, estimators = registry
    register(reward_keys=NAMES, reward_weights=WEIGHTS)
    functions = [*of_rewards(NAMES[::-1]), constant("third", [9.0] * 12)]
    info = managers["gdpo"](functions, None)(*TEXTS, mode="train")
    assert_array_equal(info["rewards"], scored(12))
    assert set(info["log_metrics"]) == {"rewards/correct", "rewards/format", "rewards/third"}
    advantages = estimators["gdpo"](rewards=info["rewards"], num_generations=4)
    assert_allclose(advantages, by_formula(scored(12), [4] * 3), rtol=0, atol=1e-12)


def test_a_key_that_is_no_reward_functions_name_is_refused_when_the_learner_is_made(
    registry, register
):
    register(reward_keys=["corect", "format"])
    functions = of_rewards()
    with config_error(r"'corect'.*Available: correct, format"):
        registry[0]["gdpo"](functions, None)
    with config_error("__name__"):
        registry[0]["gdpo"]([*functions, constant("format", []), constant("corect", [])], None)


@pytest.mark.parametrize("rewards", [np.zeros(12), np.zeros((12, 3))])
def test_sums_or_too_many_rewards_are_refused(registry, register, rewards):
    register(reward_keys=NAMES)
    with config_error("reward_manager"):
        registry[1]["gdpo"](rewards, 4)


def test_token_counts_are_refused_because_tunix_gives_none(registry, register):
    with config_error("token_counts"):
        register(reward_keys=NAMES, options={"token_counts": True})
    assert "gdpo" not in registry[1]


def test_groups_that_come_one_by_one_share_a_running_scale(registry, register):
    rule = register(reward_keys=NAMES, reward_weights=WEIGHTS, options={"scale_half_life": 128})
    for group, wanted, state in one_by_one(scored(3, 4)):
        assert_allclose(registry[1]["gdpo"](group, 4), wanted, atol=1e-15)
        assert rule.state() == state


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("constrained_grpo", {"targets": {"correct": 0.9}, "step_size": 0.1}),
        ("gdpo", {"scale_half_life": 128}),
    ],
)
def test_an_evaluation_does_not_change_the_state(registry, register, estimator, options):
    rule = register(reward_keys=NAMES, estimator=estimator, options=options)
    manager, before = registry[0]["gdpo"](of_rewards(), None), rule.state()

    def run(mode):
        info = manager(*TEXTS, mode=mode)
        return registry[1]["gdpo"](info["rewards"], 4)

    evaluated = run("eval")
    assert rule.state() == before
    assert_array_equal(run("train"), evaluated)
    assert rule.state() != before


def test_the_mode_of_another_thread_has_no_effect(registry, register):
    rule = register(reward_keys=NAMES, options={"scale_half_life": 128})
    manager = registry[0]["gdpo"](of_rewards(), None)
    evaluation = Thread(target=lambda: manager(*TEXTS, mode="eval"))
    evaluation.start()
    evaluation.join()
    registry[1]["gdpo"](scored(12), 4)
    assert rule.state()["rollouts"] > 0


def test_a_learner_without_reward_functions_names_what_is_missing(registry, register):
    register(reward_keys=NAMES)
    with config_error("'correct'"):
        registry[0]["gdpo"]([None], None)
