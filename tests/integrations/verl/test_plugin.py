"""Tests the entry point, and the changes to modules when they are imported."""

import importlib
import sys
import tomllib
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
from tests.checkout import python
from tests.environments import ROOT

from gdpo.advantages import ESTIMATORS, TURN_ESTIMATORS
from gdpo.integrations.verl import _plugin
from gdpo.integrations.verl._plugin import when_imported
from gdpo.integrations.verl._run import VerlRun


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the name of a module that has not been imported."""
    name = f"late_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_the_entry_point_of_the_package_leads_to_the_plugin():
    text = (ROOT / "pyproject.toml").read_text()
    value = tomllib.loads(text)["project"]["entry-points"]["verl.plugins"]["gdpo"]
    assert EntryPoint("gdpo", value, "verl.plugins").load() is _plugin


def test_a_module_is_changed_when_it_is_imported_and_not_before(module):
    when_imported({module: lambda found: setattr(found, "value", found.value + 1)})
    assert module not in sys.modules
    assert importlib.import_module(module).value == 2


def test_a_module_that_is_there_is_changed_at_once(module):
    found = importlib.import_module(module)
    when_imported({module: lambda found: setattr(found, "value", found.value + 1)})
    assert found.value == 2


def test_a_changed_module_keeps_its_source_for_those_who_look(module):
    when_imported({module: lambda found: None})
    found = importlib.import_module(module)
    assert found.__spec__.loader.get_source(module) == "value = 1\n"


def test_a_function_that_this_verl_does_not_have_is_named_with_what_is_lost(caplog):
    name = "verl.trainer.ppo.metric_utils"
    _plugin.changes(VerlRun())[name](SimpleNamespace(__name__=name))
    (message,) = caplog.messages
    assert message == (
        "verl.trainer.ppo.metric_utils has no compute_data_metrics, which gdpo wraps: gdpo logs no "
        "metrics"
    )


def test_the_queue_of_a_verl_without_one_of_its_functions_is_wrapped_as_far_as_it_goes(caplog):
    trainer = SimpleNamespace(__name__="PPOTrainer", _compute_advantage=lambda *_: None)
    base = SimpleNamespace(__name__="trainer_base", PPOTrainer=trainer, tq=None)
    before = trainer._compute_advantage
    _plugin.changes(VerlRun())["verl.trainer.ppo.v1.trainer_base"](base)
    assert trainer._compute_advantage is not before
    assert [message.split(",")[0] for message in caplog.messages] == [
        "trainer_base has no compute_advantage_for_multi_trajectories",
        "PPOTrainer has no _log_rollout_data",
        "PPOTrainer has no _val_metrics_update",
    ]


def test_the_agent_loop_of_a_verl_is_wrapped_if_it_has_one(caplog):
    worker = SimpleNamespace(_compute_score=lambda *_: None)
    before = worker._compute_score
    _plugin._pass_messages(SimpleNamespace(AgentLoopWorker=worker))
    assert worker._compute_score is not before
    _plugin._pass_messages(SimpleNamespace(__name__="agent_loop"))
    assert [message.split(",")[0] for message in caplog.messages] == [
        "agent_loop has no _compute_score"
    ]


def test_verls_own_names_stay_verls():
    theirs = object()
    core_algos = SimpleNamespace(ADV_ESTIMATOR_REGISTRY={"gdpo": theirs, "grpo": theirs})
    _plugin.changes(VerlRun())["verl.trainer.ppo.core_algos"](core_algos)
    registry = core_algos.ADV_ESTIMATOR_REGISTRY
    assert registry["gdpo"] is registry["grpo"] is theirs
    names = {f"gdpo/{name}" for name in (*ESTIMATORS, *TURN_ESTIMATORS)}
    assert set(registry) == {"gdpo", "grpo", *names}


def test_a_warning_is_written_once_also_if_the_root_logger_drops_warnings():
    program = """
import logging
from gdpo.integrations.verl import _plugin
_plugin.install()
_plugin.install()
for level in ("NOTSET", "ERROR"):
    logging.basicConfig(level=level, force=True)
    logging.root.handlers[0].setLevel(level)
    logging.getLogger("gdpo.integrations.rows").warning("at %s, brevity is ignored", level)
"""
    said = python("-c", program, check=True).stderr
    assert said.count("at NOTSET, brevity is ignored") == 1
    assert said.count("at ERROR, brevity is ignored") == 1
