"""Runs a command under sandlock as a separate script, and kills it on SIGTERM.

sandlock's supervisor uses threads, which must not run in a trainer. The argument is JSON with the
keys `command`, `environment`, `readable`, `writable` and `denied`.
"""

import ctypes
import json
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
_PAUSE = 0.05
"""Maximum delay before a signal is handled, in seconds."""


def main() -> None:
    """Run the command, with this process's standard streams, until it exits or SIGTERM arrives."""
    from sandlock import Sandbox  # pyright: ignore[reportMissingImports]  optional, never installed

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
    # Python handles signals in this thread, so a different thread waits for the process.
    waiter = threading.Thread(target=process.wait)
    waiter.start()
    while waiter.is_alive():
        waiter.join(timeout=_PAUSE)


if __name__ == "__main__":
    main()
