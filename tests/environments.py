"""Creates environments of pinned requirements, for frameworks that do not fit into `.venv`."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


class NotRunError(Exception):
    """Something could not be run. The message is the reason."""


def environment(folder, requirements, *, packages=()):
    """Return the Python of an environment. Create the environment if it is missing or outdated.

    Args:
        folder: Folder of the environment.
        requirements: File that lists everything the environment contains, except gdpo.
        packages: Folders of packages to install in addition to gdpo.

    Raises:
        NotRunError: If pip cannot install the requirements.
    """
    made_of = (requirements, *(package / "pyproject.toml" for package in (ROOT, *packages)))
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in made_of)).hexdigest()
    stamp = folder / "made-of"
    python = folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == digest:
        return python
    sys.stderr.write(f"creating {folder} (takes minutes)\n")
    venv.create(folder, with_pip=True, clear=True)
    editable = [part for package in (ROOT, *packages) for part in ("-e", package)]
    done = install(python, "-r", requirements, *editable)
    if done.returncode:
        raise NotRunError(f"creating its environment failed: {last_line(done.stderr)}")
    stamp.write_text(digest)
    return python


def install(python, *arguments):
    # Complete installations need GPUs. The requirements list only what a CPU needs.
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    return subprocess.run([*pip, *arguments], capture_output=True, text=True)


def overlaid(folder, python, requirement):
    """Return the variables with which an environment uses another version of one distribution.

    Args:
        folder: Folder for the distribution. It is reused if it was made for the same requirement.
        python: The environment's Python.
        requirement: The distribution with its version. Without a version: the newest one on the
            index, installed anew each time.

    Raises:
        NotRunError: If pip cannot install the distribution.
    """
    stamp = folder / "made-of"
    is_pinned = "==" in requirement
    if not (is_pinned and stamp.is_file() and stamp.read_text() == requirement):
        shutil.rmtree(folder, ignore_errors=True)
        done = install(python, "--target", folder, requirement)
        if done.returncode:
            raise NotRunError(f"installing {requirement} failed: {last_line(done.stderr)}")
        stamp.write_text(requirement)
    own = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([own] if own else [])])}


def ended(command, variables, *, folder=ROOT, allowed=(0,)):
    """Return an ended process with its outputs.

    Raises:
        NotRunError: If its exit code is none of those allowed.
    """
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True)
    if done.returncode not in allowed:
        sys.stderr.write(done.stderr[-3000:])
        said = last_line(done.stderr.strip() or done.stdout)
        raise NotRunError(f"{' '.join(map(str, command[1:3]))} failed: {said}")
    return done


def last_line(text):
    """Return the last line of a program's output."""
    return (text.strip().splitlines() or ["no output"])[-1]
