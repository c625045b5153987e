"""`make demo` runs the commands that a user of `gdpo init` runs."""

import shutil
import subprocess

import pytest
from tests.environments import ROOT

GDPO = """#!/bin/sh
echo "$PWD: gdpo $*"
[ "$1" != "$FAILS" ]
"""


@pytest.fixture
def clone(tmp_path):
    """A folder with the Makefile, and with a `gdpo` that prints how it was called."""
    folder = tmp_path / "a clone"
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "requirements-bfcl.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / ".venv" / "bin" / "gdpo").write_text(GDPO)
    (folder / ".venv" / "bin" / "gdpo").chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    return folder


def make(clone, *words):
    """Run make, which inside another make (`make test`) would print the folder it enters."""
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True)


def demo(clone, fails="nothing"):
    return make(clone, "-s", "demo", f"FAILS={fails}")


def test_the_demo_makes_a_new_project_and_compares_there(clone):
    for _ in range(2):
        done = demo(clone)
        assert done.returncode == 0, done.stderr
        made, compared, last = done.stdout.splitlines()
        folder = made.rpartition(" ")[2]
        assert made == f"{clone}: gdpo init {folder}"
        assert compared == f"{clone / folder}: gdpo compare recipe.yaml"
        assert last.endswith(folder)
    assert len(list((clone / "runs").iterdir())) == 2


@pytest.mark.parametrize("verb", ["init", "compare"])
def test_a_demo_that_fails_ends_with_an_error(clone, verb):
    done = demo(clone, fails=verb)
    assert done.returncode != 0
    assert f"gdpo {verb}" in done.stdout.splitlines()[-1]


def test_the_one_file_needs_only_python(clone):
    (clone / ".venv" / ".installed").unlink()
    done = make(clone, "--dry-run", "pyz", "PYTHON=python3")
    assert done.stdout == "python3 .ci/build_pyz.py\n"
