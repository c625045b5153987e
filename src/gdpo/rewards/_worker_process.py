"""Runs slow rewards in a worker process, one call at a time. `_pool` starts the process.

It reads calls from a socket and writes results to the same socket, so that a reward's printed
output is never mistaken for a result. It is started with `python -m gdpo.rewards._worker_process
<socket>`, so the user's script is not executed again.
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
"""Number of seconds after a deadline at which the worker exits on its own, if it has not been
killed by then."""


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    # A child process or program that a reward starts must not use this connection.
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
    from gdpo.rewards.calls import RewardFailure, score_one

    number, k, completion, reference, deadline = pickle.loads(connection.recv_bytes())
    # By default this signal ends the process, even while C code is running.
    signal.setitimer(signal.ITIMER_REAL, deadline + _GRACE_S)
    result = score_one(rewards[k], completion, reference)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sent = [result.kind, result.message] if isinstance(result, RewardFailure) else result
    connection.send_bytes(json.dumps([number, sent]).encode())


if __name__ == "__main__":
    main()
