"""One process trains a run: a lock that lasts as long as the process, whatever becomes of it."""

import fcntl
from pathlib import Path
from typing import IO

from gdpo.errors import ConfigError

_FILE = ".lock"

_held: dict[Path, IO[bytes]] = {}


def lock(folder: Path) -> None:
    """Keep other processes from training what lies in a folder, until `unlock`.

    Raises:
        ConfigError: Another process does.
    """
    path = folder.absolute()
    try:
        file = (path / _FILE).open("ab")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written to: {error.strerror}. Make it writable, or use a copy"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(
            f"another process trains in {folder} at this moment: wait for it, or stop it first"
        ) from error
    _held[path] = file


def lock_descriptor(folder: Path) -> int:
    """Of the lock that this process has: a process that inherits it holds the lock as well."""
    return _held[folder.absolute()].fileno()


def unlock(folder: Path) -> None:
    """Let others in again; nothing where this process has no lock."""
    if (file := _held.pop(folder.absolute(), None)) is not None:
        file.close()


def is_locked(folder: Path) -> bool:
    """Whether a process, this one included, trains what lies in a folder."""
    return folder.absolute() in _held or is_held(folder / _FILE)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
