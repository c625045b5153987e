"""Runs the test of a patch in research/upstream on a copy of the framework, without and with it.

A patch of a framework contains its fix and a test, which is a new file below `tests/`.
"""

import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.environments import ROOT, ended

PATCHES = ROOT / "research" / "upstream"
FOLDER = """import pytest, sys; from importlib.util import find_spec
print(*find_spec(sys.argv[1]).submodule_search_locations)"""
ENDED = {0: "passes", 1: "fails"}


def results_of_patch(name, python, variables, *, shim=None, is_checkout=False):
    """Return what the patch's test does without and with the fix: `["fails", "passes"]`.

    Args:
        name: The framework, which is also the name of its package and of its patch.
        python: The Python of its environment.
        variables: Environment variables of its process.
        shim: A script that prepares its import here. pytest loads it first.
        is_checkout: Whether the test also needs the folders beside the package.

    Raises:
        NotRunError: If the patch does not fit the framework, or pytest cannot run its test.
    """
    patch = PATCHES / f"{name}.patch"
    tests = re.findall(r"^\+\+\+ b/(tests/\S+)", patch.read_text(encoding="utf-8"), re.M)
    package = Path(ended([python, "-c", FOLDER, name], variables).stdout.strip())
    paths = [str(shim.parent)] if shim else []
    results = []
    with TemporaryDirectory() as folder:
        source, copy = (package.parent, folder) if is_checkout else (package, Path(folder, name))
        ignored = shutil.ignore_patterns(".git", "__pycache__")
        shutil.copytree(source, copy, ignore=ignored, dirs_exist_ok=True)
        variables = variables | {
            "PYTHONPATH": os.pathsep.join([folder, variables.get("PYTHONPATH", ""), *paths]),
            f"{name.upper()}_SOURCE": folder,
            "GIT_CEILING_DIRECTORIES": str(Path(folder).parent),  # or git skips files in silence
        }
        pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest"]
        pytest += ["-p", shim.stem] if shim else []
        for part in ("--include", "--exclude"):
            ended(["git", "apply", f"{part}=tests/*", patch], variables, folder=folder)
            done = ended([*pytest, *tests], variables, folder=folder, allowed=ENDED)
            results.append(ENDED[done.returncode])
    return results
