"""Runs the commands of gdpo that the experiment consists of."""

import os
import subprocess
import sys
from contextlib import suppress

TASK = "benchmarks.pretrained.arithmetic:ARITHMETIC"


def gdpo(*arguments):
    """Run the command gdpo in a process of its own, with one thread.

    The command receives Ctrl-C too. It then saves its work, and this function waits for it.

    Raises:
        SystemExit: If the command fails.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "gdpo", *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None:
        with suppress(KeyboardInterrupt):
            process.wait()
    if process.returncode:
        sys.exit(process.returncode)


def evaluate(model, rows, samples, output):
    """Evaluate a model on problems, with samples at temperature 1, as in training."""
    gdpo(
        *("evaluate", model, "--benchmarks", TASK, "--data", f"{TASK}={rows}"),
        *("--samples", samples, "--temperature", "1", "--max-tokens", "40", "--at-once", "256"),
        *("--output", output),
    )
