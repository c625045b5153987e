"""Runs the experiment on a pretrained model that research/preregistration/2026-11-26.md registers.

    python -m benchmarks.pretrained FOLDER [PART ...] [--seeds 5] [--jobs 2]

- prepare: writes the problems and the recipe, warm-starts SmolLM2-135M-Instruct on 960 worked
  problems, which differ from all others, and keeps for training the problems that it solves in
  2 to 6 of 8 samples. Takes 20 minutes on a core.
- train: `gdpo compare` with four estimators. A run of 60 steps takes about 13 minutes on a core.
- evaluate: `gdpo evaluate` of the policy and of every run, on held-out problems, on kinds of
  problems that were not trained, and on GSM8K.
- tables: prints the results and the decisions on the hypotheses.

Without a part, all of them run in this order. Rerun the command to resume; an interrupted warm
start begins again. Needs 25 GB of disk, the extras `train`, `smollm2` and `plots`, and GSM8K in
$GDPO_DATA or on the Hub.
"""

import argparse
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from benchmarks.pretrained._commands import evaluate, evaluate_gsm8k, gdpo, gsm8k_rows
from benchmarks.pretrained._picture import draw
from benchmarks.pretrained._prepare import prepare
from benchmarks.pretrained._tables import ESTIMATORS, SEEDS, SETS, tables

from gdpo.errors import FAILED, GdpoError
from gdpo.lab.experiments.reading import OPEN, read_experiment

PARTS = ("prepare", "train", "evaluate", "tables")


def train(folder, seeds, jobs):
    """Train the missing runs, seed by seed. Failed runs count as ended.

    The checkpoints of ended runs are deleted, because those of 20 runs need 64 GB.
    """
    for count in range(1, seeds + 1):
        gdpo(
            *("compare", folder / "recipe.yaml", "--estimators", ",".join(ESTIMATORS)),
            *("--seeds", count, "--jobs", jobs, "--output", folder / "compare"),
            allowed=(0, FAILED),
        )
        for run in ended(folder).runs:
            shutil.rmtree(run.path / "checkpoints", ignore_errors=True)


def ended(folder):
    """Return the experiment, or exit with a message if a run has not ended or lost a step."""
    experiment = read_experiment(folder / "compare")
    still_open = [run.path.name for run in experiment.runs if run.state in OPEN]
    if still_open:
        sys.exit(f"runs that have not ended: {', '.join(still_open)}")
    for run in experiment.runs:
        counts = [np.count_nonzero(~np.isnan(curve)) for curve in run.means.values()]
        steps, wanted = min(counts, default=0), experiment.total_steps
        if run.state == "finished" and steps != wanted:
            sys.exit(
                f"{run.path}/metrics.jsonl has {steps} of {wanted} steps: restore the file, or "
                "delete the run and train it again"
            )
    return experiment


def evaluate_all(folder, jobs):
    """Evaluate the policy and every finished run on every set of problems."""
    runs = ended(folder).runs
    models = {"policy": folder / "policy"} | {
        run.path.name: run.path for run in runs if run.state == "finished"
    }

    def one(job):
        (name, model), problems = job
        output = folder / "evaluations" / name / problems
        if (output / "results.json").exists():
            return
        if problems == "gsm8k":
            evaluate_gsm8k(model, output)
        else:
            evaluate(model, folder / f"{problems}.jsonl", 4, output)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, product(models.items(), SETS)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder for problems, policy, runs and results")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}. Default: all"
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="seeds per estimator. Default: %(default)s"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="processes at once. Default: %(default)s"
    )
    parser.add_argument("--picture", type=Path, help="file for a picture of the curves")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
    if min(options.seeds, options.jobs) < 1:
        parser.error("--seeds and --jobs must be at least 1")
    try:
        run(options.folder.absolute(), options.parts or PARTS, options)
    except GdpoError as error:
        sys.exit(str(error))


def run(folder, parts, options):
    if "evaluate" in parts:
        gsm8k_rows()
    if "prepare" in parts:
        prepare(folder)
    if "train" in parts:
        train(folder, options.seeds, options.jobs)
    if "evaluate" in parts:
        evaluate_all(folder, options.jobs)
    if "tables" in parts:
        tables(folder, ended(folder))
    if options.picture:
        draw(options.picture, ended(folder))


if __name__ == "__main__":
    main()
