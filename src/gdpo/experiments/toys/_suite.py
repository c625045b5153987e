"""Estimators on toys, in processes, as experiments like those of trained models."""

import multiprocessing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TypeAlias

from gdpo.advantages import ESTIMATORS
from gdpo.experiments.reading import Experiment, Measured, Run
from gdpo.experiments.threshold import first_reached
from gdpo.experiments.toys._run import ToyResult, rule_for, run_toy
from gdpo.experiments.toys._toys import TOYS, Toy

Progress: TypeAlias = Callable[[int, int, str, str], None]
"""Told after each estimator how many are done, of how many, its toy and its estimator."""

_FOLDER = Path("toys")


def toy_experiment(
    toy: Toy,
    estimators: Sequence[str],
    seeds: Sequence[int],
    *,
    processes: int = 2,
    folder: Path = _FOLDER,
) -> Experiment:
    """All estimators on one toy.

    Args:
        toy: The problem.
        estimators: The estimators; the first is what the others are compared with.
        seeds: One run of each estimator per seed.
        processes: How many work at a time; 1: this one.
        folder: Where the runs are said to lie. Nothing is written.

    Raises:
        ConfigError: There is no such estimator. One that fails on the way is no error: its runs
            have failed.
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
    """All estimators on all toys, an experiment per toy.

    Args:
        estimators: The estimators; the first is what the others are compared with.
        seeds: One run of each estimator per seed.
        progress: Told after each estimator.
        toys: The problems.
        processes: How many work at a time; 1: this one.
        folder: Where the runs are said to lie. Nothing is written.

    Raises:
        ConfigError: There is no such estimator.
    """
    toys, seeds = list(toys), tuple(seeds)
    labels = [(toy, estimator) for toy in toys for estimator in estimators]
    for toy, estimator in labels:
        rule_for(toy, estimator)  # what is misspelt is known before anything starts
    done: dict[tuple[str, str], ToyResult | str] = {}
    for toy, estimator, outcome in _outcomes(labels, seeds, processes):
        done[toy.name, estimator] = outcome
        if progress is not None:
            progress(len(done), len(labels), toy.name, estimator)
    return {
        toy.name: _experiment(toy, {e: done[toy.name, e] for e in estimators}, seeds, folder)
        for toy in toys
    }


def _outcomes(
    labels: Sequence[tuple[Toy, str]], seeds: tuple[int, ...], processes: int
) -> Generator[tuple[Toy, str, ToyResult | str]]:
    """Each estimator as it is done."""
    if processes == 1:
        yield from ((toy, estimator, _label(toy, estimator, seeds)) for toy, estimator in labels)
        return
    with _pool(processes) as pool:
        futures: dict[Future[ToyResult | str], tuple[Toy, str]] = {
            pool.submit(_label, *label, seeds): label for label in labels
        }
        for future in as_completed(futures):
            yield *futures[future], future.result()


@contextmanager
def _pool(processes: int) -> Generator[Executor]:
    """Fresh processes: one that has started threads must not be forked."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _label(toy: Toy, estimator: str, seeds: tuple[int, ...]) -> ToyResult | str:
    """The result, or why there is none."""
    try:
        return run_toy(toy, estimator, seeds=seeds)
    except Exception as error:  # noqa: BLE001 - an estimator may be the user's own
        return f"{type(error).__name__}: {error}"


def _experiment(
    toy: Toy, labels: Mapping[str, ToyResult | str], seeds: tuple[int, ...], folder: Path
) -> Experiment:
    runs = [
        _run(folder / toy.name, estimator, outcome, seed, place)
        for estimator, outcome in labels.items()
        for place, seed in enumerate(seeds)
    ]
    return Experiment(
        name=toy.name,
        path=folder / toy.name,
        labels=tuple(labels),
        seeds=seeds,
        rewards=toy.measured,
        total_steps=toy.steps,
        runs=tuple(runs),
        reach=toy.reach,
    )


def _run(folder: Path, estimator: str, outcome: ToyResult | str, seed: int, place: int) -> Run:
    path = folder / f"{estimator.replace(':', '-')}-{seed}"
    if isinstance(outcome, str):
        return Run(estimator, seed, path, "failed", outcome, {})
    means = {name: curve[place] for name, curve in outcome.curves.items()}
    return Run(estimator, seed, path, "finished", "", means)


def table(experiments: Mapping[str, Experiment]) -> str:
    """A table per toy, a row per estimator: the step at which the seeds have each reward.

    A cell is the median (the step at which half of the seeds had it) and the range over the seeds,
    then how many never had it, if any. Had: `first_reached` says that the curve was at `reach` of
    the reward's range; it may be lost again.
    """
    return "\n\n".join(_table(experiment) for experiment in experiments.values()) + "\n"


def _table(experiment: Experiment) -> str:
    names = [measured.name for measured in experiment.rewards]
    lines = [
        [experiment.name, *names],
        ["---"] * (1 + len(names)),
        *(
            [f"`{a}`", *(_cell(experiment, a, m) for m in experiment.rewards)]
            for a in experiment.labels
        ),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
