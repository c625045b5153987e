"""One process trains a run: a lock that lasts as long as the process, whatever becomes of it."""

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
    """Keep other processes out of a folder, and remove what a killed one half wrote.

    Args:
        folder: Made where it is missing.
        doing: What another process does there, as a message has it.
        left_overs: Patterns of what a process leaves that is killed while it writes.

    Raises:
        ConfigError: Another process is there, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    lock(folder, doing=doing)
    try:
        for file in [file for pattern in left_overs for file in folder.glob(pattern)]:
            file.unlink()
        yield
    finally:
        unlock(folder)


def lock(folder: Path, *, doing: str = "trains in") -> None:
    """Keep other processes from training what lies in a folder, until `unlock`.

    Raises:
        ConfigError: Another process does, or the folder cannot be written to.
    """
    path = folder.absolute()
    try:
        file = (path / _FILE).open("ab")
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(
            f"another process {doing} {folder} at this moment: wait for it, or stop it first"
        ) from error
    _held[path] = file


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{folder} cannot be written to: {error.strerror}. Make it writable, or name another "
        "folder, or a copy"
    )


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
