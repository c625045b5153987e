"""Helpers for tests of processes: the descendants of this process, and how they end."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def family(parent=None):
    """Return the living descendants of this process."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, above = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(above), []).append(int(stat.parent.name))
    found, todo = set(), [os.getpid() if parent is None else parent]
    while todo:
        more = children.get(todo.pop(), [])
        found.update(more)
        todo += more
    return found


def workers():
    """Return the processes that this process started itself."""
    return {pid for pid in family() if alive(pid) and f"PPid:\t{os.getpid()}\n" in status(pid)}


def status(pid):
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def pipes():
    """Return the pipes of this process, without its standard streams."""
    return [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_fifo() and int(fd.name) > 2]


def eventually(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def kill(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
