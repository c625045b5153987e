"""Tests `install()` with stand-ins for NeMo-RL: what it changes, and when it changes nothing."""

import importlib
import logging
import sys

import numpy as np
import pytest
import torch
from tests.integrations.nemo_rl.recorded import write_package

from gdpo import ConfigError, gdpo
from gdpo.integrations.nemo_rl import __main__, install

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
def nemo_rl(tmp_path, monkeypatch):
    """Return a function that imports modules of a fresh stand-in for NeMo-RL."""
    before = {name: m for name, m in sys.modules.items() if name.partition(".")[0] == "nemo_rl"}

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "nemo_rl"]:
            del sys.modules[name]

    def package(**changes):
        write_package(tmp_path)
        for old, new in changes.values():
            file = tmp_path / "nemo_rl" / "algorithms" / "grpo.py"
            assert old in file.read_text()
            file.write_text(file.read_text().replace(old, new))
        monkeypatch.syspath_prepend(tmp_path)
        return lambda name: importlib.import_module(f"nemo_rl.{name}")

    forget()
    yield package
    forget()
    sys.modules.update(before)


def configured(grpo, env_name="math", env=None, **adv_estimator):
    estimator = {"name": "gdpo", "gdpo_reward_keys": ["correct", "format"], **adv_estimator}
    return grpo.MasterConfig(
        grpo={"adv_estimator": estimator},
        loss_fn={},
        env=env or {},
        data={"default": {"env_name": env_name}},
    )


def test_advantages_of_the_trainer_are_ours_and_it_logs_numbers_of_each_reward(nemo_rl):
    module = nemo_rl()
    assert install() is True
    grpo, metrics = module("algorithms.grpo"), {}
    advantages = grpo.grpo_train(configured(grpo), BATCH, metrics)
    torch.testing.assert_close(advantages, torch.tensor(EXPECTED)[:, None].float().expand(4, 3))
    assert {"advantages/mean", "gdpo/format/mean"} <= set(metrics)
    assert metrics["gdpo/format/zero_variance_groups"].sum().item() == 1
    assert "gdpo/conflict" not in metrics


def test_all_numbers_are_logged_on_demand(nemo_rl):
    module = nemo_rl()
    install()
    grpo, metrics = module("algorithms.grpo"), {}
    grpo.grpo_train(configured(grpo, gdpo_diagnostics="full"), BATCH, metrics)
    assert {"gdpo/conflict", "gdpo/format/group_std", "gdpo/format/missing"} <= set(metrics)


def test_modules_that_were_imported_before_are_changed_too(nemo_rl):
    module = nemo_rl()
    sync = module("algorithms.grpo_sync")
    theirs = sync._create_advantage_estimator
    install()
    grpo = module("algorithms.grpo")
    assert sync._create_advantage_estimator is grpo._create_advantage_estimator is not theirs


def test_other_estimators_are_left_to_nemo_rl(nemo_rl):
    module = nemo_rl()
    install()
    grpo, metrics = module("algorithms.grpo"), {}
    create = grpo._create_advantage_estimator
    grpo.grpo_train(configured(grpo), BATCH, {})
    assert create(configured(grpo, name="grpo")) == "theirs"
    grpo._log_mixed_rewards_and_advantages_information(None, 0, metrics, None, None)
    assert set(metrics) == {"advantages/mean"}


def test_installing_again_changes_nothing(nemo_rl):
    module = nemo_rl()
    install()
    grpo = module("algorithms.grpo")
    before = {**vars(grpo), "init": grpo.MasterConfig.__init__}
    assert install() is True
    assert {**vars(grpo), "init": grpo.MasterConfig.__init__} == before


def test_a_wrong_configuration_is_refused_when_it_is_read(nemo_rl):
    module = nemo_rl()
    install()
    grpo = module("algorithms.grpo")
    with pytest.raises(ConfigError, match="gdpo_reward_keys=None"):
        configured(grpo, gdpo_reward_keys=None)
    with pytest.raises(ConfigError, match=r"'correct', .*environment 'gdpo'"):
        configured(grpo, env_name="gdpo", env={"gdpo": {"task": "gsm8k"}})


def test_the_single_controller_is_refused_because_it_passes_no_rewards(nemo_rl):
    module = nemo_rl()
    install()
    controller = module("algorithms.single_controller_utils.config")
    with pytest.raises(ConfigError, match="single controller"):
        controller.MasterConfig(grpo={"adv_estimator": {"name": "gdpo/grpo"}})
    controller.MasterConfig(grpo={"adv_estimator": {"name": "grpo"}})


def test_our_environment_is_registered_with_the_python_of_the_script(nemo_rl):
    module = nemo_rl()
    install()
    path = module("environments.utils").ENV_REGISTRY["gdpo"]["actor_class_fqn"]
    assert path == "gdpo.integrations.nemo_rl._actor.GdpoEnvironment"
    actors = module("distributed.ray_actor_environment_registry")
    assert {path: "python"} == actors.ACTOR_ENVIRONMENT_REGISTRY


def test_an_environment_of_that_name_is_not_replaced(nemo_rl):
    module = nemo_rl()
    module("environments.utils").register_env("gdpo", "mine.Environment")
    with pytest.raises(ConfigError, match=r"'gdpo', mine\.Environment"):
        install()
    assert module("algorithms.grpo")._create_advantage_estimator("config") == "theirs"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("def _create_advantage_estimator", "def create", "no attribute '_create_advantage"),
        ("(master_config)", "(config)", "arguments of _create_advantage_estimator"),
        ("estimator_config, loss_config", "config", "arguments of an estimator"),
        (
            "        repeated_batch=batch, sample_mask=None,\n",
            "",
            "trainers pass to compute_advantage",
        ),
        ("class GRPOConfig(Grpo):", "class GRPOConfig(BaseModel):", "fields of GRPOConfig"),
    ],
)
def test_an_unsupported_nemo_rl_gives_a_warning_and_is_not_changed(
    nemo_rl, caplog, old, new, named
):
    module = nemo_rl(change=(old, new))
    with caplog.at_level(logging.WARNING):
        assert install() is False
    (record,) = caplog.records
    assert "NeMo-RL" in record.getMessage()
    assert named in record.getMessage()
    assert "gdpo" not in module("environments.utils").ENV_REGISTRY
    assert not module("distributed.ray_actor_environment_registry").ACTOR_ENVIRONMENT_REGISTRY


def test_a_script_is_run_with_gdpo_installed_and_its_arguments(
    nemo_rl, tmp_path, monkeypatch, capsys
):
    nemo_rl()
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from nemo_rl.algorithms.grpo import _create_advantage_estimator as create\n"
        "print(sys.argv[1:], type(create).__name__, __name__)\n"
    )
    monkeypatch.setattr(sys, "argv", ["-m", str(script), "--config", "a.yaml"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    __main__.main()
    assert capsys.readouterr().out == "['--config', 'a.yaml'] Create __main__\n"


def test_a_script_is_not_started_in_an_unsupported_nemo_rl(nemo_rl, tmp_path, monkeypatch):
    nemo_rl(change=("estimator_config, loss_config", "config"))
    monkeypatch.setattr(sys, "argv", ["-m", str(tmp_path / "no_such_script.py")])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(SystemExit, match="NeMo-RL"):
        __main__.main()
    monkeypatch.setattr(sys, "argv", ["-m"])
    with pytest.raises(SystemExit, match="usage"):
        __main__.main()
