"""Tests the entry point, and the changes to modules when they are imported."""

import importlib
import logging
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gdpo.integrations.verl import _plugin
from gdpo.integrations.verl._plugin import when_imported
from gdpo.integrations.verl.settings import KNOWN


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the name of a module that has not been imported."""
    name = f"late_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_the_entry_point_of_the_package_leads_to_the_plugin():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    value = tomllib.loads(text)["project"]["entry-points"]["verl.plugins"]["gdpo"]
    assert EntryPoint("gdpo", value, "verl.plugins").load() is _plugin


def test_a_module_is_changed_when_it_is_imported_and_not_before(module):
    when_imported(module, lambda found: setattr(found, "value", found.value + 1))
    assert module not in sys.modules
    assert importlib.import_module(module).value == 2


def test_a_module_that_is_there_is_changed_at_once(module):
    found = importlib.import_module(module)
    when_imported(module, lambda found: setattr(found, "value", found.value + 1))
    assert found.value == 2


def test_a_changed_module_keeps_its_source_for_those_who_look(module):
    when_imported(module, lambda found: None)
    found = importlib.import_module(module)
    assert found.__spec__.loader.get_source(module) == "value = 1\n"


def test_an_unsupported_verl_gives_a_warning_and_is_not_changed(caplog, monkeypatch):
    asked = []
    monkeypatch.setattr(_plugin, "when_imported", lambda name, change: asked.append(name))
    with caplog.at_level(logging.WARNING):
        assert _plugin.install("99.0") is False
    assert asked == []
    (record,) = caplog.records
    assert "verl 99.0" in record.message
    assert KNOWN[-1] in record.message
    assert _plugin.install(KNOWN[-1]) is True
    assert "verl.trainer.ppo.core_algos" in asked
