"""Runs the commands of gdpo that the experiment consists of."""

import os
import subprocess
import sys

TASK = "benchmarks.pretrained.arithmetic:ARITHMETIC"


def gdpo(*arguments, check=True):
    """Run the command gdpo in a process of its own, with one thread.

    Raises:
        CalledProcessError: If the command fails and `check` is true.
    """
    subprocess.run(
        [sys.executable, "-m", "gdpo", *map(str, arguments)],
        check=check,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def evaluate(model, rows, samples, output):
    """Evaluate a model on problems, with samples at temperature 1, as in training."""
    gdpo(
        *("evaluate", model, "--benchmarks", TASK, "--data", f"{TASK}={rows}"),
        *("--samples", samples, "--temperature", "1", "--max-tokens", "40", "--at-once", "256"),
        *("--output", output),
    )


def evaluate_gsm8k(model, output):
    """Evaluate a model on the first 100 problems of GSM8K, with greedy decoding.

    If $GDPO_DATA is set, the problems are those of gsm8k/train.jsonl.gz in this folder (GSM8K has
    its training split there). Otherwise, they are those of the test split on the Hub.
    """
    data = os.environ.get("GDPO_DATA")
    gdpo(
        *("evaluate", model, "--benchmarks", "gsm8k", "--rows", "100", "--max-tokens", "160"),
        *(("--data", f"gsm8k={data}/gsm8k/train.jsonl.gz") if data else ()),
        *("--at-once", "128", "--output", output),
    )
