"""Prints the results of the experiment: the decisions, the evaluations, and what else is seen."""

import json
from itertools import chain

import numpy as np
from benchmarks.pretrained._hypotheses import MEASURES, Times, decide, verdict

from gdpo.lab.evaluation.evaluation import read_results
from gdpo.lab.experiments.statistics import paired_difference
from gdpo.lab.experiments.threshold import REACHED, WINDOW, final, first_reached
from gdpo.lab.runs.directory import RunDirectory

ESTIMATORS = ("grpo", "gdpo", "mo_grpo", "dara_symmetric")
RARE = "tags"

SETS = ("held_out", "other_kinds", "gsm8k")
"""Sets of problems of the evaluation."""

SEEDS = 5
"""The registered decisions use seeds 1 to 5."""

MAX_GRAD_NORM = 1.0
"""TRL's default, which the recipe keeps: a gradient with a larger norm is clipped to this norm."""


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
    result, found = _result(folder, name, problems), {}
    for measure, estimate in result.estimates.items() if result else ():
        bounds = np.array([estimate.mean, estimate.low, estimate.high])
        ours = measure == "correct" and problems != "gsm8k"
        found[measure] = _as_share(bounds) if ours else bounds
    return found


def _as_share(correctness):
    """Return the share of right responses from their mean correctness, -3 to 3."""
    return (np.asarray(correctness) + 3) / 6


def _result(folder, name, problems):
    """Return the evaluation of a model on a set of problems, or None if it was not evaluated."""
    evaluation = folder / "evaluations" / name / problems
    if not (evaluation / "results.json").exists():
        return None
    (result,) = read_results(evaluation)
    return result


def tables(folder, experiment):
    """Print states, cost, clipping and rewards of the runs, the evaluations and the decisions."""
    runs = {label: experiment.runs_of(label) for label in ESTIMATORS}
    for label, own in runs.items():
        states = [f"{run.seed}: {run.state} {run.why}".strip() for run in own]
        print(f"{label}: {'; '.join(states)}")
    _print_cost_and_clipping(runs)
    _print_rewards(runs, experiment.rewards, experiment.total_steps)
    for problems in SETS:
        _print_shares(folder, runs, problems)
    _print_over_problems(folder, runs)
    (rare,) = (reward for reward in experiment.rewards if reward.name == RARE)
    for seeds in sorted({min(SEEDS, len(experiment.seeds)), len(experiment.seeds)}):
        first = {label: own[:seeds] for label, own in runs.items()}
        when = {label: times(own, rare, experiment.total_steps) for label, own in first.items()}
        held_out = {label: _by_seed(folder, own, "held_out") for label, own in first.items()}
        _print_decisions(first, decide(when, held_out))


def _print_cost_and_clipping(runs):
    """Print the time of the steps, how often gradients are clipped, and when two runs part."""
    rows = {
        label: [
            [row for row in RunDirectory(run.path).read_metrics() if "loss" in row] for run in own
        ]
        for label, own in runs.items()
    }
    every = [steps for own in rows.values() for steps in own]
    seconds = _seconds(every, slice(None))
    print(
        f"{len(seconds)} steps, median {np.median(seconds):.1f} s (steps 1 to 5: "
        f"{np.median(_seconds(every, slice(5))):.1f} s, last 20 steps: "
        f"{np.median(_seconds(every, slice(-20, None))):.1f} s), {sum(seconds) / 3600:.1f} process "
        "hours"
    )
    for label, own in rows.items():
        free = [
            [row["step"] for row in steps if row["grad_norm"] <= MAX_GRAD_NORM] for steps in own
        ]
        clipped = 1 - sum(map(len, free)) / sum(map(len, own))
        first = [min(steps, default="never") for steps in free]
        print(f"{label}: {clipped:.0%} of the gradients are clipped; first unclipped: {first}")
    parted = [first_difference(*pair) for pair in zip(runs["gdpo"], runs["mo_grpo"], strict=True)]
    print(f"gdpo and mo_grpo first differ in a mean reward at steps {parted}")


