"""Repeats the experiment on SmolLM2 over warm starts, with grpo and gdpo.

    python -m benchmarks.pretrained.warm_starts run FOLDER [--warm-starts 6] [--jobs 6]
    python -m benchmarks.pretrained.warm_starts collect FOLDER
    python -m benchmarks.pretrained.warm_starts tables

research/preregistration/2026-11-27-smollm2.md registers it. Each warm start has its own problems,
its own policy, and one run per estimator, with the same problems and training seed.

- run: prepares and trains each warm start in processes of their own, at most --jobs warm starts at
  once, on the GPU if there is one, and collects.
- collect: writes the mean rewards of all steps to research/smollm2_warm_starts.json, also of runs
  that have not ended.
- tables: prints the results from that file.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import transformers
import trl
from benchmarks.pretrained._commands import gdpo
from benchmarks.pretrained._prepare import prepare
from benchmarks.pretrained.arithmetic import ARITHMETIC

from gdpo.lab.experiments.reading import read_experiment
from gdpo.lab.experiments.statistics import paired_difference
from gdpo.lab.experiments.threshold import REACHED, WINDOW, first_reached
from gdpo.lab.recipes.models import convert_smollm2

RECORD = Path(__file__).parents[2] / "research" / "smollm2_warm_starts.json"
ESTIMATORS = ("grpo", "gdpo")
STEPS = 60
RANGES = {reward.name: (reward.low, reward.high) for reward in ARITHMETIC.rewards}


def one(folder, start):
    """Prepare and train one warm start."""
    prepare(folder, start)
    gdpo(
        *("compare", folder / "recipe.yaml", "--estimators", ",".join(ESTIMATORS)),
        *("--seeds", "1", "--jobs", len(ESTIMATORS), "--output", folder / "compare"),
        *("--set", f"trainer.save_steps={STEPS}"),  # checkpoints of all runs need 60 GB
    )


def run_all(folder, count, jobs):
    """Run each warm start in a process of its own. Return the numbers of those that failed."""

    def apart(start):
        command = [sys.executable, "-m", "benchmarks.pretrained.warm_starts", "one", str(folder)]
        log = folder / f"warm-start-{start}.log"
        with log.open("w") as out:
            done = subprocess.run([*command, "--warm-starts", str(start)], stdout=out, stderr=out)
        return done.returncode

    folder.mkdir(parents=True, exist_ok=True)
    convert_smollm2()  # once, before the processes ask for it
    starts = range(1, count + 1)
    with ThreadPoolExecutor(jobs) as pool:
        codes = dict(zip(starts, pool.map(apart, starts), strict=True))
    return [start for start, code in codes.items() if code]


def collect(folder, record=RECORD):
    """Write the mean rewards of every run to the record."""
    runs = [
        {"warm_start": int(compared.parent.name.removeprefix("warm-")), "estimator": run.label}
        | {"state": run.state, "means": {name: list(run.means[name]) for name in RANGES}}
        for compared in sorted(folder.glob("warm-*/compare"))
        for run in read_experiment(compared).runs
    ]
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = {each.__name__: each.__version__ for each in (torch, transformers, trl)}
    record.write_text(json.dumps({"device": where, **versions, "runs": runs}) + "\n")


def steps_to(curve, reward):
    """Return the first step at which the mean over 5 steps reaches 80 % of the range, or 60."""
    low, high = RANGES[reward]
    return float(
        first_reached(np.array(curve), low + REACHED * (high - low), window=WINDOW) or STEPS
    )


MEASURES = {
    "steps to 80 % of tags": lambda means: steps_to(means["tags"], "tags"),
    "tags, mean of all steps": lambda means: np.mean(means["tags"]),
    "correctness, mean of all steps": lambda means: np.mean(means["correctness"]),
    "equation, mean of all steps": lambda means: np.mean(means["equation"]),
    "tags, mean of the last 6 steps": lambda means: np.mean(means["tags"][-6:]),
    "correctness, mean of the last 6 steps": lambda means: np.mean(means["correctness"][-6:]),
}


def tables(record=RECORD):
    """Print each measure per warm start, and the paired difference with its interval."""
    found = json.loads(record.read_text())
    print(", ".join(f"{name} {value}" for name, value in found.items() if name != "runs") + "\n")
    of = {(run["warm_start"], run["estimator"]): run for run in found["runs"]}
    starts = sorted({start for start, _ in of})
    whole = [
        start
        for start in starts
        if all(len(of[start, each]["means"]["tags"]) == STEPS for each in ESTIMATORS)
    ]
    print(f"{len(whole)} of {len(starts)} warm starts have all {STEPS} steps.\n")
    print(f"| measure | {' | '.join(ESTIMATORS)} | gdpo - grpo |\n|{'---|' * 4}")
    for name, measure in MEASURES.items():
        values = {
            each: np.array([measure(of[start, each]["means"]) for start in whole])
            for each in ESTIMATORS
        }
        cells = [", ".join(f"{value:.3g}" for value in values[each]) for each in ESTIMATORS]
        found = paired_difference(values["gdpo"], values["grpo"])
        shown = f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
        print(f"| {name} | {' | '.join(cells)} | {shown} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("run", "collect", "tables", "one"))
    parser.add_argument("folder", nargs="?", type=Path, help="folder for policies and runs")
    parser.add_argument("--warm-starts", type=int, default=6, help="number of warm starts")
    parser.add_argument("--jobs", type=int, default=6, help="warm starts at once")
    parser.add_argument("--record", type=Path, default=RECORD, help="file for the results")
    options = parser.parse_args()
    if options.part == "tables":
        tables(options.record)
        return
    if options.folder is None:
        parser.error(f"{options.part} needs FOLDER")
    folder = options.folder.absolute()
    if options.part == "one":
        one(folder / f"warm-{options.warm_starts}", options.warm_starts)
        return
    failed = run_all(folder, options.warm_starts, options.jobs) if options.part == "run" else []
    collect(folder, options.record)
    if failed:
        sys.exit(f"warm starts that failed: {failed}. See {folder}/warm-start-N.log")


if __name__ == "__main__":
    main()
