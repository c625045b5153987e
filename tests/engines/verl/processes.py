"""Runs a command that starts Ray and vLLM, and leaves no process and no file of theirs."""

import os
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import psutil

MARK = "GDPO_ENGINE_RUN"
"""Variable by which the processes of a run are found: each inherits it from the one before."""

LIMIT = 1500
"""Seconds after which a run is ended."""

NOTED_EVERY = 10
"""Seconds between two readings of the processes. Each takes 0.1 s of CPU time."""

SHARED = re.compile(r"/dev/shm/psm_\w+")
"""Shared memory of vLLM, which a killed process leaves behind."""


class Run:
    """Stores a command that runs, with every process that it starts. Ends them with the block.

    Args:
        command: The command and its arguments.
        folder: Its working directory.
        variables: Environment variables besides those of this process.
    """

    def __init__(self, command, folder, variables):
        self.command, self.folder, self.variables = list(map(str, command)), folder, variables
        self.mark, self.shared = uuid.uuid4().hex, set()

    def __enter__(self):
        self.files = Path(tempfile.mkdtemp(prefix="v", dir="/tmp"))  # sockets need a short path
        places = {"TMPDIR": str(self.files), "RAY_TMPDIR": str(self.files), MARK: self.mark}
        given = {**os.environ, **self.variables, **places}
        self.process = subprocess.Popen(self.command, cwd=self.folder, env=given)
        return self

    def __exit__(self, *_):
        while left := self.note():
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            time.sleep(0.2)
        self.process.wait()
        for file in self.shared:
            Path(file).unlink(missing_ok=True)
        shutil.rmtree(self.files, ignore_errors=True)

    def wait(self, condition=lambda: False):
        """Wait until a condition holds or the command ends. Return its exit code, if it ended."""
        until, noted = time.monotonic() + LIMIT, 0.0
        while self.process.poll() is None and not condition():
            now = time.monotonic()
            assert now < until, f"the run did not end in {LIMIT} s"
            if now - noted > NOTED_EVERY:
                self.note()
                noted = now
            time.sleep(1)
        return self.process.poll()

    def note(self):
        """Return the processes of this run, and note their shared memory."""
        mine = [each for each in psutil.process_iter() if environment(each).get(MARK) == self.mark]
        for process in mine:
            self.shared.update(SHARED.findall(mapped(process)))
        return mine


def environment(process):
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}


def mapped(process):
    try:
        return Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return ""
