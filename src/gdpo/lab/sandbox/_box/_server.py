"""Runs the server process, which starts all other processes in the box.

The server keeps the bytes of the program in a buffer that is overwritten afterwards, and forks a
grader, which reads the tests and orders the server to fork programs. A program's memory therefore
never contains a test, an expected value, another program, or the nonce that proves a verdict to the
host.

A grader serves several jobs, because forking is the most expensive step. It runs only trusted code
and builds every value from a program itself. If it exits too early, the whole box is replaced.
"""

import builtins
import fcntl
import gc
import importlib
import json
import marshal
import os
import random
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ._confine import address_space, keep_private, program_filter
from ._frames import Closed, read_exactly, read_frame, write_frame
from ._grader import become_grader
from ._process import COMPUTED, DEATH
from ._program import become_program

WARM = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "contextlib",
    "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib",
    "heapq", "io", "itertools", "json", "locale", "math", "numbers", "operator", "os", "queue",
    "random", "re", "statistics", "string", "struct", "sys", "textwrap", "threading", "time",
    "traceback", "types", "typing", "unicodedata", "uuid",
)  # fmt: skip
"""Modules that the server imports in advance for all programs."""

_LONGEST_HEADER = 1 << 16
_GRADED_BY_ONE = 50
"""Number of jobs after which the grader is replaced, because tests may change its state."""
_TO_END = 1.0
"""Time for a process to exit after its pipes are closed, even on a busy machine, in seconds."""
_CLOCK_OF_A_PROCESS = 2
_HUNG = {int(signal.SIGPROF): "processor", int(signal.SIGALRM): "clock"}
"""Maps the signal that killed a hung grader to the limit that the grader exceeded."""


def serve() -> None:
    """Serve jobs from standard input until it is closed, and write results to standard output."""
    jobs, verdicts = (fcntl.fcntl(fd, fcntl.F_DUPFD, 32) for fd in (0, 1))
    for name in WARM:
        importlib.import_module(name)
    # The module `site` usually defines these names, but is not loaded, as it adds site-packages.
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed(0)
    keep_private()
    gc.collect()
    gc.freeze()
    server = Server(jobs, verdicts)
    # Standard error stays open until now, so that errors during the start are reported.
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    write_frame(verdicts, b'{"ready": true}')
    with suppress(Closed):
        while True:
            server.serve_one()
    os._exit(0)


class Server:
    """Runs jobs from the host one after another, each without data from earlier jobs."""

    def __init__(self, jobs: int, verdicts: int) -> None:
        self._jobs = jobs
        self._verdicts = verdicts
        self._seccomp = program_filter()
        self._own_memory = address_space()
        self._program: int | None = None
        self._grader: int | None = None

    def serve_one(self) -> None:
        limits = marshal.loads(read_frame(self._jobs, _LONGEST_HEADER))
        limits["memory"] += self._own_memory
        size = int.from_bytes(read_exactly(self._jobs, 4), "little")
        job = read_exactly(self._jobs, size)
        if self._grader is None:
            self._start_grader()
        self._control.send(marshal.dumps(limits))
        alive = self._obey(job, limits)
        self._end_program(patience=0)
        job[:] = bytes(size)
        self._graded += 1
        status = 0
        if self._grader is not None and (not alive or self._graded >= _GRADED_BY_ONE):
            self._control.close()
            _, status = os.waitpid(self._grader, 0)
            self._grader = None
        over = {
            "graded": alive,
            "hung": _HUNG.get(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None,
            "clean": _is_empty(limits["scratch"]),
        }
        write_frame(self._verdicts, json.dumps(over).encode())

    def _start_grader(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._grader = os.fork()
        if not self._grader:
            try:
                ours.close()
                become_grader(self._jobs, self._verdicts, theirs)
            finally:
                os._exit(1)
        theirs.close()
        self._control, self._graded = ours, 0

    def _obey(self, job: bytearray, limits: dict[str, Any]) -> bool:
        """Execute the grader's orders until the job is graded. False: the grader died first."""
        try:
            while True:
                order, fds, _, _ = socket.recv_fds(self._control, 16, 4)
                if order in (b"", b"D"):
                    return bool(order)
                if order[:1] == b"S":
                    self._start_program(job, {**limits, "cpu": int(order[1:])}, fds)
                elif order == b"T":
                    self._control.send(COMPUTED.pack(self._computed()))
                else:
                    patience = _TO_END if order == b"W" else 0
                    self._control.send(self._end_program(patience))
        except ConnectionError:
            # The grader ended while it waited for an answer, or before it read one.
            return False

    def _start_program(self, job: bytearray, limits: dict[str, Any], fds: list[int]) -> None:
        self._program = os.fork()
        if not self._program:
            try:
                become_program(job, limits, fds, self._seccomp)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)

    def _computed(self) -> float:
        """Return the running program's CPU time in seconds, or 0 without a program."""
        if self._program is None:
            return 0.0
        # Compute what clock_getcpuclockid returns for a process. Python has it only for threads.
        return time.clock_gettime(~self._program << 3 | _CLOCK_OF_A_PROCESS)

    def _end_program(self, patience: float) -> bytes:
        if self._program is None:
            return b""
        pid, self._program = self._program, None
        over, status, usage = os.wait4(pid, os.WNOHANG)
        until = time.monotonic() + patience
        while not over and time.monotonic() < until:
            time.sleep(0.0005)
            over, status, usage = os.wait4(pid, os.WNOHANG)
        if not over:
            os.kill(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
        return DEATH.pack(status, not over, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def _is_empty(folder: str) -> bool:
    try:
        return next(Path(folder).iterdir(), None) is None
    except OSError:
        return False
