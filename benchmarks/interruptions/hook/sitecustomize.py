"""Kills its process at the n-th file operation in a folder. Python imports it when it starts.

`KILL_AT` and `KILL_UNDER` give n and the folder. `KILL_CLAIM` is a file that the killed process
creates, so that only one of several processes with these variables is killed.
"""

import os
import signal
import sys

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}

count = 0
"""Number of file operations so far."""


def install(at: int, under: str, claim: str) -> None:
    """Count the file operations in a folder that change something, and kill at the n-th."""

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
