"""Finds the trainings of a comparison that go on without the process that started them.

Each training of a comparison holds a note locked for as long as it lives: its process and device.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo.runs.directory import RunDirectory
from gdpo.runs.lock import is_held, is_locked

_POLL_S = 0.1

NOTE = ".process"
"""How the name of a note ends."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A training that another process has started."""

    run: RunDirectory
    """Its files, which need not be there yet."""
    note: Path
    pid: int | None
    """None: no comparison started it, so that none stops it."""
    device: str | None
    """None: where it trains is not known."""

    @property
    def name(self) -> str:
        """Of the run."""
        return self.run.path.name

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return is_held(self.note) or is_locked(self.run.path)

    def send(self, number: int) -> None:
        """Send it a signal, if it is a comparison's and still there."""
        if self.pid is not None and is_held(self.note):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def find_orphan(run: RunDirectory, note: Path) -> Orphan | None:
    """The process that trains a run at this moment, where this one has not started it."""
    if is_held(note):
        told = _read(note)
        return Orphan(run, note, told.get("pid"), told.get("device"))
    return Orphan(run, note, None, None) if is_locked(run.path) else None


def wait_for_end(note: Path, told: Callable[[], None]) -> None:
    """Wait for a process that has finished its run to end, too, and remove its note."""
    while is_held(note):
        told()
        time.sleep(_POLL_S)
    note.unlink(missing_ok=True)


def forget_ended(logs: Path) -> None:
    """Remove the notes of processes that have ended, with nobody there to do it."""
    for note in logs.glob(f"*{NOTE}"):
        if not is_held(note):
            note.unlink()


@contextmanager
def noted(note: Path, device: str) -> Generator[tuple[int, Callable[[int], None]]]:
    """Make a note of a training that is started in this context.

    Yields:
        The descriptor that the process inherits, and what to call with its process id.
    """
    with note.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

        def write(pid: int) -> None:
            # Into the file that is locked: a new one in its place would not be.
            file.write(json.dumps({"pid": pid, "device": device}))
            file.flush()

        yield file.fileno(), write


def _read(note: Path) -> dict[str, Any]:
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except ValueError:  # its process was killed before it could be written
        return {}
