"""Starts a command under sandlock and ends it when told to: a script, run by path.

It is a process of its own because sandlock's supervisor is a set of threads, which do not belong in
a trainer. Argument: JSON with `command`, `environment`, `readable`, `writable` and `denied`.
"""

import ctypes
import json
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
_PAUSE = 0.05
"""Seconds from a signal to its effect, at most."""


def main() -> None:
    """Run the command with this process's standard streams, until it ends or SIGTERM comes."""
    from sandlock import Sandbox  # pyright: ignore[reportMissingImports]  nothing here installs it

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    order = json.loads(sys.argv[1])
    box = Sandbox(
        fs_readable=order["readable"],
        fs_writable=order["writable"],
        fs_denied=order["denied"],
        env=order["environment"],
        clean_env=True,
    )
    process = box.popen(order["command"])
    signal.signal(signal.SIGTERM, lambda *_: process.kill())
    # Waiting in this thread would keep Python from the signal.
    waiter = threading.Thread(target=process.wait)
    waiter.start()
    while waiter.is_alive():
        waiter.join(timeout=_PAUSE)


if __name__ == "__main__":
    main()
