"""Runs slow rewards in processes that can be killed, and coroutine rewards in an event loop.

`_worker_process` is the main module of the processes. The standard library's process pools cannot
kill a single call, and run the user's script again or fork a process that has threads and uses an
accelerator.
"""

import asyncio
import json
import os
import pickle
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue

from gdpo.errors import ConfigError, MissingExtraError, RewardError, boundary
from gdpo.rewards.calls import SHOWN, Result, RewardCall, RewardFailure, ask, wait_for
from gdpo.rewards.reward import Reward

RECYCLE_AFTER = 10_000
"""Number of calls after which a process is replaced, because libraries leak memory. Importing sympy
again takes as long as about a thousand comparisons."""

_START_S = 120.0
"""Maximum time, in seconds, for a process to import the modules of its rewards."""

_FIRST = (
    " in the first call of its worker. The time includes everything that the function itself "
    "imports and loads. Move imports and loading to the top level of the module"
)

_NOT_ITS_ANSWER = (
    "the worker's connection carried something other than the result of this call. Code that a "
    "reward starts must not write to this connection"
)

_ANSWER_BYTES = 100_000
"""Maximum size of a worker's result, in bytes. gdpo never sends a longer message."""


class RewardWorker:
    """Runs calls in one process. The next call after a kill starts a new process.

    Args:
        rewards: The rewards, pickled. A call refers to its reward by position.
        memory: Maximum data memory of the process, in GiB. None: no limit.
    """

    def __init__(self, rewards: bytes, *, memory: float | None) -> None:
        self._rewards = rewards
        self._memory = memory
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def run(self, call: RewardCall) -> Result:
        name, deadline = call.reward.name, call.reward.deadline
        assert deadline is not None, "only rewards with a deadline run in a worker"
        connection = self._connection or self._start()
        try:
            sent = (self._calls, call.place, *call.arguments(), deadline)
            connection.send_bytes(pickle.dumps(sent))
            if not connection.poll(deadline):
                first = self._calls == 0
                self.kill()
                return call.timed_out(deadline, _FIRST if first else "")
            number, result = json.loads(connection.recv_bytes(_ANSWER_BYTES))
            if number != self._calls:
                raise ValueError
        except (EOFError, OSError):
            return RewardFailure(name, "worker died", self._last_words())
        except (TypeError, ValueError):
            self.kill()
            return RewardFailure(name, "worker died", _NOT_ITS_ANSWER)
        self._calls += 1
        if self._calls >= RECYCLE_AFTER:
            self.kill()
        return RewardFailure(name, *result) if isinstance(result, list) else result

    def stop(self) -> None:
        self._stopped = True
        self.kill()

    def kill(self) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is not None:
            process.kill()  # before closing, so that a waiting thread notices the end
            process.wait()
        if connection is not None:
            connection.close()

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gdpo.rewards._worker_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # so that Ctrl-C at the terminal does not reach it
            )
        self._calls = 0
        if self._stopped:
            self.kill()
            raise RewardError("the scorer was closed while it was scoring a batch")
        connection = self._connection = Connection(ours.detach())
        try:
            connection.send_bytes(pickle.dumps((sys.path, self._memory)))
            connection.send_bytes(self._rewards)
            if connection.poll(_START_S) and connection.recv_bytes(99) == b"ready":
                return connection
        except (EOFError, OSError):
            pass
        raise RewardError(
            f"a worker process for rewards with a deadline did not start: {self._last_words()}. "
            "A worker imports the module of the reward's function in a new Python process, whose "
            "output is above. Fix this import, or remove the deadline to run the reward in the "
            "main process"
        )

    def _last_words(self) -> str:
        process = self._process
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None
        if process is None:
            return "it was stopped"
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return "it stopped responding"
        return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"


class RewardPool:
    """Runs calls in worker processes, and calls of coroutine functions in the event loop.

    Args:
        rewards: All rewards, which are sent to the processes. A call refers to its reward by
            position.
        workers: Number of processes. They start on first use.
        memory: Maximum data memory of a process, in GiB. None: no limit.
        concurrency: Maximum number of coroutine calls in flight.
        retries: Maximum number of retries of a coroutine call.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        workers: int,
        memory: float | None,
        concurrency: int,
        retries: int,
    ) -> None:
        self._rewards, self._count, self._memory = rewards, workers, memory
        self._concurrency, self._retries = concurrency, retries
        self._threads = ThreadPoolExecutor(workers)
        self._workers: list[RewardWorker] = []
        self._free: SimpleQueue[RewardWorker] = SimpleQueue()
        self.close = weakref.finalize(self, _stop, self._threads, self._workers)
        """Stop the processes permanently."""

    def run(
        self,
        judged: Sequence[RewardCall],
        groups: Sequence[Sequence[RewardCall]],
        *,
        done: Callable[[], None],
    ) -> None:
        """Run calls of coroutine functions, and groups of calls in the processes.

        The calls of a group run in the same process, one after another. `done` runs after each
        judged call and each group, also in several threads at once.

        Raises:
            ConfigError: If a reward cannot be sent to another process.
            RewardError: If a process does not start.
        """
        if groups and not self._workers:
            pickled = _pickled(self._rewards)
            for _ in range(self._count):
                self._workers.append(RewardWorker(pickled, memory=self._memory))
                self._free.put(self._workers[-1])
        wait_for(self._run(judged, iter(groups), done))

    async def _run(
        self,
        judged: Sequence[RewardCall],
        left: Iterator[Sequence[RewardCall]],
        done: Callable[[], None],
    ) -> None:
        loop, limit = asyncio.get_running_loop(), asyncio.Semaphore(self._concurrency)

        async def judge(call: RewardCall) -> None:
            call.result = await ask(call, limit=limit, retries=self._retries)
            done()

        def work_off() -> None:
            worker = self._free.get()
            try:
                for group in left:  # next() on a list iterator is atomic
                    for call in group:
                        call.result = worker.run(call)
                    done()
            finally:
                self._free.put(worker)

        working = [loop.run_in_executor(self._threads, work_off) for _ in self._workers]
        await asyncio.gather(*working, *map(judge, judged))


def _stop(threads: ThreadPoolExecutor, workers: Sequence[RewardWorker]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.stop()


def _pickled(rewards: Sequence[Reward]) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingExtraError(
            "cloudpickle", "lab", "to score in a separate process, because a reward has a deadline"
        ) from error
    sent = [r if r.deadline is not None and not r.asks_elsewhere else None for r in rewards]
    for reward in filter(None, sent):
        with boundary(
            ConfigError,
            lambda error, name=reward.name: (
                f"reward {name!r} has a deadline, so it runs in a separate process, but its "
                f"function cannot be sent there ({type(error).__name__}: {str(error)[:SHOWN]}). A "
                "function defined in a script or notebook is pickled together with every object "
                "that it uses, and locks, open files and connections cannot be pickled. Move the "
                "function to a module that the process can import, or remove the deadline"
            ),
        ):
            cloudpickle.dumps(reward)
    return cloudpickle.dumps(sent)
