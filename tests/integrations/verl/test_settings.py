"""Tests the settings read from `algorithm`, and what is refused before a start."""

import pytest
from tests.integrations.verl.configs import Config
from tests.refusals import config_error

from gdpo.advantages import ESTIMATORS
from gdpo.integrations.verl.settings import check_fields, read_settings, remarks, uses_gdpo, watches


def read(read_settings=read_settings, **more):
    return read_settings({"adv_estimator": "gdpo/gdpo", "gdpo_reward_keys": ["a", "b"], **more})


@pytest.mark.parametrize("name", ["gdpo", "gae", "grpo", "rloo", "gdpo_other"])
def test_the_estimators_of_verl_and_of_others_stay_theirs(name):
    assert not uses_gdpo({"adv_estimator": name})


def test_the_plain_name_is_taken_if_asked_for():
    replaced = {"adv_estimator": "gdpo", "gdpo_replace": True, "gdpo_reward_keys": ["a"]}
    assert uses_gdpo(replaced)
    assert read_settings(replaced).rule.name == "gdpo"
    assert not uses_gdpo({**replaced, "gdpo_replace": False})


def test_only_an_estimator_of_verl_is_watched():
    assert watches({"adv_estimator": "gdpo", "gdpo_watch": True})
    assert watches({"adv_estimator": "rloo", "gdpo_watch": True})
    assert not watches({"adv_estimator": "rloo"})
    assert not watches({"adv_estimator": "gdpo/gdpo", "gdpo_watch": True})


def test_who_writes_verls_gdpo_learns_whose_formula_runs_unless_it_was_said():
    old = Config(adv_estimator="gdpo", gdpo_reward_keys=["a"])
    (message,) = remarks(old)
    assert "verl's own" in message
    assert "adv_estimator=gdpo/gdpo" in message
    assert remarks(Config(old, gdpo_watch=True)) == remarks(Config(old, gdpo_replace=False)) == []
    assert remarks(Config(old, adv_estimator="grpo")) == []


def test_a_misspelt_field_beside_an_estimator_of_verl_is_a_remark():
    (message,) = remarks(Config(adv_estimator="grpo", gdpo_wacth=True))
    assert "did you mean 'gdpo_watch'" in message


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"constrained_grpo", "sa_mrpo", "saw"}))
def test_a_prefix_leads_to_the_estimator_of_that_name(name):
    assert read(adv_estimator=f"gdpo/{name}").rule.name == name


def test_in_one_run_an_equal_configuration_gives_the_same_rule_with_its_state(run):
    assert read(run.settings) is read(run.settings)
    assert read(run.settings) is not read(run.settings, gdpo_options={"max_advantage": 5})
    assert read(run.settings) is not read()


def configured(folder=None, *, use_v1=True, estimator="gdpo/gdpo", **more):
    algorithm = Config(adv_estimator=estimator, **more)
    if folder is not None:
        algorithm["gdpo_rollouts"] = folder
    return Config(algorithm=algorithm, trainer=Config(use_v1=use_v1))


def test_a_record_is_refused_by_trainers_that_have_a_program_of_their_own():
    config = Config(configured("out"), rollout={"n_gpus_per_node": 1})
    with config_error("separate_async"):
        check_fields(config)


def test_a_record_is_for_the_default_trainer_and_for_what_gdpo_computes_or_watches():
    check_fields(configured("out", estimator="gdpo/grpo"))
    check_fields(configured("out", estimator="grpo", gdpo_watch=True))
    check_fields(configured(None, use_v1=False, estimator="gae"))
    read(gdpo_rollouts="out")


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        (("out", True, "grpo"), "adv_estimator=grpo.* verl's own .*gdpo/grpo.*gdpo_watch"),
        (("out", True, "gdpo"), "gdpo/gdpo.*gdpo_replace"),
        (("out", False, "gdpo/gdpo"), "trainer.rollout_data_dir"),
        ((5, True, "gdpo/gdpo"), "gdpo_rollouts=5"),
        (("", True, "gdpo/gdpo"), "gdpo_rollouts=''"),
    ],
)
def test_a_record_that_nothing_would_write_is_refused(asked, match):
    folder, use_v1, estimator = asked
    config = configured(folder, use_v1=use_v1, estimator=estimator)
    with config_error(match):
        check_fields(config)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"gdpo_options": {"max_advantage": 5}}, "gdpo_options has no effect"),
        ({"gdpo_options": {"max_advantage": 5}, "gdpo_watch": True}, "gdpo_options has no effect"),
        ({"gdpo_diagnostics": "full"}, "gdpo_diagnostics has no effect"),
        ({"gdpo_reward_weights": {"a": 1}}, "is a mapping.*gdpo/gdpo"),
        ({"gdpo_watch": "yes"}, "gdpo_watch='yes': write true or false"),
        ({"gdpo_replace": 1}, "gdpo_replace=1: write true or false"),
        (  # no plain name to take
            {"estimator": "rloo", "gdpo_replace": True},
            "gdpo_replace has no effect.*adv_estimator=rloo",
        ),
    ],
)
def test_what_has_no_effect_on_an_estimator_of_verl_is_refused(fields, match):
    with config_error(match):
        check_fields(configured(**{"estimator": "gdpo", **fields}))


def test_switches_of_verl_that_change_nothing_are_accepted():
    assert read(use_kl_in_reward=False, norm_adv_by_std_in_grpo=True).names == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("gdpo_diagnostics", "ful", "gdpo_diagnostics='ful'"),
        ("adv_estimator", "gdpo/mogrpo", "did you mean 'mo_grpo'"),
        ("gdpo_reward_keys", None, "gdpo_reward_keys="),
        ("gdpo_reward_weights", 3, "gdpo_reward_weights"),
        ("gdpo_reward_weight", [1, 2], "did you mean 'gdpo_reward_weights'"),
        ("use_kl_in_reward", True, "use_kl_in_reward=True has no effect"),
        ("norm_adv_by_std_in_grpo", False, "norm_adv_by_std_in_grpo=False has no effect"),
    ],
)
def test_a_field_that_is_wrong_or_has_no_effect_is_an_error(field, value, match):
    with config_error(match):
        read(**{field: value})
