"""Tests the settings that all frameworks share, and the errors for invalid ones."""

import numpy as np
import pytest
from tests.refusals import config_error

from gdpo.integrations.rows import make_settings


def refused(match, keys=("a", "b"), weights=None, options=None, **place):
    with config_error(match):
        make_settings("gdpo", keys, weights, options, **place)


def test_weights_go_in_order_or_by_name_and_are_1_by_default():
    assert make_settings("gdpo", ["a", "b"], None, None).weights == (1.0, 1.0)
    assert make_settings("gdpo", ["a", "b"], [1, 0.5], None).weights == (1.0, 0.5)
    assert make_settings("gdpo", ["a", "b"], {"b": 3, "a": 1}, None).weights == (1.0, 3.0)


def test_an_unknown_detail_is_an_error_that_names_its_place():
    assert make_settings("gdpo", ["a"], None, None).detail == "brief"
    with config_error(r"algorithm\.gdpo_diagnostics='ful': .*full"):
        make_settings("gdpo", ["a"], None, None, place="+algorithm.gdpo_", detail="ful")


def test_options_reach_the_estimator():
    rule = make_settings("gdpo", ["a", "b"], None, {"max_advantage": 0.5}).rule
    rewards = np.random.default_rng(0).random((3, 4, 2))
    assert abs(rule(rewards, [1.0, 1.0])).max() == 0.5


def test_an_estimator_for_turns_is_refused_by_frameworks_without_rewards_of_turns():
    assert make_settings("turn_gdpo", ["a"], None, None, turns=True).rule.wants_turns
    with config_error(r"'turn_gdpo'.*TRL.*verl"):
        make_settings("turn_gdpo", ["a"], None, None)


@pytest.mark.parametrize("keys", [None, [], "a"])
def test_an_error_shows_the_keys_as_the_user_wrote_them(keys):
    refused(r"^reward_keys=.*for example reward_keys=\[correct,format\]", keys)
    refused(r"^x\.gdpo_reward_keys=.*example \+x\.gdpo_reward_keys=", keys, place="+x.gdpo_")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"options": 5}, "options=5"),
        ({"options": {"max_advantag": 5}}, "no option 'max_advantag'"),
        ({"weights": [1]}, "reward_weights=.*has 1 entries for 2"),
        ({"weights": [1, 2, 3]}, "reward_weights=.*has 3 entries for 2"),
        ({"weights": {"c": 1}}, "reward_weights"),
        ({"weights": ["x", "y"]}, "reward_weights"),
        ({"weights": 3}, "reward_weights"),
        ({"keys": ["a", "a"]}, "repeated: a"),
    ],
)
def test_what_no_option_or_weight_can_be_is_refused(given, match):
    refused(match, **given)


@pytest.mark.parametrize(
    ("estimator", "options", "state"),
    [
        ("constrained_grpo", {"targets": {"a": 0.5}, "step_size": 0.1}, "multipliers"),
        ("gdpo", {"scale_half_life": 128}, "scale"),
    ],
)
def test_a_state_missing_from_checkpoints_gives_a_warning(caplog, estimator, options, state):
    make_settings(estimator, ["a", "b"], None, options)
    assert f"{estimator} ({state}" in caplog.text
