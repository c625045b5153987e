"""Finds the files that the base interpreter needs, and the packages that programs may import."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gdpo.lab.sandbox._terms import SandboxError

_ASK = """
import importlib, json, os, sys, sysconfig
dynload = next((p for p in sys.path if p.endswith("lib-dynload")), None)
for file in sorted(os.listdir(dynload)) if dynload and os.path.isdir(dynload) else []:
    name = file.split(".")[0]
    if not name.startswith(("_test", "_ctypes_t", "_xx", "xx", "_tk", "_curses", "readline")):
        try:
            importlib.import_module(name)
        except Exception:
            pass
with open("/proc/self/maps") as maps:
    mapped = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
print(json.dumps({
    "stdlib": sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}),
    "libraries": sorted(mapped),
}))
"""
"""Script that loads every extension of the standard library and prints the loaded shared libraries.
"""

_OTHERS = ("site-packages", "dist-packages")
"""Names of the folders that contain installed packages. These folders are hidden, because some
packages contain answers to published tests."""

PACKAGES = ("sortedcontainers",)
"""Packages that programs may import if they are installed in this environment. All of them are pure
Python, and rows in LeetCodeDataset import them."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Stores the path of an interpreter and the folders from which it reads."""

    executable: str
    folders: tuple[str, ...]
    """Folders of the standard library and of shared libraries, without nested folders."""
    hidden: tuple[str, ...]
    """Subfolders of `folders` that programs must not see."""
    libraries: tuple[str, ...]
    """Folders in which the loader searches for shared libraries."""


@cache
def base_interpreter() -> Interpreter:
    """Return the interpreter from which this virtual environment was created.

    Raises:
        SandboxError: If the interpreter does not start.
    """
    executable = str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())
    command = [executable, "-I", "-S", "-B", "-c", _ASK]
    try:
        answer = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(
            f"the base interpreter {executable} does not start: {error}. The sandbox needs this "
            f"interpreter to run programs. Repair this Python installation"
        ) from error
    found = json.loads(answer.stdout)
    libraries = sorted({str(Path(file).parent) for file in found["libraries"]})
    folders = _outermost([*found["stdlib"], *libraries])
    hidden = [str(h) for folder in folders for h in _package_folders(Path(folder))]
    return Interpreter(executable, folders, tuple(hidden), tuple(libraries))


def packages() -> dict[str, str]:
    """Return the folder of each installed package that programs may import, by package name."""
    specs = ((name, importlib.util.find_spec(name)) for name in PACKAGES)
    return {
        name: spec.submodule_search_locations[0]
        for name, spec in specs
        if spec and spec.submodule_search_locations
    }


def _outermost(folders: list[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for folder in sorted({str(Path(f).resolve()) for f in folders}):
        if not any(Path(folder).is_relative_to(k) for k in kept):
            kept.append(folder)
    return tuple(kept)


def _package_folders(folder: Path) -> list[Path]:
    places = (folder, *folder.glob("python3*"))
    return [p / name for p in places for name in _OTHERS if (p / name).is_dir()]
