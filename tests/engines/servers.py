"""Runs a server while a test needs it."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def serving(command, health, log, variables):
    """Start a server, wait until it is healthy, and end it afterwards.

    Args:
        command: Command line of the server.
        health: Address that answers with 200 once the server is ready.
        log: File for its output.
        variables: Environment variables, in addition to this process's.
    """
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while not answers(health):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have failed at its start
            os.killpg(server.pid, signal.SIGTERM)  # a server starts processes of its own
        server.wait(timeout=60)


def answers(address):
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False
