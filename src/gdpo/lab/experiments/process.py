"""Runs `gdpo train` in separate processes, and stops, resumes and describes them."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from gdpo._files import read_json, write_whole
from gdpo._text import counted
from gdpo.errors import INTERRUPTED
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.runs.directory import RunDirectory
from gdpo.lab.runs.lock import is_held, is_locked

NOTE = ".process"
"""Suffix of the file that records which process trains a run."""


Say: TypeAlias = Callable[[str], None]
"""Shows a message."""

Update: TypeAlias = Callable[[], None]
"""Is called repeatedly, to update a display."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """Describes a training run that another process started."""

    run: RunDirectory
    """The run directory, which may not exist yet."""
    note: Path
    pid: int | None
    """Process id. None: no comparison started the process."""
    device: str | None
    """Device of the process, as in CUDA_VISIBLE_DEVICES. None: unknown."""

    @property
    def is_foreign(self) -> bool:
        """Whether no comparison started the process, so that no comparison stops it."""
        return self.pid is None

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return is_held(self.note) or is_locked(self.run.path)

    def send(self, number: int) -> None:
        """Send the process a signal, if a comparison started it and it is running."""
        if self.pid is not None and is_held(self.note):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def find_orphan(run: RunDirectory, note: Path) -> Orphan | None:
    """Return the run as an orphan if another process is training it, otherwise None."""
    if is_held(note):
        try:
            process: dict[str, Any] = read_json(note)
        except ValueError:  # the process was killed before the note was complete
            process = {}
        return Orphan(run, note, process.get("pid"), process.get("device"))
    return Orphan(run, note, None, None) if is_locked(run.path) else None


def wait_for_end(note: Path, update: Update) -> None:
    """Wait until the process of a finished run has exited, then remove its `.process` file."""
    while is_held(note):
        update()
        time.sleep(_POLL_S)
    note.unlink(missing_ok=True)


def forget_ended(logs: Path) -> None:
    """Remove the `.process` files of processes that ended without a running comparison."""
    for note in logs.glob(f"*{NOTE}"):
        if not is_held(note):
            note.unlink()


@contextmanager
def noted(note: Path, device: str) -> Generator[tuple[int, Callable[[int], None]]]:
    """Record which process trains a run. Start the process inside this context.

    Yield the file descriptor that the process must inherit, and a function that records its id.
    """
    with note.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

        def write(pid: int) -> None:
            # Write to the locked file: a file that replaced it would not be locked.
            file.write(json.dumps({"pid": pid, "device": device}))
            file.flush()

        yield file.fileno(), write


_COMMAND = (sys.executable, "-m", "gdpo", "train", "--no-report")

_RESUME = ("--resume", "--from-scratch")
"""Arguments that resume a run."""

_POLL_S = 0.1

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that stop a run on purpose. Any other signal means that the run failed, for example
SIGSEGV, or SIGKILL if memory runs out."""

_LOG_LINES = 15
"""Number of last output lines to show for a failed run."""

_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8",
}
"""Environment of each run: one thread, because parallel runs with more threads wait for each other
at every operation."""


@dataclass(frozen=True, slots=True)
class Training:
    """Represents a training run in a child process."""

    log: Path
    """File with the output of the process."""
    process: "subprocess.Popen[bytes]"
    is_foreign: ClassVar[bool] = False

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Send the process a signal, unless it has exited."""
        self.process.send_signal(number)

    @property
    def failed(self) -> bool:
        """Whether the process exited with an error."""
        return self.process.poll() not in (None, 0)

    @property
    def interrupted(self) -> bool:
        """Whether the process was stopped from outside, so that the run can be resumed."""
        code = self.process.poll()
        return code is not None and (-code in _STOPS or code == INTERRUPTED)

    def why(self) -> str:
        """Return the last output lines of a failed run, and the signal that killed it, if any."""
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        shown = "\n".join(lines[-_LOG_LINES:]) or "(it printed nothing)"
        code = self.process.returncode
        text = f"exit code {code}; the end of {self.log}:\n{shown}"
        if code >= 0:
            return text
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal has no name
            name = f"signal {-code}"
        guess = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"{text}\nkilled by {name}{guess}"


def start_training(
    recipe: Recipe,
    logs: Path,
    *,
    resume: bool,
    environment: Mapping[str, str],
    inherited: Sequence[int],
) -> Training:
    """Start `gdpo train` on a recipe in a new process, without a report.

    The recipe and log files in `logs` are named after the run. The process keeps the `inherited`
    file descriptors of locks open.
    """
    file, log = logs / f"{recipe.name}.yaml", logs / f"{recipe.name}.log"
    write_whole(file, recipe.to_yaml())
    with log.open("ab" if resume else "wb") as output:
        process = subprocess.Popen(
            [*_COMMAND, str(file), *(_RESUME if resume else ())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT, **environment},
            pass_fds=inherited,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops all runs
        )
    return Training(log, process)


def stop_trainings(
    trainings: Sequence[Training | Orphan],
    say: Say,
    update: Update = lambda: None,
) -> None:
    """Make running processes save and exit, and wait for them. Ctrl-C while waiting kills them.

    `say` shows a message before waiting, and `update` is called meanwhile.
    """
    running = [training for training in trainings if training.running]
    with _signals_kept() as kept:
        for training in running:
            training.send(signal.SIGTERM)
        if running:
            runs = counted(len(running), "run")
            message = f"stopping: waiting for {runs} to save and exit; Ctrl-C again kills them"
            _print_if_possible(lambda: say(message))
        while running := [training for training in running if training.running]:
            if signal.SIGINT in kept:
                for training in running:
                    training.send(signal.SIGKILL)
            _print_if_possible(update)
            time.sleep(_POLL_S)


def _print_if_possible(to_print: Callable[[], None]) -> None:
    """Print, but ignore a closed terminal or pipe: the runs must be stopped in any case."""
    with suppress(OSError, SystemExit, KeyboardInterrupt):  # rich exits if a pipe is closed
        to_print()


@contextmanager
def signals_held() -> Generator[Callable[[], None]]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the yielded function is called, which raises them."""

    def unwind() -> None:
        for number in kept:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            sys.exit(128 + number)

    with _signals_kept() as kept:
        yield unwind


@contextmanager
def _signals_kept() -> Generator[list[int]]:
    """Collect the signals that stop a run. Yield no signal if this is not the main thread."""
    kept: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield kept
        return
    # Signals that are ignored (`nohup`) stay ignored.
    caught = [each for each in _STOPS if signal.getsignal(each) is not signal.SIG_IGN]
    before = [signal.signal(each, lambda number, _frame: kept.append(number)) for each in caught]
    try:
        yield kept
    finally:
        for each, former in zip(caught, before, strict=True):
            signal.signal(each, former)
