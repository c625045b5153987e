"""Runs slow rewards in a worker process, one call at a time. `_workers` is the other end.

The process reads calls from a socket and writes results to it, so output that a reward prints is
never mistaken for a result. It is started as `python -m gdpo.rewards._worker_process <socket>`, so
the user's script does not run again, even without an `if __name__ == "__main__"` guard.
"""

import gc
import json
import os
import pickle
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

_GRACE_S = 2.0
"""Seconds after a deadline at which the worker ends itself if nobody else has ended it."""


def main() -> None:
    """Serve calls until the other end closes."""
    connection = Connection(int(sys.argv[1]))
    # A child that a reward forks, or a program that it starts, must not read or write here.
    os.register_at_fork(after_in_child=connection.close)
    os.set_inheritable(connection.fileno(), False)
    try:
        rewards = _load(connection)
        connection.send_bytes(b"ready")
        gc.freeze()
        while True:
            answer(connection, rewards)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the scorer has ended


def _load(connection: Connection) -> list[Any]:
    path, memory = pickle.loads(connection.recv_bytes())
    sys.path[:] = path
    if memory is not None:
        limit = int(memory * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return pickle.loads(connection.recv_bytes())


def answer(connection: Connection, rewards: list[Any]) -> None:
    """Read one call, run its reward, and send back the call's number and the result."""
    from gdpo.rewards.scores import Failure, score_one

    number, k, completion, reference, deadline = pickle.loads(connection.recv_bytes())
    # The signal's default action, which ends the process, works even inside C code.
    signal.setitimer(signal.ITIMER_REAL, deadline + _GRACE_S)
    result = score_one(rewards[k], completion, reference)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sent = [result.kind, result.message] if isinstance(result, Failure) else result
    connection.send_bytes(json.dumps([number, sent]).encode())


if __name__ == "__main__":
    main()
