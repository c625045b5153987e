"""Runs the commands of gdpo that the experiment consists of."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

TASK = "benchmarks.pretrained.arithmetic:ARITHMETIC"


def gdpo(*arguments, allowed=(0,)):
    """Run the command gdpo in a process of its own, with one thread.

    The command receives Ctrl-C too. It then saves its work, and this function waits for it.

    Raises:
        SystemExit: If the command ends with an exit code that is not allowed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "gdpo", *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None:
        with suppress(KeyboardInterrupt):
            process.wait()
    if process.returncode not in allowed:
        sys.exit(process.returncode)


def evaluate(model, rows, samples, output):
    """Evaluate a model on problems, with samples at temperature 1, as in training."""
    gdpo(
        *("evaluate", model, "--benchmarks", TASK, "--data", f"{TASK}={rows}"),
        *("--samples", samples, "--temperature", "1", "--max-tokens", "40", "--at-once", "256"),
        *("--output", output),
    )


def gsm8k_rows():
    """Return the file with GSM8K's training split in $GDPO_DATA, or None if that is not set."""
    if "GDPO_DATA" not in os.environ:
        return None
    file = Path(os.environ["GDPO_DATA"], "gsm8k", "train.jsonl.gz")
    if not file.is_file():
        sys.exit(f"{file} does not exist: correct GDPO_DATA, or unset it to use the Hub")
    return file


def evaluate_gsm8k(model, output):
    """Evaluate a model on the first 100 problems of GSM8K, with greedy decoding.

    They are those of the training split in $GDPO_DATA, or those of the test split on the Hub.
    """
    rows = gsm8k_rows()
    gdpo(
        *("evaluate", model, "--benchmarks", "gsm8k", "--rows", "100", "--max-tokens", "160"),
        *(("--data", f"gsm8k={rows}") if rows else ()),
        *("--at-once", "128", "--output", output),
    )
