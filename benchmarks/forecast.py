"""Measures how well numbers from the first 5 steps forecast whether a reward is learned.

    python -m benchmarks.forecast NAME=PATTERN ... [--draws 10000]

A PATTERN matches the comparisons of one task, as in 'map=runs/study/map-*'. Prints the AUC of each
number that research/preregistration/2026-11-26.md registers: per task, the mean over tasks, and the
differences to the baselines, with 95 % bootstrap intervals. Every AUC is computed twice: over all
pairs of run and reward, and only between pairs with the same reward of the same comparison.
"""

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdpo.diagnostics import diagnose
from gdpo.diagnostics.influence import pooled
from gdpo.errors import GdpoError
from gdpo.lab.experiments.reading import read_experiment
from gdpo.lab.experiments.threshold import REACHED, final
from gdpo.rollouts import read_rollouts, reward_arrays, rollout_file

STEPS = 5
BASELINES = ("rate", "signal", "mean", "slope")
CANDIDATES = ("influence", "forecast", "scaled forecast")
NUMBERS = (*BASELINES, *CANDIDATES)
FEWEST = 10
"""Smallest number of learned and of unlearned pairs of a task whose AUC counts for the mean."""

BETTER = 0.05
"""Smallest difference of the mean AUC at which a candidate is clearly better."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Pair:
    """Stores one reward of one run: what its first steps show, and whether it was learned."""

    comparison: str
    seed: int
    reward: str
    numbers: tuple[float, ...]
    """In the order of `NUMBERS`. All rise with the chance that the reward is learned."""
    learned: bool


def first_steps(rollouts, ranges):
    """Return `NUMBERS` of each reward, from the rollouts of each of the first steps.

    Args:
        rollouts: The rollouts of each step.
        ranges: Lowest and highest value of each reward, by name.
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
    gains, scaled_gains, means = [], [], []
    for step in steps:
        scaled = (step.rewards - low) / (high - low)
        centred = scaled - np.nanmean(scaled, axis=1, keepdims=True)
        gain = np.nanmean(step.advantages[:, :, None] * centred, axis=(0, 1))
        size = np.std(step.advantages)
        gains.append(gain)
        scaled_gains.append(gain / size if size > 0 else gain)
        means.append(np.nanmean(scaled, axis=(0, 1)))
    columns = {
        "rate": means[-1],
        "signal": influence.sums.live / influence.sums.applies,
        "mean": np.mean(means, axis=0),
        "slope": np.mean(means[-2:], axis=0) - np.mean(means[:2], axis=0),
        "influence": np.nan_to_num(influence.shares),
        "forecast": np.mean(gains, axis=0),
        "scaled forecast": np.mean(scaled_gains, axis=0),
    }
    return {
        name: tuple(float(columns[number][i]) for number in NUMBERS) for i, name in enumerate(names)
    }


def pairs_of(folders):
    """Return the pairs of some comparisons, and the runs that have none because they failed.

    Rewards that are already at 80 % in the first steps are left out.
    """
    found, left_out = [], []
    for folder in folders:
        experiment = read_experiment(folder)
        ranges = {reward.name: (reward.low, reward.high) for reward in experiment.rewards}
        for run in experiment.runs:
            if run.state != "finished":
                left_out.append(str(run.path))
                continue
            places = [rollout_file(run.path / "rollouts", step) for step in range(1, STEPS + 1)]
            numbers = first_steps([read_rollouts(place) for place in places], ranges)
            for name, (low, high) in ranges.items():
                end = (final(run.means[name]) - low) / (high - low)
                if numbers[name][NUMBERS.index("mean")] < REACHED and not np.isnan(end):
                    learned = bool(end >= REACHED - _ROUNDING)
                    found.append(Pair(str(folder), run.seed, name, numbers[name], learned))
    return found, left_out


def wins(pairs):
    """Return how often a learned pair has the larger number, and how many times both were compared.

    A tie counts one half.

    Returns:
        One count per number, and the number of comparisons.
    """
    table = np.array([pair.numbers for pair in pairs])
    learned = np.array([pair.learned for pair in pairs])
    ours, theirs = table[learned], np.sort(table[~learned], axis=0)
    counts = np.zeros(table.shape[1])
    for i in range(table.shape[1]):
        for side in ("left", "right"):
            counts[i] += np.searchsorted(theirs[:, i], ours[:, i], side=side).sum() / 2
    return counts, len(ours) * len(theirs)


def auc(pairs):
    """Return the AUC of each number over all pairs, and within rewards of the same comparison.

    NaN: no learned pair can be compared with an unlearned one.

    Returns:
        Two rows, with one AUC per number.
    """
    strata = defaultdict(list)
    for pair in pairs:
        strata[pair.comparison, pair.reward].append(pair)
    within = [wins(some) for some in strata.values()]
    all_pairs, compared = wins(pairs)
    sums = np.sum([count for count, _ in within], axis=0), sum(number for _, number in within)
    rows = ((all_pairs, compared), sums)
    return np.array([c / n if n else np.full(len(c), np.nan) for c, n in rows])


