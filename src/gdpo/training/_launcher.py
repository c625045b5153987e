"""The launcher of a training (`accelerate launch`, torchrun): its processes, and its end."""

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

_POLL_S = 1.0
_INIT = 1
"""The process that takes over those whose parent has died."""

_GONE = "the launcher of this training was killed before its processes had found each other"


def processes() -> int:
    """Return how many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def ending_with_the_launcher() -> Generator[None]:
    """End this process where the launcher is killed within the block.

    Processes that train together find each other through their launcher. Where it is dead torch
    waits for it for minutes, and hears no signal meanwhile.
    """
    if processes() == 1:
        yield
        return
    found, launcher = threading.Event(), os.getppid()

    def watch() -> None:
        while not found.wait(_POLL_S):
            parent = os.getppid()
            if parent != launcher or (parent == _INIT and not _answers()):
                os.write(2, f"\ngdpo: {_GONE}\n".encode())
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        found.set()


def _answers() -> bool:
    """Whether the launcher can be reached; a launcher may be process 1 of a container."""
    address = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
    try:
        socket.create_connection(address, timeout=_POLL_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:  # it may only be slow
        return True
    return True
