"""Processes that run slow rewards and can be killed. `_worker_process` is what they run.

The pools of the standard library run the user's script again in each process, or fork a process
that holds threads and an accelerator, and cannot end one call alone; hence a small one of our own.
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

from gdpo.errors import ConfigError, RewardError
from gdpo.rewards.reward import Reward
from gdpo.rewards.scores import SHOWN, Call, Failure, Result

RECYCLE_AFTER = 10_000
"""Calls after which a process is replaced by a fresh one: to import sympy again takes as long as a
thousand comparisons."""

_START_S = 120.0
"""Seconds that a process may take to import what its rewards need."""

_FIRST = (
    ", in the first call of its worker, which includes what the function itself imports and loads: "
    "do that at the top level of its module"
)

_NOT_ITS_ANSWER = (
    "it did not send the answer to this call: what a reward starts must not write to the worker's "
    "connection"
)

_ANSWER_BYTES = 100_000
"""What a worker may answer with; a longer message is no answer of ours."""


class Worker:
    """One process, started when it is first needed and again after it was killed or is worn out.

    Args:
        rewards: The rewards, pickled.
        memory: GiB of data that the process may hold; None: no limit.
        recycle_after: Calls after which it is replaced: libraries leak.
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
        """Return the reward's value, or what went wrong: it failed, was late, or took all down."""
        name, deadline = call.reward.name, call.reward.deadline
        assert deadline is not None, "only rewards with a deadline run in a worker"
        connection = self._connection or self._start()
        try:
            sent = (self._calls, call.place, call.completion, call.reference, deadline)
            connection.send_bytes(pickle.dumps(sent))
            if not connection.poll(deadline):
                first = self._calls == 0
                self.kill()
                return call.timed_out(deadline, _FIRST if first else "")
            number, told = json.loads(connection.recv_bytes(_ANSWER_BYTES))
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
        return Failure(name, call.index, *told) if isinstance(told, list) else told

    def stop(self) -> None:
        """End the process for good, from whatever thread."""
        self._stopped = True
        self.kill()

    def kill(self) -> None:
        """End the process, whatever it does; the next call starts another."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is not None:
            process.kill()  # first: whoever waits for its answer sees that none will come
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
                start_new_session=True,  # a Ctrl-C at the terminal is not for it
            )
        self._calls = 0
        if self._stopped:
            self.kill()
            raise RewardError("the scorer was closed while it scored")
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
            "What it printed stands above: it imports what the reward's function needs, in a "
            "Python of its own. Leave out the deadline to run the reward in this process"
        )

    def _last_words(self) -> str:
        process = self._process
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None
        if process is None:
            return "it was ended"
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return "it stopped answering"
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


class Workers:
    """Some workers, and whichever of them is free. Closed for good when a batch is given up.

    Args:
        rewards: What they can be asked for, by position.
        count: How many processes.
        memory: GiB of data that each may hold; None: no limit.
        recycle_after: Calls after which one is replaced.

    Raises:
        ConfigError: A reward that cannot be sent to another process.
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
        """The results of some groups of calls, in their order.

        Args:
            groups: The calls of one group run in one process, one after the other.
            done: Called after each group, one at a time.

        Raises:
            RewardError: A worker does not start.
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
    import cloudpickle

    for reward in rewards:
        try:
            cloudpickle.dumps(reward)
        except Exception as error:
            raise ConfigError(
                f"reward {reward.name!r} has a deadline, so it runs in a process of its own, but "
                f"its function cannot be sent there ({type(error).__name__}: "
                f"{str(error)[:SHOWN]}). A function of a script or notebook is sent with all "
                "that it refers to, and a lock, a file or a connection cannot be sent: put the "
                "function into a module, which the process imports anew, or leave out the deadline"
            ) from error
    return cloudpickle.dumps(list(rewards))
