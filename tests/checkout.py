"""Environments of processes that test this checkout, and not another one that is installed."""

import os
from pathlib import Path

import gdpo

_SOURCE, _ROOT = Path(gdpo.__file__).parents[1], Path(__file__).parents[1]


def python_path(*folders):
    """Return a PYTHONPATH with the given folders, then the `gdpo` and the tests that run now."""
    return os.pathsep.join(map(str, [*folders, _SOURCE, _ROOT]))


def environment(*folders, **more):
    """Return this process's environment with such a PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": python_path(*folders), **more}
