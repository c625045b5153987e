"""Tests the settings read from NeMo-RL's configuration, and what is refused before a start."""

import copy
import logging
import re

import pytest
from tests.integrations.nemo_rl.recorded import Grpo, Master, adv_estimator, master

from gdpo import ConfigError
from gdpo.advantages import ESTIMATORS
from gdpo.integrations.nemo_rl._settings import check_run, read_settings
from gdpo.integrations.rows import estimator_names, is_ours

GSM8K = {"task": "gsm8k"}
NAMES_OF_GSM8K = {"gdpo_reward_keys": ["format", "correctness"]}


def read(**more):
    return read_settings(adv_estimator(**more))


def refused(match, **more):
    with pytest.raises(ConfigError, match=match):
        read(**more)


def run_refused(match, *, environments=(), **more):
    with pytest.raises(ConfigError, match=match):
        check_run(master(**more), environments)


def test_every_estimator_has_a_name_and_nemo_rls_gdpo_is_ours():
    assert estimator_names() == [f"gdpo/{name}" for name in ESTIMATORS]
    assert all(map(is_ours, ["gdpo", *estimator_names()]))


@pytest.mark.parametrize("name", ["grpo", "opd", "reinforce_plus_plus", "gdpo_other"])
def test_the_estimators_of_nemo_rl_and_of_others_stay_theirs(name):
    assert not is_ours(name)


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"constrained_grpo", "sa_mrpo", "saw"}))
def test_a_prefix_leads_to_the_estimator_of_that_name(name):
    assert read(name=f"gdpo/{name}").rule.name == name


def test_ones_own_estimator_goes_by_module_and_attribute():
    assert read(name="gdpo/gdpo.advantages:mo_grpo").rule.estimator.__name__ == "mo_grpo"


def test_rewards_come_in_the_order_of_the_configuration_and_not_of_the_alphabet():
    settings = read(gdpo_reward_keys=["format", "correct"], gdpo_reward_weights=[3, 1])
    assert (settings.names, settings.weights) == (("format", "correct"), (3.0, 1.0))


def test_weights_go_by_name_and_are_1_by_default():
    assert read().weights == (1.0, 1.0)
    assert read(gdpo_reward_weights={"format": 3, "correct": 1}).weights == (1.0, 3.0)


def test_an_equal_configuration_gives_the_same_rule_with_its_state():
    assert read() is read()
    assert read() is not read(gdpo_options={"max_advantage": 5})


def test_an_unknown_estimator_is_an_error_with_the_nearest_name():
    refused("did you mean 'mo_grpo'", name="gdpo/mogrpo")


def test_an_unknown_option_is_an_error():
    refused("no option 'noise'", gdpo_options={"noise": 1})


@pytest.mark.parametrize("keys", [None, [], "a"])
def test_keys_that_name_no_rewards_are_an_error(keys):
    refused(r"grpo\.adv_estimator\.gdpo_reward_keys=", gdpo_reward_keys=keys)


@pytest.mark.parametrize("weights", [[1], [1, 2, 3], {"c": 1}, ["x", "y"]])
def test_weights_that_do_not_fit_are_an_error(weights):
    refused(r"grpo\.adv_estimator\.gdpo_reward_weights=", gdpo_reward_weights=weights)


@pytest.mark.parametrize("field", ["gdpo_reward_weight", "options"])
def test_a_field_that_nobody_reads_is_an_error(field):
    refused(f"{field}: .*Allowed: gdpo_diagnostics, gdpo_options", **{field: [1, 2]})


def test_nemo_rls_own_weights_are_refused_because_they_are_in_alphabetical_order():
    refused(r"\.reward_weights .*gdpo_reward_weights", reward_weights=[1.0, 2.0])


def test_switches_of_the_estimator_that_would_have_no_effect_are_errors():
    refused("normalize_rewards=false has no effect.*grpo_no_std", normalize_rewards=False)
    refused("use_leave_one_out_baseline=true has no effect", use_leave_one_out_baseline=True)
    refused("minus_baseline=false has no effect", minus_baseline=False)
    written = {"normalize_rewards": True, "use_leave_one_out_baseline": False}
    assert read(**written).names == ("correct", "format")


def test_a_default_that_nobody_wrote_is_no_error():
    assert adv_estimator().use_leave_one_out_baseline is True
    assert read().names == ("correct", "format")


@pytest.mark.parametrize(
    ("place", "more"),
    [
        ("loss_fn.use_kl_in_reward", {"loss": {"use_kl_in_reward": True}}),
        ("grpo.reward_scaling.enabled", {"reward_scaling": {"enabled": True}}),
        ("grpo.reward_shaping.enabled", {"reward_shaping": {"enabled": True}}),
    ],
)
def test_settings_elsewhere_that_do_not_go_with_it_are_errors(place, more):
    run_refused(f"{place}=true .*gdpo", **more)


def test_a_run_with_another_estimator_is_left_alone(caplog):
    """All that is refused for gdpo's estimators is accepted, without a warning."""
    others = {
        "reward_shaping": {"enabled": True},
        "reward_scaling": {"enabled": True},
        "use_dynamic_sampling": True,
    }
    run_refused("grpo.reward_scaling.enabled", **others, environments=["gdpo"])
    theirs = Master(grpo=Grpo(**others))
    assert not is_ours(theirs.grpo.adv_estimator.name)
    before = copy.deepcopy(theirs)
    check_run(theirs, ["gdpo"])
    assert (theirs, caplog.records) == (before, [])


def test_keys_that_our_environment_does_not_give_are_refused():
    check_run(master(NAMES_OF_GSM8K, env={"gdpo": GSM8K}), ["gdpo"])
    run_refused("gdpo_reward_keys .*'correct'", env={"gdpo": GSM8K}, environments=["gdpo"])
    check_run(master(env={"gdpo": GSM8K}), ["math_multi_reward"])


def test_our_environment_without_rewards_is_refused():
    run_refused(r"env\.gdpo .* task", environments=["gdpo"])


def test_a_reward_of_the_length_needs_a_tokenizer():
    env = {"gdpo": {"rewards": [{"name": "token_limit", "options": {"limit": 9}}]}}
    run_refused(r"env\.gdpo\.tokenizer=", env=env, environments=["gdpo"])


@pytest.mark.parametrize(
    ("grpo", "environments", "named"),
    [
        ({"use_dynamic_sampling": True}, ["math"], "use_dynamic_sampling drops groups"),
        ({}, ["math", "code"], "writes 0.0 for a reward.*all of correct, format"),
        ({}, ["nemo_gym"], "writes 0.0 for a reward"),
    ],
)
def test_settings_that_change_the_rewards_give_a_warning(caplog, grpo, environments, named):
    with caplog.at_level(logging.WARNING):
        check_run(master(**grpo), environments)
    (record,) = caplog.records
    assert re.search(named, record.getMessage())


def test_a_plain_run_gives_no_warning(caplog):
    with caplog.at_level(logging.WARNING):
        check_run(master(), ["math_multi_reward"])
    assert not caplog.records
