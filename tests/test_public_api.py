"""What is promised, and what `import gdpo` does not drag in."""

import ast
import importlib
import re

from tests.checkout import python
from tests.environments import ROOT

import gdpo

HEAVY = ("torch", "transformers", "trl", "datasets", "accelerate", "matplotlib", "pandas")


LIGHT = (
    "gdpo, gdpo.cli, gdpo.diagnostics, gdpo.analysis, gdpo.rollouts, gdpo.report, gdpo.lab.tasks, "
    "gdpo.testing"
)


def test_importing_them_imports_nothing_heavy():
    done = python("-c", f"import sys, {LIGHT}; print(*sys.modules)", check=True)
    assert set(done.stdout.split()).isdisjoint(HEAVY)


def promised():
    """The names in the `__all__` of every module."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        if names := re.search(r"^__all__ = (\[.*?\])", file.read_text("utf-8"), re.M | re.S):
            parts = file.relative_to(ROOT / "src").with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), ast.literal_eval(names[1])


def test_the_modules_with_public_names_are_those_of_their_page():
    """The site shows the names of each module that begins an entry of the list."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    entries = re.findall(r"^- `(gdpo(?:\.\w+)*)`", page, re.MULTILINE)
    assert sorted(entries) == sorted(dict(promised()))


def test_what_is_promised_is_there():
    for module, names in promised():
        there = importlib.import_module(module)
        assert all(hasattr(there, name) for name in names), module


def test_every_error_is_a_gdpo_error_and_one_of_pythons_own():
    for error, parent in (
        (gdpo.ConfigError, ValueError),
        (gdpo.DataError, ValueError),
        (gdpo.RewardError, RuntimeError),
        (gdpo.MissingExtraError, ImportError),
    ):
        assert issubclass(error, gdpo.GdpoError)
        assert issubclass(error, parent)
    message = str(gdpo.MissingExtraError("matplotlib", "plots", "to draw"))
    assert message.startswith("matplotlib is needed to draw")
    assert "To install it, run this command in a clone of gdpo: pip install '.[plots]'" in message
