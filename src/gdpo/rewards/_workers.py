"""Runs slow rewards in processes that can be killed.

`_worker_process` is their main module. The standard library's process pools cannot kill a single
call, and run the user's script again or fork a process that has threads and uses an accelerator.
"""

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue

from gdpo.errors import ConfigError, MissingExtraError, RewardError
from gdpo.rewards.calls import SHOWN, Call, Failure, Result
from gdpo.rewards.reward import Reward

RECYCLE_AFTER = 10_000
"""Number of calls after which a process is replaced. Importing sympy again takes as long as about a
thousand comparisons."""

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


class Worker:
    """Runs calls in one process. The next call after a kill starts a new process.

    Args:
        memory: Maximum data memory of the process, in GiB. None: no limit.
        recycle_after: Number of calls after which the process is replaced, because libraries leak
            memory.
    """

    def __init__(self, rewards: bytes, *, memory: float | None, recycle_after: int) -> None:
        self._rewards = rewards
        self._memory = memory
        self._recycle_after = recycle_after
        self._calls = 0
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def run(self, call: Call) -> Result:
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
            return Failure(name, call.index, "worker died", self._last_words())
        except (TypeError, ValueError):
            self.kill()
            return Failure(name, call.index, "worker died", _NOT_ITS_ANSWER)
        self._calls += 1
        if self._calls >= self._recycle_after:
            self.kill()
        return Failure(name, call.index, *result) if isinstance(result, list) else result

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


class Workers:
    """Distributes calls over worker processes. An abandoned batch closes all workers permanently.

    Args:
        rewards: Rewards that the workers can run. A call refers to its reward by position.

    Raises:
        ConfigError: If a reward cannot be sent to another process.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        *,
        count: int,
        memory: float | None,
        recycle_after: int = RECYCLE_AFTER,
    ) -> None:
        pickled = _pickled(rewards)
        self._all = [
            Worker(pickled, memory=memory, recycle_after=recycle_after) for _ in range(count)
        ]
        self._free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._all:
            self._free.put(worker)
        self.close = weakref.finalize(self, _stop, self._all)

    def score(
        self, groups: Sequence[Sequence[Call]], *, done: Callable[[], None]
    ) -> list[list[Result]]:
        """Return the results of each group of calls, in order.

        The calls of a group run in the same process, one after another. `done` runs after each
        group, never in two threads at once.
        """
        counting = threading.Lock()

        def run(group: Sequence[Call]) -> list[Result]:
            worker = self._free.get()
            try:
                return [worker.run(call) for call in group]
            finally:
                self._free.put(worker)
                with counting:
                    done()

        with ThreadPoolExecutor(min(len(self._all), len(groups))) as threads:
            try:
                return list(threads.map(run, groups))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self.close()
                raise


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stop()


def _pickled(rewards: Sequence[Reward]) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        purpose = "to score in a separate process, because a reward has a deadline"
        raise MissingExtraError("cloudpickle", "lab", purpose) from error
    for reward in rewards:
        try:
            cloudpickle.dumps(reward)
        except Exception as error:
            raise ConfigError(
                f"reward {reward.name!r} has a deadline, so it runs in a separate process, but "
                f"its function cannot be sent there ({type(error).__name__}: "
                f"{str(error)[:SHOWN]}). A function defined in a script or notebook is pickled "
                "together with every object that it uses, and locks, open files and connections "
                "cannot be pickled. Move the function to a module that the process can import, or "
                "remove the deadline"
            ) from error
    return cloudpickle.dumps(list(rewards))
