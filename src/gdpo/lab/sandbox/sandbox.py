"""Defines the public class `Sandbox` and a process's default sandbox."""

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from gdpo.errors import ConfigError, DataError
from gdpo.lab.sandbox._terms import Limits, SandboxError, Stdio, Tests, Verdict
from gdpo.lab.sandbox._workers import Pool, SandboxJob, WorkerDied, WorkerHung
from gdpo.lab.sandbox.backends import PACKAGES, find_backend, launcher, plain
from gdpo.lab.sandbox.plan import fits, plan

logger = logging.getLogger(__name__)

_SPOILING = ("timeout", "memory", "output", "killed", "forbidden")
"""Bugs after which the worker is replaced, because the program may have affected the worker."""
_ATTEMPTS = 2
_USUAL = Limits()


class Sandbox:
    """Runs each program against its tests, in a new confined process that cannot see the tests.

    A sandbox is a context manager. Several threads may call `run` at once. After a fork, the child
    starts its own workers.

    Args:
        workers: Number of programs that may run at once.
        backend: Name of a backend (`gdpo.lab.sandbox.backends.BACKENDS`), or "auto" for the first
            backend that works.
        recycle_after: Number of programs after which a worker is replaced.
        unsafe: Run programs with only the limits and the system call filter. They can then read
            every file that this user can read, including tests: only for a disposable machine.

    Raises:
        ConfigError: If an argument is out of range.
        SandboxError: If the backend does not work on this machine.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        backend: str = "auto",
        recycle_after: int = 500,
        unsafe: bool = False,
    ) -> None:
        for name, value in (("workers", workers), ("recycle_after", recycle_after)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if unsafe and backend != "auto":
            raise ConfigError(
                f"unsafe=True uses no backend, got backend={backend!r}. Remove one of the two"
            )
        self._workers = workers
        self._recycle_after = recycle_after
        self._lock = threading.Lock()
        self.backend = "unsafe" if unsafe else find_backend() if backend == "auto" else backend
        """Name of the backend, or "unsafe" if programs run without isolation."""
        self._launch = plain if unsafe else launcher(self.backend)
        if unsafe:
            logger.warning(
                "unsafe sandbox: programs run as this user. Only limits and a system call filter "
                "restrict them. They can read every file that this user can read, and write to "
                "most. Use unsafe=False unless this machine is disposable"
            )
        self._start()
        _alive.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, source: str, tests: Tests, limits: Limits = _USUAL) -> Verdict:
        """Run one program against its tests.

        Args:
            source: The program. Any text gets a verdict.
            tests: The tests.
            limits: The program's limits.

        Raises:
            DataError: If the tests are invalid, so that no program can pass.
            ConfigError: If the tests' entry point is not a Python expression.
            SandboxError: If the sandbox itself failed.
        """
        planned, setup, total = plan(tests)
        job = SandboxJob(source, setup, planned, not isinstance(tests, Stdio), fits(tests, limits))
        words = ""
        for _ in range(_ATTEMPTS):
            with self._lock:  # after a fork, the child needs a pool of its own
                if self._pool.pid != os.getpid() and self._finalizer.detach():
                    self._start()
                pool = self._pool
            try:
                return self._verdict(pool, job, total)
            except WorkerDied as error:
                words = str(error)
        raise SandboxError(
            f"the sandbox's process exited twice without a verdict: {words}. The program is not "
            f"the cause. Check whether this machine is out of memory or at its process limit"
        )

    def run_many(
        self, jobs: Iterable[tuple[str, Tests] | tuple[str, Tests, Limits]]
    ) -> list[Verdict]:
        """Run programs, one per worker at a time, and return the verdicts in order."""
        with ThreadPoolExecutor(self._workers) as threads:
            return list(threads.map(lambda job: self.run(*job), jobs))

    def close(self) -> None:
        """Stop all workers. A closed sandbox cannot run programs."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """True if the sandbox was closed."""
        return not self._finalizer.alive

    def _verdict(self, pool: Pool, job: SandboxJob, total: int) -> Verdict:
        worker = pool.take()
        as_it_was, began = False, time.monotonic()
        try:
            answer, as_it_was = worker.run(job)
            as_it_was &= answer.get("bug") not in _SPOILING and worker.jobs < self._recycle_after
        except WorkerHung as hung:
            words = "the tests do not finish on the values that the program returned"
            seconds = time.monotonic() - began
            return Verdict(("timeout",) * total, "timeout", words, seconds, hung.by_clock)
        finally:
            if as_it_was:
                pool.give_back(worker)
            else:
                pool.replace(worker)
        if "bad" in answer:
            remedy = "Correct the tests"
            if "ModuleNotFoundError" in answer["bad"]:
                remedy = (
                    "Available in the sandbox: Python's standard library and, with the 'code' "
                    f"extra, {', '.join(PACKAGES)}"
                )
            raise DataError(f"{answer['bad']}. No program can pass such tests. {remedy}")
        if answer.get("lost"):
            logger.warning("a program's answers could not be graded: %s", answer["lost"])
        if "outcomes" not in answer:
            words = "the program's answers cannot be graded"
            return Verdict(("killed",) * total, "killed", words, seconds=0.0)
        details = (answer[name] for name in ("bug", "message", "seconds", "by_clock"))
        return Verdict(tuple(answer["outcomes"]), *details)

    def _start(self) -> None:
        self._pool = Pool(self._launch, self._workers)
        self._finalizer = weakref.finalize(self, self._pool.close)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._pool.forget()


_default: Sandbox | None = None
_default_lock = threading.Lock()
_alive: weakref.WeakSet[Sandbox] = weakref.WeakSet()


def default_sandbox() -> Sandbox:
    """Return this process's shared sandbox, which has one worker and starts on first use."""
    global _default
    with _default_lock:
        if _default is None or _default.closed:
            _default = Sandbox(workers=1)
        return _default


def _after_fork() -> None:
    """Reset the locks and release the workers, which belong to the parent, in a forked child."""
    global _default_lock
    _default_lock = threading.Lock()
    for sandbox in _alive:
        sandbox._forget()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_after_fork)
