"""A run in a process of its own: `gdpo train`, its output in a file, and what became of it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo.training import Recipe, RunDirectory

_COMMAND = (sys.executable, "-m", "gdpo", "train", "--no-report")

_GRACE_S = 20.0
"""How long a run may take to finish its step and save, once it is told to stop."""

_INTERRUPTED = 130
"""Exit code of `gdpo train` after Ctrl-C or SIGTERM."""

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that someone meant. Others (SIGKILL for want of memory, SIGSEGV) are how a run fails."""

_LOG_LINES = 15
"""Lines of a failed run's output that are shown."""

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
        """The end of what a failed training printed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        shown = "\n".join(lines[-_LOG_LINES:]) or "(it printed nothing)"
        return f"exit code {self.process.returncode}; the end of {self.log}:\n{shown}"


def start_training(
    recipe: Recipe, logs: Path, *, resume: bool = False, environment: Mapping[str, str] = {}
) -> Training:
    """Start `gdpo train` on a recipe, without its page: runs side by side have one together.

    Args:
        recipe: What is trained.
        logs: Folder where the recipe and the output are written, named after the run.
        resume: Go on with the run that is there.
        environment: Variables of the process, beside one thread for each library.
    """
    logs.mkdir(parents=True, exist_ok=True)
    file, log = logs / f"{recipe.name}.yaml", logs / f"{recipe.name}.log"
    file.write_text(recipe.to_yaml(), encoding="utf-8")
    with log.open("ab" if resume else "wb") as output:
        process = subprocess.Popen(
            [*_COMMAND, str(file), *(["--resume"] if resume else [])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT, **environment},
            start_new_session=True,  # a Ctrl-C reaches this process only, which then stops them all
        )
    return Training(recipe, log, process)


def stop_trainings(trainings: Sequence[Training]) -> None:
    """Have those that still run finish their step and save; those that take too long are killed."""
    for training in trainings:
        if training.running:
            training.process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for training in trainings:
        try:
            training.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            training.process.kill()
            training.process.wait()


@contextmanager
def terminable() -> Generator[None]:
    """SIGTERM, and SIGHUP of a closed terminal, unwind the stack as Ctrl-C does.

    So no training is left behind. What is ignored (`nohup`) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    both = (signal.SIGTERM, signal.SIGHUP)
    caught = [each for each in both if signal.getsignal(each) is not signal.SIG_IGN]
    before = [signal.signal(s, lambda number, _frame: sys.exit(128 + number)) for s in caught]
    try:
        yield
    finally:
        for each, handler in zip(caught, before, strict=True):
            signal.signal(each, handler)
