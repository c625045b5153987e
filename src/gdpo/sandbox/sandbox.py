"""Runs programs that nobody trusts: the public face, and the sandbox that a process shares."""

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self

from gdpo.errors import ConfigError, DataError
from gdpo.sandbox._interpreter import PACKAGES
from gdpo.sandbox._launch import plain
from gdpo.sandbox._terms import Limits, Outcome, SandboxError, Stdio, Tests, Verdict
from gdpo.sandbox._workers import Job, Pool, WorkerDied, WorkerHung
from gdpo.sandbox.backends import find_backend, launcher
from gdpo.sandbox.plan import fits, plan

logger = logging.getLogger(__name__)

_SPOILING = ("timeout", "memory", "output", "killed", "forbidden")
"""Bugs after which a worker is replaced: nobody looks for what is left of such a program."""
_ATTEMPTS = 2
_USUAL = Limits()


class Sandbox:
    """Runs programs against tests, each in fresh processes that are confined and see no tests.

    A context manager; `run` may be called from several threads at a time, and after a fork the
    child starts workers of its own.

    Args:
        workers: How many programs run at the same time.
        backend: "auto" for the first that works, or a name from `describe_backends`.
        recycle_after: Programs after which a worker is replaced by a fresh one.
        unsafe: Run without any box, on a machine that has nothing to lose: a program then reads
            what its user may read, the tests of others among it.

    Raises:
        ConfigError: An argument is out of range.
        SandboxError: The backend does not work on this machine.
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
            raise ConfigError(f"unsafe means no backend, got backend={backend!r}; leave one out")
        self._workers = workers
        self._recycle_after = recycle_after
        self._lock = threading.Lock()
        self.backend = "unsafe" if unsafe else find_backend() if backend == "auto" else backend
        """The name of the box, "unsafe" if there is none."""
        self._launch = plain if unsafe else launcher(self.backend)
        if unsafe:
            logger.warning(
                "unsafe sandbox: programs run as this user with limits and a filter of system "
                "calls, but they can read every file that this user can, and write to most"
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
            source: The program. Whatever it says, there is a verdict.
            tests: What it is tested with.
            limits: What it may use.

        Raises:
            DataError: The tests are wrong, whatever the program.
            ConfigError: The tests' entry point is no expression.
            SandboxError: The sandbox itself failed.
        """
        planned, setup, total = plan(tests)
        job = Job(source, setup, planned, not isinstance(tests, Stdio), fits(tests, limits))
        words = ""
        for _ in range(_ATTEMPTS):
            pool = self._pool_of_this_process()
            try:
                return self._verdict(pool, job, total)
            except WorkerDied as error:
                words = str(error)
        raise SandboxError(
            f"the sandbox's process ended twice without a verdict: {words}. It is no fault of the "
            f"program; is this machine out of memory or of processes?"
        )

    def run_many(
        self, jobs: Iterable[tuple[str, Tests] | tuple[str, Tests, Limits]]
    ) -> list[Verdict]:
        """Run programs, as many at a time as there are workers; the verdicts keep their order."""
        with ThreadPoolExecutor(self._workers) as threads:
            return list(threads.map(lambda job: self.run(*job), jobs))

    def close(self) -> None:
        """End all that runs in it. A closed sandbox runs nothing more."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether it runs nothing more."""
        return not self._finalizer.alive

    def _verdict(self, pool: Pool, job: Job, total: int) -> Verdict:
        worker = pool.take()
        as_it_was, began = False, time.monotonic()
        try:
            answer, as_it_was = worker.run(job)
            as_it_was &= answer.get("bug") not in _SPOILING and worker.jobs < self._recycle_after
        except WorkerHung as hung:
            words = "the tests do not end on what the program gave"
            seconds = time.monotonic() - began
            return _lost("timeout", total, words, seconds=seconds, by_clock=hung.by_clock)
        finally:
            if as_it_was:
                pool.give_back(worker)
            else:
                pool.replace(worker)
        if "bad" in answer:
            raise DataError(_told_of_tests(answer["bad"]))
        return _verdict(answer, total)

    def _start(self) -> None:
        self._pool = Pool(self._launch, self._workers)
        self._finalizer = weakref.finalize(self, self._pool.close)

    def _pool_of_this_process(self) -> Pool:
        with self._lock:
            if self._pool.pid != os.getpid() and self._finalizer.detach():
                self._start()
            return self._pool

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._pool.forget()


def _told_of_tests(fault: str) -> str:
    told = f"{fault}: no program can pass such tests"
    if "ModuleNotFoundError" not in fault:
        return f"{told}; correct them"
    others = ", ".join(PACKAGES)
    return f"{told}. Installed there: Python's own modules, and {others} with the extra code"


def _verdict(answer: dict[str, Any], total: int) -> Verdict:
    if answer.get("lost"):
        logger.warning("a program's answers could not be graded: %s", answer["lost"])
    if "outcomes" not in answer:
        return _lost("killed", total, "its answers cannot be graded")
    told = (answer[name] for name in ("bug", "message", "seconds", "by_clock"))
    return Verdict(tuple(answer["outcomes"]), *told)


def _lost(
    reason: Literal["timeout", "killed"],
    total: int,
    message: str,
    *,
    seconds: float = 0.0,
    by_clock: bool = False,
) -> Verdict:
    """Return the verdict on a program that brought its grader down."""
    outcomes: list[Outcome] = [reason] * total
    return Verdict(tuple(outcomes), reason, message, seconds, by_clock)


_default: Sandbox | None = None
_default_lock = threading.Lock()
_alive: weakref.WeakSet[Sandbox] = weakref.WeakSet()


def default_sandbox() -> Sandbox:
    """The sandbox that all of this process share: one worker, started at first use.

    Raises:
        SandboxError: No backend works on this machine.
    """
    global _default
    with _default_lock:
        if _default is None or _default.closed:
            _default = Sandbox(workers=1)
        return _default


def _after_fork() -> None:
    """The workers are the parent's, and its other threads, which may hold locks, are not here."""
    global _default_lock
    _default_lock = threading.Lock()
    for sandbox in _alive:
        sandbox._forget()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_after_fork)
