"""Tests the settings read from NeMo-RL's configuration, and what is refused before a start."""

import copy
import re

import pytest
from tests.integrations.nemo_rl.recorded import (
    Grpo,
    Master,
    adv_estimator,
    forget,
    master,
    write_package,
)
from tests.refusals import config_error

from gdpo.advantages import ESTIMATORS
from gdpo.integrations.nemo_rl import check_run, read_settings
from gdpo.integrations.rows import is_ours


@pytest.fixture(autouse=True)
def nemo_rl(tmp_path, monkeypatch):
    """Stand in for NeMo-RL, which knows the environments of a run."""
    forget()
    write_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    forget()


def read(**more):
    return read_settings(adv_estimator(**more))


def refused(match, **more):
    with config_error(match):
        check_run(master(**more))


def test_every_estimator_has_a_name_and_nemo_rls_gdpo_is_ours():
    assert all(map(is_ours, ["gdpo", *(f"gdpo/{name}" for name in ESTIMATORS)]))


@pytest.mark.parametrize("name", ["grpo", "opd", "reinforce_plus_plus", "gdpo_other"])
def test_the_estimators_of_nemo_rl_and_of_others_stay_theirs(name):
    assert not is_ours(name)


def test_rewards_come_in_the_order_of_the_configuration_and_not_of_the_alphabet():
    settings = read(gdpo_reward_keys=["format", "correct"], gdpo_reward_weights=[3, 1])
    assert (settings.names, settings.weights) == (("format", "correct"), (3.0, 1.0))


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("gdpo_reward_weight", [1, 2], "'gdpo_reward_weight': .*Allowed: gdpo_diagnostics, "),
        ("options", [1, 2], "'options': .*Allowed: gdpo_diagnostics, gdpo_options"),
        ("reward_weights", [1.0, 2.0], r"\.reward_weights=.*alphabet.*gdpo_reward_weights"),
        ("normalize_rewards", False, "normalize_rewards=false does not work.*grpo_no_std"),
        ("use_leave_one_out_baseline", True, "use_leave_one_out_baseline=true does not work"),
        ("minus_baseline", False, "minus_baseline=false does not work"),
    ],
)
def test_a_field_of_the_estimator_that_would_have_no_effect_is_an_error(field, value, match):
    refused(match, estimator={field: value})


def test_switches_of_the_estimator_that_change_nothing_are_accepted():
    written = {"normalize_rewards": True, "use_leave_one_out_baseline": False}
    check_run(master(estimator=written))


def test_a_default_that_nobody_wrote_is_no_error_and_gives_no_warning(caplog):
    assert adv_estimator().use_leave_one_out_baseline is True
    check_run(master())
    assert not caplog.records


@pytest.mark.parametrize(
    ("place", "more"),
    [
        ("loss_fn.use_kl_in_reward", {"loss": {"use_kl_in_reward": True}}),
        ("grpo.reward_scaling.enabled", {"reward_scaling": {"enabled": True}}),
        ("grpo.reward_shaping.enabled", {"reward_shaping": {"enabled": True}}),
    ],
)
def test_settings_elsewhere_that_do_not_go_with_it_are_errors(place, more):
    refused(f"{place}=true .*gdpo", **more)


def test_a_run_with_another_estimator_is_left_alone(caplog):
    """All that is refused for gdpo's estimators is accepted, without a warning."""
    others = {
        "reward_shaping": {"enabled": True},
        "reward_scaling": {"enabled": True},
        "use_dynamic_sampling": True,
    }
    refused("grpo.reward_scaling.enabled", **others)
    theirs = Master(grpo=Grpo(**others))
    assert not is_ours(theirs.grpo.adv_estimator.name)
    before = copy.deepcopy(theirs)
    check_run(theirs)
    assert (theirs, caplog.records) == (before, [])


@pytest.mark.parametrize(
    ("grpo", "environments", "named"),
    [
        ({"use_dynamic_sampling": True}, ["math"], "use_dynamic_sampling drops groups"),
        ({}, ["math", "code"], "writes 0.0 for a reward.*all of correct, format"),
        ({}, ["nemo_gym"], "writes 0.0 for a reward"),
    ],
)
def test_settings_that_change_the_rewards_give_a_warning(caplog, grpo, environments, named):
    check_run(master(environments, **grpo))
    (message,) = caplog.messages
    assert re.search(named, message)
