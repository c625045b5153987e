"""Environments of processes that test this checkout, and not another one that is installed."""

import os
import subprocess
import sys
from pathlib import Path

import gdpo

_SOURCE, _ROOT = Path(gdpo.__file__).parents[1], Path(__file__).parents[1]


def python_path(*folders):
    """Return a PYTHONPATH with the given folders, then the `gdpo` and the tests that run now."""
    return os.pathsep.join(map(str, [*folders, _SOURCE, _ROOT]))


def environment(*folders, **more):
    """Return this process's environment with such a PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": python_path(*folders), **more}


def python(*arguments, env=None, **options):
    """Run this Python with the arguments, and these environment variables in addition to ours."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        **options,
    )
