"""Tests `install()` with stand-ins for NeMo-RL."""

import importlib

import numpy as np
import pytest
import torch
from tests.integrations.nemo_rl.recorded import forget, write_package
from tests.refusals import config_error

from gdpo import gdpo
from gdpo.integrations.nemo_rl import install

CORRECT, FORMAT = [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]
EXPECTED = gdpo(np.stack([CORRECT, FORMAT], -1).reshape(2, 2, 2), [1.0, 1.0]).reshape(-1)
BATCH = {
    "prompt_ids": torch.tensor([[1, 2], [1, 2], [1, 3], [1, 3]]),
    "total_reward": torch.tensor(CORRECT) + torch.tensor(FORMAT),
    "mask": torch.ones(4, 3),
    "reward/correct": torch.tensor(CORRECT),
    "reward/format": torch.tensor(FORMAT),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that imports modules of a fresh stand-in for NeMo-RL."""
    forget()
    write_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    install.cache_clear()
    yield lambda name: importlib.import_module(f"nemo_rl.{name}")
    forget()


@pytest.fixture
def grpo(module):
    """NeMo-RL's module of the trainer after the installation."""
    install()
    return module("algorithms.grpo")


def configured(grpo, **adv_estimator):
    estimator = {"name": "gdpo", "gdpo_reward_keys": ["correct", "format"], **adv_estimator}
    return grpo.MasterConfig(grpo={"adv_estimator": estimator}, loss_fn={}, env={}, data={})


def test_advantages_of_the_trainer_are_ours_and_it_logs_numbers_of_each_reward(grpo):
    metrics = {}
    advantages = grpo.grpo_train(configured(grpo), BATCH, metrics)
    torch.testing.assert_close(advantages, torch.tensor(EXPECTED)[:, None].float().expand(4, 3))
    assert {"advantages/mean", "gdpo/format/mean"} <= set(metrics)
    assert metrics["gdpo/format/zero_variance_groups"].sum().item() == 1
    assert "gdpo/conflict" not in metrics


def test_all_numbers_are_logged_on_demand(grpo):
    metrics = {}
    grpo.grpo_train(configured(grpo, gdpo_diagnostics="full"), BATCH, metrics)
    assert {"gdpo/conflict", "gdpo/format/group_std", "gdpo/format/missing"} <= set(metrics)


def test_modules_that_were_imported_before_are_changed_too(module):
    sync = module("algorithms.grpo_sync")
    theirs = sync._create_advantage_estimator
    install()
    grpo = module("algorithms.grpo")
    assert sync._create_advantage_estimator == grpo._create_advantage_estimator != theirs


def test_other_estimators_are_left_to_nemo_rl(grpo):
    metrics = {}
    create = grpo._create_advantage_estimator
    grpo.grpo_train(configured(grpo), BATCH, {})
    assert create(configured(grpo, name="grpo")) == "theirs"
    grpo._log_mixed_rewards_and_advantages_information(
        logger=None, total_steps=0, metrics=metrics, baseline=None, advantages=None
    )
    assert set(metrics) == {"advantages/mean"}


def test_installing_again_changes_nothing(grpo):
    before = {**vars(grpo), "init": grpo.MasterConfig.__init__}
    install()
    assert {**vars(grpo), "init": grpo.MasterConfig.__init__} == before


def test_a_wrong_configuration_is_refused_when_it_is_read(grpo):
    with config_error("gdpo_reward_keys=None"):
        configured(grpo, gdpo_reward_keys=None)


def test_the_single_controller_is_refused_because_it_passes_no_rewards(module):
    install()
    controller = module("algorithms.single_controller_utils.config")
    with config_error("single controller"):
        controller.MasterConfig(grpo={"adv_estimator": {"name": "gdpo/grpo"}})
    controller.MasterConfig(grpo={"adv_estimator": {"name": "grpo"}})
