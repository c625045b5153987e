"""Sandboxed process trees with a channel to each, and the thread that starts and ends them."""

import json
import marshal
import os
import queue
import secrets
import select
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

from gdpo.sandbox._box._frames import Closed, Left, TooLate, TooLong, read_frame, write_frame
from gdpo.sandbox._launch import Launch
from gdpo.sandbox._terms import Limits, SandboxError

_MIB = 1 << 20
_KIB = 1 << 10
_TO_START = 60.0
"""Seconds until a worker is ready, on a machine that does much else."""
_GRACE = 10.0
"""Seconds beyond a program's own limit until all is taken for hung."""
_TO_END = 10.0
"""Seconds until a worker has ended that was asked to."""
_LONGEST_VERDICT = 1 << 22
_LONGEST_COMPLAINT = 2000


class WorkerDied(Exception):
    """A worker ended, or never came up; the message says what it said last."""


class WorkerHung(Exception):
    """The program kept its grader busy beyond all limits.

    Args:
        by_clock: Whether the clock says so, and not the grader's processor time.
    """

    def __init__(self, *, by_clock: bool) -> None:
        super().__init__("no verdict in time")
        self.by_clock = by_clock


def _until(deadline: float) -> Left:
    return lambda: deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class Job:
    """A program and its tests, as a worker wants them."""

    source: str
    setup: bytes | None
    plan: bytes
    functions: bool
    """Whether the tests call functions; otherwise they run the whole program."""
    limits: Limits


class Worker:
    """A running server."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._ready = False
        self._in_use = threading.Lock()
        self.jobs = 0
        """How many it has done."""
        self._process = subprocess.Popen(
            launch.command,
            env=dict(launch.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._streams = [stream for stream in streams if stream is not None]
        self._stdin, self._stdout, self._stderr = (s.fileno() for s in self._streams)
        os.set_blocking(self._stdin, False)

    def run(self, job: Job) -> tuple[dict[str, Any], bool]:
        """The grader's verdict on a program, and whether the worker is as it was before.

        Raises:
            WorkerDied: It is no more, and there is no verdict.
            WorkerHung: It is past all limits: the program has its grader busy.
        """
        with self._in_use:
            return self._run(job)

    def _run(self, job: Job) -> tuple[dict[str, Any], bool]:
        self._wait_until_ready()
        self.jobs += 1
        nonce = secrets.token_hex(16)
        left = _until(time.monotonic() + job.limits.longest_seconds + _GRACE)
        try:
            for message in self._messages(job, nonce):
                write_frame(self._stdin, message, left)
            answer = json.loads(read_frame(self._stdout, _LONGEST_VERDICT, left))
            if answer.get("hung"):
                raise WorkerHung(by_clock=answer["hung"] == "clock")
            if "nonce" not in answer:
                return {"lost": "the grader ended without a verdict"}, False
            if not compare_digest(str(answer["nonce"]), nonce):
                raise WorkerDied("a verdict without the job's proof")
            over = json.loads(read_frame(self._stdout, _LONGEST_VERDICT, left))
        except TooLate as error:
            raise WorkerHung(by_clock=True) from error
        except (Closed, TooLong, ValueError) as error:
            raise WorkerDied(self._last_words()) from error
        return answer, over["clean"] and over["graded"]

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        try:
            read_frame(self._stdout, _LONGEST_VERDICT, _until(time.monotonic() + _TO_START))
        except (Closed, TooLate, TooLong) as error:
            raise WorkerDied(self._last_words()) from error
        self._ready = True

    def close(self) -> None:
        """End it and all that it started."""
        if self._ready:
            self._process.send_signal(self._launch.stop)
        else:
            # Killed while it builds its box, bwrap leaves a child that waits for it for ever.
            self._streams[0].close()
        try:
            self._process.wait(timeout=_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Whoever waits for its verdict sees the end of the pipe first, and not another file there.
        with self._in_use:
            self.forget()
        self._launch.tidy()

    def forget(self) -> None:
        """Let go of it without ending it: after a fork it is the parent's."""
        self._process.returncode = self._process.returncode or 0
        for stream in self._streams:
            stream.close()

    def _messages(self, job: Job, nonce: str) -> tuple[bytes, bytes, bytes]:
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
        text = words.decode(errors="replace").strip() or "it said nothing"
        return f"{text} (exit status {self._process.returncode})"


class Pool:
    """A number of workers, of which each does one job at a time.

    One thread starts them all: the kernel ends a worker when the thread that started it ends, which
    is how none outlives this process, however that ends.
    """

    def __init__(self, launch: Callable[[], Launch], workers: int) -> None:
        self.pid = os.getpid()
        self._launch = launch
        self._idle: queue.SimpleQueue[Worker | Exception | None] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._all: set[Worker] = set()
        self._thread = threading.Thread(target=self._obey, name="gdpo-sandbox", daemon=True)
        self._thread.start()
        for _ in range(workers):
            self._orders.put(self._start)

    def take(self) -> Worker:
        """A worker of one's own, as soon as one is free.

        Raises:
            SandboxError: None can be started, or the pool is closed.
        """
        found = self._idle.get()
        if found is None:
            self._idle.put(None)
            raise SandboxError("this sandbox is closed; make another one")
        if isinstance(found, Exception):
            self._orders.put(self._start)
            raise SandboxError(f"no sandboxed process can be started: {found}") from found
        return found

    def give_back(self, worker: Worker) -> None:
        """Let others have a worker that is as it was."""
        self._idle.put(worker)

    def replace(self, worker: Worker) -> None:
        """End a worker and start another one, without waiting for either."""
        self._orders.put(self._start)
        self._orders.put(lambda: self._end(worker))

    def close(self) -> None:
        """End all workers; whoever waits for one gets a SandboxError."""
        if self.pid != os.getpid():
            return
        self._idle.put(None)
        self._orders.put(None)
        # A sandbox that nobody holds any more may be collected in the thread that would end it.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def forget(self) -> None:
        """Let go of all workers without ending them: they are another process's."""
        for worker in self._all:
            worker.forget()

    def _obey(self) -> None:
        for order in iter(self._orders.get, None):
            order()
        for worker in list(self._all):
            self._end(worker)

    def _start(self) -> None:
        try:
            worker = Worker(self._launch())
        except (OSError, SandboxError) as error:
            self._idle.put(error)
            return
        self._all.add(worker)
        self._idle.put(worker)

    def _end(self, worker: Worker) -> None:
        self._all.discard(worker)
        worker.close()
