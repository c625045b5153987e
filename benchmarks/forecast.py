"""Measures what can be told from the first 5 steps: will a reward be learned by the end?

    python -m benchmarks.forecast NAME=PATTERN ... [--draws 10000]

A PATTERN matches the comparisons of one task, as in 'map=runs/study/map-*'. Prints the AUC of each
number that docs/preregistration/2026-11-26.md registers: per task, the mean over tasks, and the
differences to the baselines, with 95 % bootstrap intervals over runs.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdpo.diagnostics import diagnose
from gdpo.diagnostics.influence import pooled
from gdpo.experiments.reading import read_experiment
from gdpo.experiments.threshold import REACHED, final
from gdpo.rollouts import read_rollouts, reward_arrays, rollout_file

STEPS = 5
BASELINES = ("rate", "signal")
CANDIDATES = ("influence", "forecast")
FEWEST = 10
"""Least number of learned and of unlearned pairs of a task whose AUC counts for the mean."""

BETTER = 0.05
"""Least difference of the mean AUC at which a candidate is clearly better."""


@dataclass(frozen=True)
class Pair:
    """Stores one reward of one run: what its first steps show, and whether it was learned."""

    run: str
    numbers: dict[str, float]
    learned: bool


def first_steps(rollouts, ranges):
    """Return the numbers of each reward, from the rollouts of each of the first steps.

    Args:
        rollouts: The rollouts of each step.
        ranges: Lowest and highest value of each reward, by name.

    Returns:
        For each reward, its numbers by name. All rise with the chance that it is learned.
    """
    steps = [reward_arrays(step) for step in rollouts]
    names = steps[0].names
    influence = pooled(
        [
            diagnose(step.rewards, step.weights, names, advantages=step.advantages).influence
            for step in steps
        ]
    )
    low, high = np.array([ranges[name] for name in names]).T
    gains, means = [], []
    for step in steps:
        scaled = (step.rewards - low) / (high - low)
        centred = scaled - np.nanmean(scaled, axis=1, keepdims=True)
        gains.append(np.nanmean(step.advantages[:, :, None] * centred, axis=(0, 1)))
        means.append(np.nanmean(scaled, axis=(0, 1)))
    signal = [1 - influence.zero_variance_groups(name)[1] for name in names]
    columns = {
        "rate": means[-1],
        "signal": signal,
        "influence": np.nan_to_num(influence.shares),
        "forecast": np.mean(gains, axis=0),
        "so far": np.mean(means, axis=0),
    }
    return {
        name: {key: float(column[i]) for key, column in columns.items()}
        for i, name in enumerate(names)
    }


def pairs_of(folders):
    """Return the pairs of some comparisons, without rewards that are learned in the first steps."""
    found = []
    for folder in folders:
        experiment = read_experiment(folder)
        ranges = {reward.name: (reward.low, reward.high) for reward in experiment.rewards}
        for run in experiment.runs:
            places = [rollout_file(run.path / "rollouts", step) for step in range(1, STEPS + 1)]
            numbers = first_steps([read_rollouts(place) for place in places], ranges)
            for name, (low, high) in ranges.items():
                if numbers[name].pop("so far") < REACHED:
                    end = (final(run.means[name]) - low) / (high - low)
                    found.append(Pair(str(run.path), numbers[name], bool(end >= REACHED)))
    return found


def auc(numbers, learned):
    """Return the chance that a learned pair has a larger number than an unlearned one.

    A tie counts one half. NaN: one of the kinds is missing.
    """
    numbers, learned = np.asarray(numbers), np.asarray(learned)
    ours, theirs = numbers[learned], np.sort(numbers[~learned])
    if not ours.size or not theirs.size:
        return np.nan
    below, up_to = (np.searchsorted(theirs, ours, side=side) for side in ("left", "right"))
    return float(np.mean(below + up_to) / 2 / len(theirs))


def aucs(pairs):
    """Return the AUC of each number on one task."""
    learned = np.array([pair.learned for pair in pairs])
    return np.array(
        [auc([p.numbers[n] for p in pairs], learned) for n in (*BASELINES, *CANDIDATES)]
    )


def counts(pairs):
    """Return whether a task has enough pairs of both kinds."""
    learned = sum(pair.learned for pair in pairs)
    return min(learned, len(pairs) - learned) >= FEWEST


def redrawn(pairs, rng):
    """Return the pairs of as many runs, drawn with replacement."""
    by_run = {}
    for pair in pairs:
        by_run.setdefault(pair.run, []).append(pair)
    runs = list(by_run.values())
    return [pair for i in rng.integers(len(runs), size=len(runs)) for pair in runs[i]]


def bootstrap(tasks, draws, seed=0):
    """Return the mean AUC of each number over the tasks, one row per draw of runs."""
    rng = np.random.default_rng(seed)
    return np.array(
        [np.nanmean([aucs(redrawn(pairs, rng)) for pairs in tasks], axis=0) for _ in range(draws)]
    )


def clearly_better(mean, drawn):
    """Return for each candidate whether it is clearly better than every baseline.

    Args:
        mean: Mean AUC of each number, baselines first.
        drawn: The same for each draw, one row per draw.
    """
    known = len(BASELINES)
    low = np.nanpercentile(drawn[:, known:, None] - drawn[:, None, :known], 2.5, axis=0)
    ahead = mean[known:, None] - mean[None, :known]
    return np.all((ahead >= BETTER) & (low > 0), axis=1)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", metavar="NAME=PATTERN")
    parser.add_argument("--draws", type=int, default=10_000, help="default: %(default)s")
    options = parser.parse_args()
    names = (*BASELINES, *CANDIDATES)
    print(f"| task | runs | pairs | learned | {' | '.join(names)} |")
    print(f"|{'---|' * (4 + len(names))}")
    tasks = []
    for name, _, pattern in (given.partition("=") for given in options.tasks):
        place = Path(pattern)
        pairs = pairs_of(sorted(place.parent.glob(place.name)))
        learned, runs = sum(pair.learned for pair in pairs), len({pair.run for pair in pairs})
        shown = " | ".join(f"{value:.3f}" for value in aucs(pairs))
        print(f"| {name} | {runs} | {len(pairs)} | {learned} | {shown} |", flush=True)
        tasks += [pairs] if counts(pairs) else []
    mean = np.mean([aucs(pairs) for pairs in tasks], axis=0)
    drawn = bootstrap(tasks, options.draws)
    low, high = np.nanpercentile(drawn, [2.5, 97.5], axis=0)
    cells = [f"{m:.3f} ({a:.3f} to {b:.3f})" for m, a, b in zip(mean, low, high, strict=True)]
    print(f"| mean of {len(tasks)} tasks | | | | {' | '.join(cells)} |\n")
    for i, candidate in enumerate(CANDIDATES, len(BASELINES)):
        for j, baseline in enumerate(BASELINES):
            low, high = np.nanpercentile(drawn[:, i] - drawn[:, j], [2.5, 97.5])
            print(f"{candidate} - {baseline}: {mean[i] - mean[j]:+.3f} ({low:+.3f} to {high:+.3f})")
    better = clearly_better(mean, drawn)
    print(f"Clearly better: {', '.join(np.array(CANDIDATES)[better]) or 'none'}")


if __name__ == "__main__":
    main()
