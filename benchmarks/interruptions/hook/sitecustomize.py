"""Kills its process at the n-th file operation in a folder. Python imports it when it starts.

`KILL_AT`, `KILL_UNDER` and `KILL_CLAIM` say at which one, in which folder, and the file that the
one process makes that is killed, so that of several processes with these variables only one is.
"""

import os
import signal
import sys

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}

count = 0
"""File operations so far."""


def install(at: int, under: str, claim: str) -> None:
    """Count the operations that change something in a folder, and kill at one of them."""

    def hook(event: str, arguments: tuple) -> None:
        global count
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writes or event in _CHANGES) or under not in str(arguments[0]):
            return
        count += 1
        if count == at:
            try:
                os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if "KILL_AT" in os.environ:
    install(int(os.environ["KILL_AT"]), os.environ["KILL_UNDER"], os.environ["KILL_CLAIM"])
