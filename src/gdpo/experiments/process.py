"""A run in a process of its own: `gdpo train`, its output in a file, and what became of it."""

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
from types import FrameType
from typing import Any, Protocol, TypeVar

from gdpo._files import write_whole
from gdpo.recipes.recipe import Recipe
from gdpo.runs.directory import RunDirectory
from gdpo.runs.lock import is_held, is_locked

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


_COMMAND = (sys.executable, "-m", "gdpo", "train", "--no-report")

_GO_ON = ("--resume", "--from-scratch")
"""Arguments of a run that has begun."""

_POLL_S = 0.1

_INTERRUPTED = 130
"""Exit code of `gdpo train` after Ctrl-C or SIGTERM."""

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that someone meant. Others (SIGKILL for want of memory, SIGSEGV) are how a run fails."""

_LOG_LINES = 15
"""Lines of a failed run's output that are shown."""

_NAMED = 3
"""Runs that are named one by one while they are waited for."""

_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8",
}
"""One thread each: runs side by side with more would wait for each other at every operation."""


@dataclass(frozen=True, slots=True)
class Training:
    """A training that runs beside this process."""

    recipe: Recipe
    log: Path
    """What it prints."""
    process: "subprocess.Popen[bytes]"

    @property
    def name(self) -> str:
        """Of the run."""
        return self.recipe.name

    @property
    def run(self) -> RunDirectory:
        """Its files."""
        return RunDirectory(self.recipe.run_dir)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Send it a signal; nothing where it has ended."""
        self.process.send_signal(number)

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error."""
        return self.process.poll() not in (None, 0)

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped from outside, and can go on."""
        code = self.process.poll()
        return code is not None and (-code in _STOPS or code == _INTERRUPTED)

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of its steps so far."""
        return [row for row in self.run.read_metrics() if "loss" in row]

    def why(self) -> str:
        """The end of what a failed training printed, and, in the last line, what killed it."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        shown = "\n".join(lines[-_LOG_LINES:]) or "(it printed nothing)"
        code = self.process.returncode
        killed = f"\n{_killed_by(-code, len(self.rows()))}" if code < 0 else ""
        return f"exit code {code}; the end of {self.log}:\n{shown}{killed}"


class Stoppable(Protocol):
    """A training that runs, whoever started it."""

    @property
    def name(self) -> str:
        """Of the run."""
        ...

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        ...

    def send(self, number: int, /) -> None:
        """Send it a signal; nothing where it has ended."""
        ...


S = TypeVar("S", bound=Stoppable)


def start_training(
    recipe: Recipe,
    logs: Path,
    *,
    resume: bool = False,
    environment: Mapping[str, str] = {},
    inherited: Sequence[int] = (),
) -> Training:
    """Start `gdpo train` on a recipe, without its page: runs side by side have one together.

    Args:
        recipe: What is trained.
        logs: Folder where the recipe and the output are written, named after the run.
        resume: Go on with the run that is there.
        environment: Variables of the process, beside one thread for each library.
        inherited: File descriptors that the process keeps open, for the locks on them.
    """
    logs.mkdir(parents=True, exist_ok=True)
    file, log = logs / f"{recipe.name}.yaml", logs / f"{recipe.name}.log"
    write_whole(file, recipe.to_yaml())
    with log.open("ab" if resume else "wb") as output:
        process = subprocess.Popen(
            [*_COMMAND, str(file), *(_GO_ON if resume else ())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT, **environment},
            pass_fds=inherited,
            start_new_session=True,  # a Ctrl-C reaches this process only, which then stops them all
        )
    return Training(recipe, log, process)


def stop_trainings(
    trainings: Sequence[S], say: Callable[[str], None], told: Callable[[], None] = lambda: None
) -> tuple[S, ...]:
    """Have those that still run save and end, however long it takes; a Ctrl-C meanwhile kills them.

    Args:
        trainings: Those that run, or have.
        say: Called with what the user should read, if there is anything to wait for.
        told: Called while it waits.

    Returns:
        Those that were killed.
    """
    running = tuple(training for training in trainings if training.running)
    killed: tuple[S, ...] = ()
    with _signals_kept() as kept:
        for training in running:
            training.send(signal.SIGTERM)
        if running:
            _print_if_possible(lambda: say(_waiting_for([training.name for training in running])))
        while running := tuple(training for training in running if training.running):
            if signal.SIGINT in kept and not killed:
                killed = running
                for training in killed:
                    training.send(signal.SIGKILL)
            _print_if_possible(told)
            time.sleep(_POLL_S)
    return killed


def _print_if_possible(to_print: Callable[[], None]) -> None:
    """Print; where the terminal is gone, or a pipe's reader, the runs must end all the same."""
    with suppress(OSError, SystemExit, KeyboardInterrupt):  # rich exits where a pipe is closed
        to_print()


def _waiting_for(names: Sequence[str]) -> str:
    listed = " and ".join(names[:_NAMED])
    listed += f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"stopping: waiting for {listed} to save and end; Ctrl-C again kills what still runs"


def describe_ending(run: RunDirectory, *, killed: bool) -> str:
    """Say where a run that was stopped goes on, and what it lost."""
    checkpoint = run.last_checkpoint()
    saved = 0 if checkpoint is None else checkpoint.step
    done = max(saved, *(row["step"] for row in run.read_metrics() if "loss" in row), 0)
    if not killed and done == saved:
        return f"saved at step {saved}" if saved else "no step was done yet"
    goes_on = f"goes on from step {saved}" if saved else "starts again: nothing was saved"
    return f"{'killed' if killed else 'ended'} {_after(done)}, {goes_on}"


@contextmanager
def signals_held() -> Generator[Callable[[], None]]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the yielded function is called.

    Yields:
        What to call there: it raises KeyboardInterrupt or SystemExit if a signal has come.
    """

    def unwind() -> None:
        for number in kept:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            sys.exit(128 + number)

    with _signals_kept() as kept:
        yield unwind


@contextmanager
def terminable() -> Generator[None]:
    """SIGTERM, and SIGHUP of a closed terminal, unwind the stack as Ctrl-C does.

    So no training is left behind. What is ignored (`nohup`) stays ignored.
    """
    with _handled((signal.SIGTERM, signal.SIGHUP), lambda number, _frame: sys.exit(128 + number)):
        yield


@contextmanager
def _signals_kept() -> Generator[list[int]]:
    kept: list[int] = []
    with _handled(_STOPS, lambda number, _frame: kept.append(number)):
        yield kept


@contextmanager
def _handled(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Generator[None]:
    """Handle signals so while the context lasts; outside the main thread that cannot be done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
    before = [signal.signal(each, handler) for each in caught]
    try:
        yield
    finally:
        for each, former in zip(caught, before, strict=True):
            signal.signal(each, former)


def _killed_by(number: int, steps: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        name = f"signal {number}"
    guess = " (out of memory?)" if number == signal.SIGKILL else ""
    return f"killed by {name} {_after(steps)}{guess}"


def _after(steps: int) -> str:
    return f"after step {steps}" if steps else "before its first step was done"
