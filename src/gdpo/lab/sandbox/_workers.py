"""Manages worker processes: their pipes, and the thread that starts and stops the workers."""

import json
import marshal
import os
import queue
import secrets
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

from gdpo.lab.sandbox._box._frames import (
    Closed,
    FrameTooLate,
    Left,
    TooLong,
    read_frame,
    write_frame,
)
from gdpo.lab.sandbox._terms import Limits, SandboxError

_MIB = 1 << 20
_KIB = 1 << 10
_TO_START = 60.0
"""Maximum time until a worker is ready, even on a busy machine, in seconds."""
_GRACE = 10.0
"""Time after a program's own limit until its worker counts as hung, in seconds."""
_TO_END = 10.0
"""Maximum time for a worker to exit when it is closed, in seconds."""
_LONGEST_VERDICT = 1 << 22
_LONGEST_COMPLAINT = 2000


class WorkerDied(Exception):
    """Raised if a worker exited or did not start. The message contains its last output."""


class WorkerHung(Exception):
    """Raised if a program kept its grader busy for longer than all wall-clock and CPU limits."""

    def __init__(self, *, by_clock: bool) -> None:
        super().__init__("no verdict in time")
        self.by_clock = by_clock


def _within(seconds: float) -> Left:
    deadline = time.monotonic() + seconds
    return lambda: deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class SandboxLaunch:
    """Describes how to start one worker."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    scratch: str
    """Path, inside the box, of the folder that programs may write to."""
    threads: int | None
    """Maximum number of threads in a program. None: no limit, because the kernel would also count
    the threads of all other processes of this user."""
    stop: int = signal.SIGKILL
    """Signal that stops the worker and all processes that it started."""
    tidy: Callable[[], None] = field(default=lambda: None)
    """Function that removes the worker's files and control group from this machine."""


@dataclass(frozen=True, slots=True)
class SandboxJob:
    """Stores a program and its tests in the form that a worker needs."""

    source: str
    setup: bytes | None
    plan: bytes
    functions: bool
    """True if the tests call functions of the program, False if they run the whole program."""
    limits: Limits