def _seconds(runs, part):
    return [row["step_time"] for steps in runs for row in steps[part]]


def _print_rewards(runs, rewards, total_steps):
    """Print when each reward reached 80 %, whether it ended there, and its mean over the steps."""
    columns = ("80 % first reached at step", "mean", "ended at 80 %", "mean of all steps - grpo's")
    print(f"\n| reward | estimator | {' | '.join(columns)} |\n|{'---|' * 6}")
    for reward in rewards:
        curves = {
            label: [run.means.get(reward.name, np.array([np.nan])) for run in own]
            for label, own in runs.items()
        }
        means = {
            label: np.array([np.mean(curve) for curve in own]) for label, own in curves.items()
        }
        threshold = reward.low + REACHED * (reward.high - reward.low)
        for label, own in curves.items():
            when = times(runs[label], reward, total_steps)
            reached = zip(when.steps, when.reached, strict=True)
            steps = [f"{step:.0f}" if known else "never" for step, known in reached]
            ended = sum(final(curve) >= threshold for curve in own)
            print(
                f"| {reward.name} | {label} | {', '.join(steps)} "
                f"| {when.steps.mean():.1f} | {ended} of {len(own)} "
                f"| {_shown(means[label], means['grpo'])} |"
            )


def _print_over_problems(folder, runs):
    """Print held-out correctness by kind, and minus grpo's with an interval over the problems."""
    rows = (folder / "held_out.jsonl").read_text().splitlines()
    product = np.array(["*" in json.loads(row)["problem"] for row in rows])
    names = {"before training": ["policy"]} | {
        label: [run.path.name for run in own] for label, own in runs.items()
    }
    right = {}
    for label, own in names.items():
        results = [_result(folder, name, "held_out") for name in own]
        of_models = [_as_share(each.of_problems["correct"]) for each in results if each]
        right |= {label: np.mean(of_models, axis=0)} if of_models else {}
    columns = ("sums", "products", "minus grpo (interval over problems)")
    print(f"\n| held_out | {' | '.join(columns)} |\n|{'---|' * 4}")
    for label, share in right.items():
        cells = [f"{share[~product].mean():.3f}", f"{share[product].mean():.3f}"]
        cells.append(_shown(share, right.get("grpo", share)))
        print(f"| {label} | {' | '.join(cells)} |")


def _shown(ours, theirs):
    """Return a paired difference and its interval as text. Empty: all pairs are equal."""
    found = paired_difference(ours, theirs)
    if np.isnan(found.low):
        return ""
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def first_difference(ours, theirs):
    """Return the first step at which two runs have different mean rewards, or "never"."""
    steps = min(ours.steps, theirs.steps)
    differ = [ours.means[name][:steps] != theirs.means[name][:steps] for name in ours.means]
    found = np.flatnonzero(np.any(differ, axis=0))
    return int(found[0]) + 1 if len(found) else "never"


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
    of_runs = {
        label: [found for run in own if (found := shares(folder, run.path.name, problems))]
        for label, own in runs.items()
    }
    measures = list(next(filter(None, (before, *chain(*of_runs.values()))), {}))
    print(f"\n| {problems} | {' | '.join(measures)} |\n|{'---|' * (1 + len(measures))}")
    shown = [f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in before.values()]
    print(f"| before training (interval over problems) | {' | '.join(shown)} |")
    for label, own in of_runs.items():
        cells = []
        for measure in measures:
            values = np.array([found[measure][0] for found in own])
            found_mean = paired_difference(values, np.zeros(len(values)))
            low, high = found_mean.low, found_mean.high
            shown = "" if np.isnan(low) else f" ({low:.3f} to {high:.3f})"
            cells.append(f"{found_mean.value:.3f}{shown}")
        counted = f"{len(own)} of {len(runs[label])} runs, interval over seeds"
        print(f"| {label} ({counted}) | {' | '.join(cells)} |")
