"""What a worker process runs: slow rewards, one call after the other. `_workers` is its other end.

It reads from and answers to a socket that it was given, so that whatever a reward prints is no
answer. Started as `python -m gdpo.rewards._worker_process <socket>`; no script of the user's is run
again, whether or not it guards its main part.
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
"""The worker ends itself this long after a deadline, should nobody be left to end it."""


def main() -> None:
    """Answer calls until the other end closes."""
    connection = Connection(int(sys.argv[1]))
    # Neither a child that a reward forks nor a program that it starts reads calls or answers them.
    os.register_at_fork(after_in_child=connection.close)
    os.set_inheritable(connection.fileno(), False)
    try:
        rewards = _load(connection)
        connection.send_bytes(b"ready")
        gc.freeze()
        while True:
            answer(connection, rewards)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the scorer is gone, or done


def _load(connection: Connection) -> list[Any]:
    path, memory = pickle.loads(connection.recv_bytes())
    sys.path[:] = path
    if memory is not None:
        limit = int(memory * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return pickle.loads(connection.recv_bytes())


def answer(connection: Connection, rewards: list[Any]) -> None:
    """Read one call, run its reward, and answer with the call's number and the result."""
    from gdpo.rewards.scores import Failure, score_one

    number, k, completion, reference, deadline = pickle.loads(connection.recv_bytes())
    # The signal's own default, the end of the process, works inside C code too.
    signal.setitimer(signal.ITIMER_REAL, deadline + _GRACE_S)
    result = score_one(rewards[k], completion, reference)
    signal.setitimer(signal.ITIMER_REAL, 0)
    told = [result.kind, result.message] if isinstance(result, Failure) else result
    connection.send_bytes(json.dumps([number, told]).encode())


if __name__ == "__main__":
    main()
