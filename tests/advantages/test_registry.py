"""Estimators by name, and errors of a user's own estimators."""

import numpy as np
import pytest
import torch

from gdpo.advantages import resolve_estimator
from gdpo.advantages.registry import check_advantages
from gdpo.errors import ConfigError

REWARDS = torch.zeros(3, 4, 2)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (np.zeros((3, 4)), "returned a ndarray"),
        (torch.zeros(4, 3), r"shape \(4, 3\)"),
        (torch.zeros(3, 4, 2), r"shape \(3, 4, 2\)"),
        (torch.full((3, 4), torch.nan), "not finite"),
        (None, "returned a NoneType"),
    ],
)
def test_an_invalid_return_value_is_an_error_that_names_the_estimator(returned, message):
    with pytest.raises(ConfigError, match=f"'mine:f' {message}|'mine:f' returned.*{message}"):
        check_advantages(returned, REWARDS, "mine:f")


def test_advantages_pass():
    check_advantages(torch.zeros(3, 4), REWARDS, "mine:f")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:", r"SyntaxError: .*line 1"),
        ("\nraise ValueError('no licence')", r"ValueError: no licence \(.*line 2\)"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_users_module_that_fails_is_named_with_its_line(source, message, tmp_path, monkeypatch):
    (tmp_path / "users_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=message):
        resolve_estimator("users_module:f")


@pytest.mark.parametrize("name", [":f", ".near:f"])
def test_a_module_needs_its_full_name(name):
    with pytest.raises(ConfigError, match=f"{name}.*module:attribute"):
        resolve_estimator(name)


def test_the_allowed_names_of_a_users_module_do_not_include_modules(tmp_path, monkeypatch):
    (tmp_path / "with_imports.py").write_text("import numpy as np\ndef mine(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'missing': Allowed: mine$"):
        resolve_estimator("with_imports:missing")
