"""Tests the settings read from `algorithm`, and what is refused before a start."""

import pytest
from tests.integrations.verl.configs import Config

from gdpo import ConfigError
from gdpo.advantages import ESTIMATORS
from gdpo.integrations.rows import estimator_names, is_ours
from gdpo.integrations.verl.settings import check_record, read_settings


def read(**more):
    return read_settings({"adv_estimator": "gdpo", "gdpo_reward_keys": ["a", "b"], **more})


def refused(match, **more):
    with pytest.raises(ConfigError, match=match):
        read(**more)


def test_every_estimator_has_a_name_and_verls_gdpo_is_ours():
    assert estimator_names() == ["gdpo", *(f"gdpo/{name}" for name in ESTIMATORS)]
    assert all(map(is_ours, estimator_names()))


@pytest.mark.parametrize("name", ["gae", "grpo", "rloo", "gdpo_other"])
def test_the_estimators_of_verl_and_of_others_stay_theirs(name):
    assert not is_ours(name)


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"constrained_grpo", "sa_mrpo", "saw"}))
def test_a_prefix_leads_to_the_estimator_of_that_name(name):
    assert read(adv_estimator=f"gdpo/{name}").rule.name == name


def test_ones_own_estimator_goes_by_module_and_attribute():
    assert (
        read(adv_estimator="gdpo/gdpo.advantages.contrib:mo_grpo").rule.estimator.__name__
        == "mo_grpo"
    )


def test_options_go_by_reward_name():
    options = {"targets": {"a": 0.5}, "step_size": 0.1}
    settings = read(adv_estimator="gdpo/constrained_grpo", gdpo_options=options)
    assert settings.rule.duals is not None


def test_weights_go_in_order_or_by_name_and_are_1_by_default():
    assert read().weights == (1.0, 1.0)
    assert read(gdpo_reward_weights=[1, 0.5]).weights == (1.0, 0.5)
    assert read(gdpo_reward_weights={"b": 3}).weights == (1.0, 3.0)


def test_an_equal_configuration_gives_the_same_rule_with_its_state():
    assert read() is read()
    assert read() is not read(gdpo_options={"max_advantage": 5})


def configured(folder, use_v1, estimator):
    algorithm = Config(gdpo_rollouts=folder, adv_estimator=estimator)
    return Config(algorithm=algorithm, trainer=Config(use_v1=use_v1))


def test_a_record_is_refused_by_trainers_that_have_a_program_of_their_own():
    config = Config(configured("out", True, "gdpo"), rollout={"n_gpus_per_node": 1})
    with pytest.raises(ConfigError, match="separate_async"):
        check_record(config)


def test_a_record_is_for_the_default_trainer_and_our_estimators():
    check_record(configured("out", True, "gdpo/grpo"))
    check_record(configured(None, False, "gae"))
    read(gdpo_rollouts="out")


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        (("out", True, "grpo"), "algorithm.adv_estimator=grpo"),
        (("out", False, "gdpo"), "trainer.rollout_data_dir"),
        ((5, True, "gdpo"), "gdpo_rollouts=5"),
        (("", True, "gdpo"), "gdpo_rollouts=''"),
    ],
)
def test_a_record_that_nothing_would_write_is_refused(asked, match):
    with pytest.raises(ConfigError, match=match):
        check_record(configured(*asked))


def test_an_unknown_estimator_is_an_error_with_the_nearest_name():
    refused("did you mean 'mo_grpo'", adv_estimator="gdpo/mogrpo")


def test_an_unknown_option_is_an_error():
    refused("no option 'noise'", gdpo_options={"noise": 1})


def test_options_that_are_no_mapping_are_an_error():
    refused("gdpo_options=5", gdpo_options=5)


@pytest.mark.parametrize("keys", [None, [], "a"])
def test_keys_that_name_no_rewards_are_an_error(keys):
    refused("gdpo_reward_keys=", gdpo_reward_keys=keys)


def test_two_equal_keys_are_an_error():
    refused("repeated: a", gdpo_reward_keys=["a", "a"])


@pytest.mark.parametrize("weights", [[1], [1, 2, 3]])
def test_a_wrong_number_of_weights_is_an_error(weights):
    refused(f"gdpo_reward_weights=.*has {len(weights)} entries for 2", gdpo_reward_weights=weights)


@pytest.mark.parametrize("weights", [{"c": 1}, ["x", "y"], 3])
def test_weights_that_are_none_are_an_error(weights):
    refused("gdpo_reward_weights", gdpo_reward_weights=weights)


def test_a_misspelt_field_is_an_error():
    refused("did you mean 'gdpo_reward_weights'", gdpo_reward_weight=[1, 2])


def test_switches_of_verl_that_would_have_no_effect_are_errors():
    refused("use_kl_in_reward=True has no effect", use_kl_in_reward=True)
    refused("norm_adv_by_std_in_grpo=False has no effect", norm_adv_by_std_in_grpo=False)
    assert read(use_kl_in_reward=False, norm_adv_by_std_in_grpo=True).names == ("a", "b")
