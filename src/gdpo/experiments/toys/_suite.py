"""Runs estimators on toys in parallel, and returns the results as experiments."""

import multiprocessing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TypeAlias

from gdpo.advantages import ESTIMATORS
from gdpo.errors import ConfigError
from gdpo.experiments.reading import Experiment, Measured, Run, estimator_of, run_name
from gdpo.experiments.threshold import first_reached
from gdpo.experiments.toys._run import ToyResult, rule_for, run_toy
from gdpo.experiments.toys._toys import TOYS, Toy

Progress: TypeAlias = Callable[[int, int, str, str], None]
"""Function called when an estimator has finished on a toy. Arguments: number of finished pairs of
toy and estimator, total number of pairs, toy, estimator."""

_FOLDER = Path("toys")


def toy_experiment(
    toy: Toy,
    estimators: Sequence[str],
    seeds: Sequence[int],
    *,
    processes: int = 2,
    folder: Path = _FOLDER,
) -> Experiment:
    """Run all estimators on one toy.

    Args:
        toy: The toy.
        estimators: Estimators to run. The first is the baseline.
        seeds: Seeds. Each estimator runs once per seed.
        processes: Number of processes. 1: run in this process.
        folder: Folder used in the paths of the runs. Nothing is written to this folder.

    Raises:
        ConfigError: If an estimator does not exist. If an estimator raises an error while it runs,
            its runs are marked as failed instead.
    """
    done = suite(estimators, seeds, toys=[toy], processes=processes, folder=folder)
    return done[toy.name]


def suite(
    estimators: Sequence[str] = tuple(ESTIMATORS),
    seeds: Sequence[int] = range(20),
    *,
    progress: Progress | None = None,
    toys: Iterable[Toy] = TOYS.values(),
    processes: int = 2,
    folder: Path = _FOLDER,
) -> dict[str, Experiment]:
    """Run all estimators on all toys, and return one experiment per toy.

    Args:
        estimators: Estimators to run, as strings or `Label`s. The first is the baseline.
        seeds: Seeds. Each estimator runs once per seed.
        progress: Function called when an estimator has finished on a toy.
        toys: Toys to run.
        processes: Number of processes. 1: run in this process.
        folder: Folder used in the paths of the runs. Nothing is written to this folder.

    Raises:
        ConfigError: If an estimator does not exist or is listed twice.
    """
    toys, seeds = list(toys), tuple(seeds)
    if twice := sorted({str(each) for each in estimators if list(estimators).count(each) > 1}):
        raise ConfigError(f"estimators: {', '.join(twice)} is listed twice. Remove one")
    tasks = [(toy, estimator) for toy in toys for estimator in estimators]
    for toy, estimator in tasks:
        rule_for(toy, estimator_of(estimator))  # reject a misspelt name before anything starts
    done: dict[tuple[str, str], ToyResult | str] = {}
    for toy, estimator, outcome in _outcomes(tasks, seeds, processes):
        done[toy.name, estimator] = outcome
        if progress is not None:
            progress(len(done), len(tasks), toy.name, estimator)
    return {
        toy.name: _experiment(toy, {e: done[toy.name, e] for e in estimators}, seeds, folder)
        for toy in toys
    }


def _outcomes(
    tasks: Sequence[tuple[Toy, str]], seeds: tuple[int, ...], processes: int
) -> Generator[tuple[Toy, str, ToyResult | str]]:
    """Yield the result of each estimator on each toy as soon as the result is available."""
    if processes == 1:
        yield from ((toy, each, _outcome(toy, estimator_of(each), seeds)) for toy, each in tasks)
        return
    with _pool(processes) as pool:
        futures: dict[Future[ToyResult | str], tuple[Toy, str]] = {
            pool.submit(_outcome, toy, estimator_of(each), seeds): (toy, each)
            for toy, each in tasks
        }
        for future in as_completed(futures):
            yield *futures[future], future.result()


@contextmanager
def _pool(processes: int) -> Generator[Executor]:
    """Yield a pool of spawned processes, because a process with threads must not be forked."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _outcome(toy: Toy, estimator: str, seeds: tuple[int, ...]) -> ToyResult | str:
    """Return the result, or the reason for the failure."""
    try:
        return run_toy(toy, estimator, seeds=seeds)
    except Exception as error:  # noqa: BLE001 - an estimator may be the user's own
        return f"{type(error).__name__}: {error}"


def _experiment(
    toy: Toy, outcomes: Mapping[str, ToyResult | str], seeds: tuple[int, ...], folder: Path
) -> Experiment:
    runs = [
        _run(folder / toy.name, estimator, outcome, seed, place)
        for estimator, outcome in outcomes.items()
        for place, seed in enumerate(seeds)
    ]
    return Experiment(
        name=toy.name,
        path=folder / toy.name,
        labels=tuple(outcomes),
        seeds=seeds,
        rewards=toy.measured,
        total_steps=toy.steps,
        runs=tuple(runs),
        reach=toy.reach,
    )


def _run(folder: Path, estimator: str, outcome: ToyResult | str, seed: int, place: int) -> Run:
    path = folder / run_name(estimator, seed)
    if isinstance(outcome, str):
        return Run(estimator, seed, path, "failed", outcome, {})
    means = {name: curve[place] for name, curve in outcome.curves.items()}
    return Run(estimator, seed, path, "finished", "", means)


def table(experiments: Mapping[str, Experiment]) -> str:
    """Return Markdown tables for each toy: the step at which an estimator reached each threshold.

    A cell contains the median (the step by which half of the seeds had reached the threshold), the
    range over the seeds, and the number of seeds that never reached the threshold. A threshold is
    reached when the running mean of the reward is at `reach` of its range (`first_reached`), even
    if the running mean falls again later.
    """
    return "\n\n".join(_table(experiment) for experiment in experiments.values()) + "\n"


_WIDTH = 80
"""Maximum width of a table. The rewards that do not fit follow in further tables."""


def _table(experiment: Experiment) -> str:
    first = [experiment.name, "---", *(f"`{label}`" for label in experiment.labels)]
    tables = [[first]]
    for measured in experiment.rewards:
        cells = (_cell(experiment, label, measured) for label in experiment.labels)
        column = [measured.name, "---", *cells]
        fits = max(map(len, _lines([*tables[-1], column]))) <= _WIDTH
        if not fits and len(tables[-1]) > 1:
            tables.append([first])
        tables[-1].append(column)
    return "\n\n".join("\n".join(_lines(columns)) for columns in tables)


def _lines(columns: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in zip(*columns, strict=True)]


def _cell(experiment: Experiment, label: str, measured: Measured) -> str:
    if any(run.state == "failed" for run in experiment.runs_of(label)):
        return "failed"
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
