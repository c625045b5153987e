"""Starts the processes to interrupt, as forks of this process or as new processes."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

HOOK = Path(__file__).parent / "hook"


@dataclass(frozen=True, slots=True)
class Kill:
    """Describes a kill at the n-th file operation under a folder."""

    at: int
    under: Path
    claim: Path


@dataclass(slots=True)
class Process:
    """One call of a command, the leader of a session of its own."""

    pid: int
    popen: "subprocess.Popen[bytes] | None" = None
    code: int | None = None

    def poll(self):
        """Its exit code, negative for a signal; None while it runs."""
        if self.popen is not None:
            self.code = self.popen.poll()
        elif self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, seconds):
        """Its exit code; None where it has not ended by then."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        return self.code

    def send(self, number, *, group=False):
        """Send a signal to it, or, as a terminal does, to its whole group."""
        if self.poll() is None:
            (os.killpg if group else os.kill)(self.pid, number)


def environment(code, trial, kill):
    found = {
        **os.environ,
        "SWITCH": str(trial / "switch"),
        "TRIAL": str(trial),
        "PYTHONPATH": f"{HOOK}:{code}",
    }
    if kill is not None:
        found |= {"KILL_AT": str(kill.at), "KILL_UNDER": str(kill.under)}
        found["KILL_CLAIM"] = str(kill.claim)
    return found


def spawn(arguments, code, trial, log, kill=None):
    """Start a command line as it would be typed."""
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(code, trial, kill),
            start_new_session=True,
        )
    return Process(popen.pid, popen)


def fork(arguments, code, trial, log, kill=None, count=None):
    """Run `gdpo` in a fork; `count` is where it writes how many file operations there were."""
    sys.stdout.flush()
    if pid := os.fork():
        return Process(pid)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT), (2, None)):
        target = 1 if mode is None else os.open(os.devnull if number == 0 else log, mode, 0o644)
        os.dup2(target, number)
    os.environ.update(environment(code, trial, None))
    sys.path[:0] = [str(code), str(HOOK)]
    os._exit(_run(arguments, trial, kill, count))


def _run(arguments, trial, kill, count):
    import sitecustomize as hook  # ours, by the path above

    from gdpo.cli import main

    hook.install(kill.at if kill else -1, str(trial), str(kill.claim) if kill else "")
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    if count is not None:
        count.write_text(str(hook.count))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def alive(trial, sessions):
    """Command lines of processes that a trial has left behind."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("TRIAL") == str(trial)
            ours = ours or os.getsid(process.pid) in sessions
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):  # it has ended meanwhile, or is not ours to look at
            continue
    return found