def counts(pairs):
    """Return whether a task has enough pairs of both kinds."""
    learned = sum(pair.learned for pair in pairs)
    return min(learned, len(pairs) - learned) >= FEWEST


def redrawn(pairs, rng):
    """Return the pairs of as many seeds of each comparison, drawn with replacement.

    All runs with one seed start from the same policy and see the same problems, so they stay
    together.
    """
    seeds = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        seeds[pair.comparison][pair.seed].append(pair)
    drawn = []
    for of_comparison in seeds.values():
        clusters = list(of_comparison.values())
        for i in rng.integers(len(clusters), size=len(clusters)):
            drawn += clusters[i]
    return drawn


def table_of(tasks):
    """Return the AUC of each number, `[task, kind, number]`."""
    return np.array([auc(pairs) for pairs in tasks])


def mean_auc(table, whole):
    """Return the mean AUC over tasks, `[kind, number]`.

    A task whose AUC within rewards is NaN in the `whole` table is left out of that mean: all of its
    runs agree on every reward.
    """
    known = ~np.isnan(whole).any(axis=2)
    return np.array([np.mean(table[which, kind], axis=0) for kind, which in enumerate(known.T)])


def bootstrap(tasks, draws, seed=0):
    """Return the mean AUC over the tasks, `[draw, kind, number]`.

    NaN: a draw of a task has no learned pair that can be compared with an unlearned one.
    """
    rng, whole = np.random.default_rng(seed), table_of(tasks)
    return np.array(
        [mean_auc(table_of([redrawn(t, rng) for t in tasks]), whole) for _ in range(draws)]
    )


def clearly_better(mean, drawn):
    """Return for each candidate whether it is clearly better than every baseline, in both kinds.

    Args:
        mean: Mean AUC, `[kind, number]`, baselines first.
        drawn: The same for each draw.
    """
    known = len(BASELINES)
    ahead = mean[:, known:, None] - mean[:, None, :known]
    low = np.nanpercentile(drawn[..., known:, None] - drawn[..., None, :known], 2.5, axis=0)
    return np.all((ahead >= BETTER) & (low > 0), axis=(0, 2))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", metavar="NAME=PATTERN", help="comparisons of a task")
    parser.add_argument(
        "--draws", type=int, default=10_000, help="bootstrap draws. Default: %(default)s"
    )
    options = parser.parse_args()
    places = {name: Path(where) for name, _, where in (t.partition("=") for t in options.tasks)}
    if wrong := [name for name, place in places.items() if not place.name]:
        parser.error(f"{wrong[0]}: give a pattern, as in NAME=runs/study/map-*")
    if options.draws < 1:
        parser.error("--draws must be at least 1")
    try:
        report(places, options.draws)
    except GdpoError as error:
        sys.exit(str(error))


def report(places, draws):
    """Print the AUC of each number, per task and over tasks, and the decision.

    Args:
        places: Pattern of the comparisons of each task, by name.
        draws: Number of bootstrap draws.
    """
    tasks, left_out = [], []
    print(f"| task | pairs | learned | {' | '.join(NUMBERS)} |\n|{'---|' * (3 + len(NUMBERS))}")
    for name, place in places.items():
        pairs, failed = pairs_of(sorted(place.parent.glob(place.name)))
        if not pairs:
            sys.exit(f"{name}: no finished run matches {place}")
        learned = sum(pair.learned for pair in pairs)
        for kind, row in zip(("all", "same reward"), auc(pairs), strict=True):
            shown = " | ".join(f"{value:.3f}" for value in row)
            print(f"| {name}, {kind} | {len(pairs)} | {learned} | {shown} |", flush=True)
        tasks += [pairs] if counts(pairs) else []
        left_out += failed
    print(f"\nRuns that have not finished: {', '.join(left_out) or 'none'}")
    if not tasks:
        sys.exit(f"No task has {FEWEST} learned and {FEWEST} unlearned pairs")
    table = table_of(tasks)
    summarize(mean_auc(table, table), bootstrap(tasks, draws))


def summarize(mean, drawn):
    """Print the mean AUC over tasks and its differences, with intervals, and the decision."""
    print(f"Draws without one of the kinds: {np.isnan(drawn).any(axis=(1, 2)).mean():.1%}\n")
    for kind, name in enumerate(("all pairs", "pairs with the same reward")):
        print(f"| {name} | AUC | {' | '.join(f'minus {each}' for each in BASELINES)} |")
        print(f"|{'---|' * (2 + len(BASELINES))}")
        for i, number in enumerate(NUMBERS):
            cells = [interval(mean[kind, i], drawn[:, kind, i])]
            for j in range(len(BASELINES) if number in CANDIDATES else 0):
                ahead = mean[kind, i] - mean[kind, j]
                cells.append(interval(ahead, drawn[:, kind, i] - drawn[:, kind, j]))
            print(f"| {number} | {' | '.join(cells)} |")
        print()
    better = np.array(CANDIDATES)[clearly_better(mean, drawn)]
    print(f"Clearly better: {', '.join(better) or 'none'}")


def interval(value, drawn):
    """Return a value with its 95 % interval as text."""
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
