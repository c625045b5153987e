"""Locks a folder for one process. The lock is released when the process exits or is killed."""

import fcntl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gdpo.errors import ConfigError

_FILE = ".lock"

_held: dict[Path, IO[bytes]] = {}


@contextmanager
def alone(
    folder: Path, *, doing: str = "trains in", left_overs: Sequence[str] = ()
) -> Generator[None]:
    """Create and lock a folder inside the `with` block, and remove unfinished files.

    `doing` says what a process does in the folder. `left_overs` are patterns of files that a killed
    process may leave.

    Raises:
        ConfigError: If another process has the lock, or the folder is not writable.
    """
    lock(folder, doing=doing)
    try:
        for file in [file for pattern in left_overs for file in folder.glob(pattern)]:
            file.unlink()
        yield
    finally:
        unlock(folder)


def lock(folder: Path, *, doing: str = "trains in") -> None:
    """Create a folder, and lock it for this process until `unlock` is called.

    Raises:
        ConfigError: If another process has the lock, or the folder is not writable.
    """
    path = folder.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / _FILE).open("ab")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written to: {error.strerror}. Make it writable, or use another "
            "folder or a copy"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(
            f"another process {doing} {folder} at the moment. Wait until that process exits, or "
            "stop it"
        ) from error
    _held[path] = file


def lock_descriptor(folder: Path) -> int:
    """Return the lock's file descriptor. A process that inherits it shares the lock."""
    return _held[folder.absolute()].fileno()


def unlock(folder: Path) -> None:
    """Release the lock of a folder, if this process has it."""
    if (file := _held.pop(folder.absolute(), None)) is not None:
        file.close()


def is_locked(folder: Path) -> bool:
    """Return whether any process, including this one, has locked a folder."""
    return folder.absolute() in _held or is_held(folder / _FILE)


def is_held(path: Path) -> bool:
    """Return whether any process has locked a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
