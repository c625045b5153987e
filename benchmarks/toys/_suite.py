"""Runs estimators on toys in parallel, and returns the results as experiments."""

from concurrent.futures import ProcessPoolExecutor
from math import inf
from multiprocessing import get_context
from pathlib import Path

from benchmarks.toys._run import rule_for, run_toy
from benchmarks.toys._toys import TOYS

from gdpo.lab.experiments.reading import ComparedRun, Experiment, estimator_of, run_name
from gdpo.lab.experiments.threshold import first_reached

_ALL = tuple(TOYS.values())


def suite(estimators, seeds, toys=_ALL, *, jobs=2):
    """Run all estimators on toys, and return an `Experiment` for each toy, by name.

    Args:
        estimators: Estimators to run, as strings or `Label`s. The first is the baseline.
        seeds: Seeds. Each estimator runs once per seed.
        toys: Toys to run.
        jobs: Number of processes. 1: run in this process.

    Raises:
        ConfigError: If an estimator does not exist. This is checked before anything is trained.
    """
    for label in estimators:
        rule_for(toys[0], estimator_of(label))
    tasks = [(toy, label, tuple(seeds)) for toy in toys for label in estimators]
    if jobs == 1:
        done = list(map(_curves, tasks))
    else:  # a process with threads must not be forked
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            done = list(pool.map(_curves, tasks))
    curves = {(toy.name, label): each for (toy, label, _), each in zip(tasks, done, strict=True)}
    return {
        toy.name: _experiment(toy, {label: curves[toy.name, label] for label in estimators}, seeds)
        for toy in toys
    }


def _curves(task):
    toy, label, seeds = task
    return run_toy(toy, estimator_of(label), seeds=seeds)


def _experiment(toy, curves, seeds):
    folder = Path("toys", toy.name)  # nothing is written there
    runs = [
        ComparedRun(
            label,
            seed,
            folder / run_name(label, seed),
            "finished",
            "",
            {name: curve[place] for name, curve in of_seeds.items()},
        )
        for label, of_seeds in curves.items()
        for place, seed in enumerate(seeds)
    ]
    return Experiment(
        name=toy.name,
        path=folder,
        labels=tuple(curves),
        seeds=tuple(seeds),
        rewards=toy.measured,
        total_steps=toy.steps,
        runs=tuple(runs),
        reach=toy.reach,
    )


def table(experiment):
    """Return a Markdown table of the steps at which the rewards reached their thresholds.

    A threshold is reached when the running mean of the reward is at `reach` of its range
    (`first_reached`), even if the running mean falls again later.
    """
    names = [measured.name for measured in experiment.rewards]
    lines = [[experiment.name, *names], ["---"] * (1 + len(names))]
    lines += [
        [f"`{label}`", *(_cell(experiment, label, m) for m in experiment.rewards)]
        for label in experiment.labels
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(experiment, label, measured):
    level = measured.low + experiment.reach * (measured.high - measured.low)
    reached = [first_reached(c, level) for c in experiment.curves(label, measured.name)]
    steps = sorted(inf if step is None else step for step in reached)
    never = reached.count(None)
    if never == len(steps):
        return "never"
    median, low, high = (
        f">{experiment.total_steps}" if step == inf else f"{step}"
        for step in (steps[(len(steps) - 1) // 2], steps[0], steps[-1])
    )
    return f"{median} [{low} to {high}]" + (f", {never} never" if never else "")
