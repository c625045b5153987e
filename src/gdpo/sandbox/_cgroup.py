"""A bound on threads for root, whom RLIMIT_NPROC does not bind."""

import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

_PARENTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
_TRIES = 40
_PAUSE = 0.05
_numbers = count()


def new_group(most: int) -> Path | None:
    """A control group in which at most so many threads run; None where none can be made."""
    if os.geteuid():
        return None
    for parent in _PARENTS:
        _sweep(parent)
        group = parent / f"gdpo-{os.getpid()}-{next(_numbers)}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "pids.max").write_text(str(most))
        except OSError:
            remove_group(group)
            continue
        return group
    return None


def in_group(group: Path, command: tuple[str, ...]) -> tuple[str, ...]:
    """A command that enters the group, and becomes the command given."""
    return ("/bin/sh", "-c", _ENTER, "sh", str(group), *command)


def remove_group(group: Path) -> None:
    """Remove a group as soon as the last of its processes is gone."""
    for _ in range(_TRIES):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_PAUSE)


def _sweep(parent: Path) -> None:
    """Remove the empty groups of processes that were killed."""
    for group in parent.glob("gdpo-*-*"):
        if not Path("/proc", group.name.split("-")[1]).exists():
            with suppress(OSError):
                group.rmdir()
