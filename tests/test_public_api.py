"""What `import gdpo` gives, and what it does not drag in."""

import subprocess
import sys

import pytest

import gdpo

HEAVY = ("torch", "transformers", "trl", "datasets", "accelerate", "matplotlib", "pandas")


def modules_after(code):
    listing = f"import sys; {code}; print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    ["gdpo", "gdpo.cli", "gdpo.diagnostics", "gdpo.rollouts", "gdpo.tasks", "gdpo.testing"],
)
def test_importing_it_imports_nothing_heavy(module):
    assert modules_after(f"import {module}").isdisjoint(HEAVY)


def test_the_public_names_are_these():
    assert gdpo.__all__ == [
        "ConfigError",
        "DataError",
        "Example",
        "GdpoError",
        "MissingExtraError",
        "Reward",
        "RewardError",
        "diagnose",
        "gdpo",
        "grpo",
        "grpo_no_std",
    ]
    assert all(hasattr(gdpo, name) for name in gdpo.__all__)


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
    assert message == (
        "matplotlib is needed to draw, and it is not installed. "
        "Install it with: pip install '.[plots]', in a clone of gdpo"
    )
