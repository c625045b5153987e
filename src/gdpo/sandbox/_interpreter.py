"""What the base interpreter needs of the file system, found by asking it, and what is added."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gdpo.sandbox._terms import SandboxError

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
"""Loads every extension of the standard library, then says which libraries are in its memory."""

_OTHERS = ("site-packages", "dist-packages")
"""Folders in which packages lie: some of those carry the answers to published tests."""

PACKAGES = ("sortedcontainers",)
"""Packages that programs may import where this environment has them. They are Python without
extensions, and rows of LeetCodeDataset import them."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter and the folders that it reads."""

    executable: str
    folders: tuple[str, ...]
    """The standard library and the folders of shared libraries; none lies in another."""
    hidden: tuple[str, ...]
    """Folders in these that must not be seen."""
    libraries: tuple[str, ...]
    """Where shared libraries are looked for."""


@cache
def base_interpreter() -> Interpreter:
    """The interpreter beneath this environment, without the environment.

    Raises:
        SandboxError: It does not start.
    """
    executable = str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())
    command = [executable, "-I", "-S", "-B", "-c", _ASK]
    try:
        answer = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(
            f"the base interpreter {executable} does not start: {error}. Programs run in it, "
            f"without the packages of this environment"
        ) from error
    found = json.loads(answer.stdout)
    libraries = sorted({str(Path(file).parent) for file in found["libraries"]})
    folders = _outermost([*found["stdlib"], *libraries])
    hidden = [str(h) for folder in folders for h in _package_folders(Path(folder))]
    return Interpreter(executable, folders, tuple(hidden), tuple(libraries))


def packages() -> dict[str, str]:
    """The folders of the packages that programs may import, by name: those that are installed."""
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
