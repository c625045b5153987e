"""Estimators by name, and errors of a user's own estimators."""

import os
import shutil
from inspect import signature

import numpy as np
import pytest
import torch
from tests.checkout import python
from tests.environments import ROOT
from tests.refusals import config_error

import gdpo.advantages
from gdpo.advantages import ESTIMATORS, resolve_estimator
from gdpo.advantages.registry import check_advantages

REWARDS = torch.zeros(3, 4, 2)

OF_MY_OWN = '''
from gdpo.advantages.arrays import finish, prepare
from gdpo.advantages.stages import SAMPLES, centre, weighted_sum

def mine(rewards, weights, *, strength=1.0):
    """Compute a new estimator."""
    r, w = prepare(rewards, weights)
    return finish(weighted_sum(centre(r, over=SAMPLES), strength * w), rewards)
'''
FOUND = """
import numpy as np
from docs._estimators import PAGE, completed, plots
from gdpo.advantages import ESTIMATORS, AdvantageRule, mine
from gdpo.report.colours import styles

assert ESTIMATORS["mine"] is mine
rule = AdvantageRule("mine", ["a"], {"strength": 2.0})
assert rule(np.array([[[0.0], [1.0]]]), [1.0]).tolist() == [[-1, 1]]
looks = {(style.light, style.dashes) for style in styles(list(ESTIMATORS)).values()}
assert len(looks) == len(ESTIMATORS)
plots.situations.__defaults__ = (20, 8, 0)
page = completed(open(f"docs/{PAGE}").read())
assert "| [`mine`](#mine) | Compute a new estimator. |" in page
assert "::: gdpo.advantages.estimators.mine.mine" in page and page.count("| `mine` |") == 2
"""


def test_the_folder_is_the_registry():
    files = (ROOT / "src" / "gdpo" / "advantages" / "estimators").glob("[!_]*.py")
    first, second, *others = ESTIMATORS
    assert (first, second) == ("grpo", "gdpo")
    assert others == sorted({file.stem for file in files} - {"grpo", "gdpo"})
    for name, estimator in ESTIMATORS.items():
        assert estimator is getattr(gdpo.advantages, name)
        assert list(signature(estimator).parameters)[:2] == ["rewards", "weights"]
        assert ">>>" in estimator.__doc__
    with pytest.raises(AttributeError, match="gdop"):
        _ = gdpo.advantages.gdop


def test_a_new_file_is_in_the_registry_the_page_the_colours_and_the_options(tmp_path):
    """With no other edit: in a copy of the package."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src" / "gdpo" / "advantages" / "estimators" / "mine.py").write_text(OF_MY_OWN)
    path = os.pathsep.join([str(tmp_path / "src"), str(ROOT)])
    done = python("-c", FOUND, cwd=ROOT, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr


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
    with config_error(f"'mine:f' {message}|'mine:f' returned.*{message}"):
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
def test_a_users_module_that_fails_is_named_with_its_line(
    source, message, tmp_path, saved, monkeypatch
):
    saved("users_module.py", source)
    monkeypatch.syspath_prepend(tmp_path)
    with config_error(message):
        resolve_estimator("users_module:f")


@pytest.mark.parametrize("name", [":f", ".near:f"])
def test_a_module_needs_its_full_name(name):
    with config_error(f"{name}.*module:attribute"):
        resolve_estimator(name)


def test_the_allowed_names_of_a_users_module_do_not_include_modules(tmp_path, saved, monkeypatch):
    saved("with_imports.py", "import numpy as np\ndef mine(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with config_error(r"'missing': Allowed: mine$"):
        resolve_estimator("with_imports:missing")