class SandboxWorker:
    """Runs jobs on one sandboxed server process."""

    def __init__(self, launch: SandboxLaunch) -> None:
        self._launch = launch
        self._ready = False
        self._in_use, self._starting = threading.Lock(), threading.Lock()
        self.jobs = 0
        """Number of jobs started so far."""
        self._process = subprocess.Popen(
            launch.command,
            env=dict(launch.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._streams: Any = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = (s.fileno() for s in self._streams)
        os.set_blocking(self._stdin, False)

    def run(self, job: SandboxJob) -> tuple[dict[str, Any], bool]:
        """Return the grader's verdict on a program, and whether the worker can be reused.

        Raises:
            WorkerDied: If the worker exited without a verdict.
            WorkerHung: If the program kept its grader busy for too long.
        """
        with self._in_use:
            if not self._ready:
                try:
                    read_frame(self._stdout, _LONGEST_VERDICT, _within(_TO_START))
                except (Closed, FrameTooLate, TooLong) as error:
                    raise WorkerDied(self._last_words()) from error
                with self._starting:
                    if self._streams[0].closed:
                        raise WorkerDied("the sandbox was closed")
                    self._ready = True
            return self._run(job)

    def _run(self, job: SandboxJob) -> tuple[dict[str, Any], bool]:
        self.jobs += 1
        nonce = secrets.token_hex(16)
        left = _within(job.limits.longest_seconds + _GRACE)
        try:
            for message in self._messages(job, nonce):
                write_frame(self._stdin, message, left)
            answer = json.loads(read_frame(self._stdout, _LONGEST_VERDICT, left))
            if answer.get("hung"):
                raise WorkerHung(by_clock=answer["hung"] == "clock")
            if "nonce" not in answer:
                return {"lost": "the grader ended without a verdict"}, False
            if not compare_digest(str(answer["nonce"]), nonce):
                raise WorkerDied("the verdict does not contain the nonce of the job")
            over = json.loads(read_frame(self._stdout, _LONGEST_VERDICT, left))
        except FrameTooLate as error:
            raise WorkerHung(by_clock=True) from error
        except (Closed, TooLong, ValueError) as error:
            raise WorkerDied(self._last_words()) from error
        return answer, over["clean"] and over["graded"]

    def close(self) -> None:
        with self._starting:  # no thread may write to a closed pipe, or to a file in its place
            if self._ready:
                self._process.send_signal(self._launch.stop)
            else:
                # If bwrap were killed while it sets up the box, its child would wait forever.
                self._streams[0].close()
        try:
            self._process.wait(timeout=_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Close the pipes only after a waiting thread saw their end. Otherwise the thread could read
        # from another file that reuses the descriptor.
        with self._in_use:
            self.forget()
        self._launch.tidy()

    def forget(self) -> None:
        """Close the pipes without stopping the worker, which belongs to the parent after a fork."""
        self._process.returncode = self._process.returncode or 0
        for stream in self._streams:
            stream.close()

    def _messages(self, job: SandboxJob, nonce: str) -> tuple[bytes, bytes, bytes]:
        limits = job.limits
        header = {
            "wall": limits.wall_seconds,
            "longest": limits.longest_seconds,
            "cpu": limits.cpu_seconds,
            "memory": int(limits.memory_mb * _MIB),
            "own": int(limits.memory_mb * _MIB),
            "file": int(limits.file_mb * _MIB),
            "files": int(limits.open_files),
            "answer": int(limits.output_kb * _KIB),
            "threads": self._launch.threads,
            "scratch": self._launch.scratch,
            "functions": job.functions,
        }
        program = {"source": job.source, "setup": job.setup}
        tests = {"nonce": nonce, "plan": job.plan}
        return marshal.dumps(header), marshal.dumps(program), marshal.dumps(tests)

    def _last_words(self) -> str:
        poll = select.poll()
        poll.register(self._stderr, select.POLLIN)
        words = os.read(self._stderr, _LONGEST_COMPLAINT) if poll.poll(100) else b""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.5)
        text = words.decode(errors="replace").strip() or "no output"
        return f"{text} (exit status {self._process.returncode})"


class Pool:
    """Manages several workers, each of which runs one job at a time.

    A single thread starts all workers. The kernel kills them when this thread exits, so none
    outlives this process, even if this process is killed.
    """

    def __init__(self, launch: Callable[[], SandboxLaunch], workers: int) -> None:
        self.pid = os.getpid()
        self._launch = launch
        self._idle: queue.SimpleQueue[SandboxWorker | Exception | None] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._all: set[SandboxWorker] = set()
        self._thread = threading.Thread(target=self._obey, name="gdpo-sandbox", daemon=True)
        self._thread.start()
        for _ in range(workers):
            self._orders.put(self._start)

    def take(self) -> SandboxWorker:
        """Wait for a free worker and reserve it for the caller.

        Raises:
            SandboxError: If no worker can be started or the pool is closed.
        """
        found = self._idle.get()
        if found is None:
            self._idle.put(None)
            raise SandboxError("this sandbox is closed. Create another Sandbox")
        if isinstance(found, Exception):
            self._orders.put(self._start)
            raise SandboxError(f"a sandboxed process could not be started: {found}") from found
        return found

    def give_back(self, worker: SandboxWorker) -> None:
        self._idle.put(worker)

    def replace(self, worker: SandboxWorker) -> None:
        """Request a new worker in place of this one, and return immediately."""
        self._orders.put(self._start)
        self._orders.put(lambda: self._end(worker))

    def close(self) -> None:
        """Stop all workers. A thread that is waiting for a worker gets a SandboxError."""
        if self.pid != os.getpid():
            return
        self._idle.put(None)
        self._orders.put(None)
        # Garbage collection of the sandbox may run in the pool's thread, which cannot join itself.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def forget(self) -> None:
        """Close the pipes of all workers, as `SandboxWorker.forget` does."""
        for worker in self._all:
            worker.forget()

    def _obey(self) -> None:
        for order in iter(self._orders.get, None):
            order()
        for worker in list(self._all):
            self._end(worker)

    def _start(self) -> None:
        try:
            worker = SandboxWorker(self._launch())
        except (OSError, SandboxError) as error:
            self._idle.put(error)
            return
        self._all.add(worker)
        self._idle.put(worker)

    def _end(self, worker: SandboxWorker) -> None:
        self._all.discard(worker)
        worker.close()
