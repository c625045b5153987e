"""Tests the check at start, with stand-ins for verl's `compute_advantage`."""

import sys
from types import SimpleNamespace

import pytest
from tests.integrations.verl.configs import Config
from tests.refusals import config_error

from gdpo.integrations.verl import _trainers
from gdpo.integrations.verl._trainers import check_itself


class DataProto:
    """Stands in for verl's batch."""

    @staticmethod
    def from_dict(tensors, non_tensors):
        return SimpleNamespace(batch=tensors, non_tensor_batch=non_tensors)


def verl_with(run, change):
    def compute_advantage(data, adv_estimator, config):
        data.batch["advantages"], _ = run.compute_advantages(
            data.batch["token_level_rewards"],
            data.batch["response_mask"],
            config,
            data.non_tensor_batch["uid"],
            data.non_tensor_batch,
        )
        change(data)
        return data

    return SimpleNamespace(DataProto=DataProto, compute_advantage=compute_advantage)


@pytest.fixture
def checked(run, check, monkeypatch):
    """Return a function that checks a stand-in for verl's module."""
    monkeypatch.setattr(_trainers, "version", lambda name: "99.0")

    def checked(change):
        module = verl_with(run, change)
        monkeypatch.setitem(sys.modules, "verl.trainer.ppo.ray_trainer", module)
        algorithm = {"adv_estimator": "gdpo/gdpo", "gdpo_reward_keys": ["a"]}
        config = Config(algorithm=algorithm, trainer={})
        assert check(config) == "verl's answer"

    return checked


def test_a_verl_that_passes_rewards_and_advantages_on_passes(run, checked):
    checked(lambda data: None)
    assert run.metrics() == {}  # nothing of the made-up batch is logged


def test_the_check_is_done_once(checked):
    changed = []
    for _ in range(2):
        checked(changed.append)
    assert len(changed) == 1


def test_a_verl_that_changes_advantages_is_refused_with_the_versions_that_work(checked):
    def shifted(data):
        data.batch["advantages"] = data.batch["advantages"] + 0.5

    with config_error(r"verl 99\.0.*differ by 5\.0e-01.*0\.9\.1"):
        checked(shifted)


def test_a_verl_that_fails_is_refused_with_its_error(checked):
    def broken(data):
        raise KeyError("values")

    with config_error("KeyError: 'values'"):
        checked(broken)


def test_a_process_that_does_not_train_is_not_checked(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "verl.trainer.ppo.ray_trainer", raising=False)
    check_itself(run)
    assert not run.is_checked
