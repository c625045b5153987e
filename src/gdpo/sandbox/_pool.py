"""Workers at rest, and the thread that starts and ends them."""

import os
import queue
import threading
from collections.abc import Callable

from gdpo.sandbox._launch import Launch
from gdpo.sandbox._verdict import SandboxError
from gdpo.sandbox._worker import Worker


class Pool:
    """A number of workers, of which each does one job at a time.

    One thread starts them all: the kernel ends a worker when the thread that started it ends, which
    is how none outlives this process, however that ends.

    Args:
        launch: Says how to start a worker.
        workers: How many.
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
