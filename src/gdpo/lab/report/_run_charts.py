"""Draws charts of runs that gdpo trained: rewards, lengths, and the time to the threshold."""

import warnings
from collections.abc import Sequence

import numpy as np

from gdpo.diagnostics.account import WINDOW
from gdpo.lab.experiments.comparison import Comparison, Outcome
from gdpo.lab.experiments.reading import CurveField, Measured
from gdpo.lab.experiments.statistics import FEWEST_SEEDS
from gdpo.lab.experiments.threshold import first_reached
from gdpo.report.charts import (
    COLOURS,
    Chart,
    Curves,
    Line,
    Points,
    binned,
    fitted,
    running_mean,
    smoothing,
)
from gdpo.report.colours import styles

_POINTS = 20_000
"""Maximum total number of points in all thin lines, which limits the size of the page."""


def curves(comparison: Comparison, reward: Measured) -> Chart:
    """Return a reward's chart, with the median and quartiles over seeds, and every seed.

    The vertical axis fits the curves (`gdpo.report.charts.fitted`).
    """
    experiment = comparison.experiment
    drawn = _lines(comparison, reward.name)
    low, high = fitted(_drawn(drawn), reward.low, reward.high)
    return Chart(
        title=reward.name,
        label="mean reward",
        x=_steps(comparison),
        low=low,
        high=high,
        lines=drawn,
        threshold=experiment.threshold(reward),
        declared=(reward.low, reward.high),
    )


def weights(comparison: Comparison) -> list[Chart]:
    """Return a chart of the weight at each step for each reward whose weight changes in a run."""
    experiment = comparison.experiment
    charts: list[Chart] = []
    for name in (reward.name for reward in experiment.rewards):
        labels = [
            label
            for label in experiment.labels
            if any(name in run.weights for run in experiment.runs_of(label))
        ]
        if not labels:
            continue
        drawn = _lines(comparison, name, "weights", labels)
        values = _drawn(drawn)
        chart = Chart(
            title=name,
            label="weight",
            x=_steps(comparison),
            low=min(0.0, float(np.nanmin(values, initial=0.0))),
            high=float(np.nanmax(values, initial=1.0)),
            lines=drawn,
        )
        charts.append(chart)
    return charts


def lengths(comparison: Comparison) -> list[Chart]:
    """Return charts of the mean and maximum completion length at each step, if they are logged."""
    experiment = comparison.experiment
    if not any(run.lengths for run in experiment.runs):
        return []
    charts: list[Chart] = []
    for figure, label in (("mean", "mean length, tokens"), ("max", "longest, tokens")):
        drawn = _lines(comparison, figure, "lengths")
        high = float(np.nanmax(_drawn(drawn), initial=1.0))
        charts.append(Chart("completions", label, _steps(comparison), 0.0, high, drawn))
    return charts


def account(comparison: Comparison) -> list[Chart]:
    """Return for each reward of a single run what changed it in each window, stacked.

    Parts above 0 are stacked upwards, and parts below 0 downwards. Where the total of a reward does
    not agree with the measured change, its window has no parts.
    """
    run, *others = comparison.experiment.runs
    names = [reward.name for reward in comparison.experiment.rewards]
    causes = [*(f"by/{name}" for name in names), "rest", "measured"]
    labels = [*names, "rest", "measured change"]
    # A log of several steps does not say which window it has.
    at_each_step = np.roll(np.isfinite([*run.means.values()]).any(0), 1)
    none = np.full(run.steps, np.nan)
    found = [[run.account.get(f"{moved}/{cause}", none) for cause in causes] for moved in names]
    tables = [np.where(np.isfinite(rows) & at_each_step, rows, np.nan) for rows in found]
    return [
        _stacked(moved, labels, table)
        for moved, table in zip(names, tables, strict=True)
        if not others and np.isfinite(table[-1]).any()
    ]


def _stacked(title: str, labels: Sequence[str], rows: Curves) -> Chart:
    """Return a chart of the parts of a change, and the measured change, which is the last row."""
    steps = np.flatnonzero(np.isfinite(rows[-1]))
    # For each window: a gap, and points at its two ends. It is logged at the step after it.
    x = np.add.outer(steps, [-WINDOW, -WINDOW, 0]).ravel().astype(np.float64)
    values = np.repeat(rows[:, steps], 3, axis=1)
    values[:, ::3] = np.nan
    above, below = (np.cumsum(side(values[:-1], 0), axis=0) for side in (np.maximum, np.minimum))
    edges = np.where(values[:-1] < 0, below, above)
    return Chart(
        title=title,
        label="change of the mean in a window",
        x=x,
        low=float(np.nanmin([*below, *values], initial=0)),
        high=float(np.nanmax([*above, *values], initial=0)),
        lines=[
            Line(
                label,
                place % COLOURS,
                value,
                *((value - own, value) if place < len(edges) else ()),
                own=own,
            )
            for place, (label, value, own) in enumerate(
                zip(labels, [*edges, values[-1]], values, strict=True)
            )
        ],
    )


def survival(comparison: Comparison, reward: Measured) -> Chart | None:
    """Return the share of runs below the threshold at each step (Kaplan-Meier).

    An estimator with fewer than 5 runs has no 95 % band. The band ends when all runs have reached
    the threshold. Return None if no estimator has two runs, no run reached the threshold, or all
    reached it at the same step, which the table shows.
    """
    experiment = comparison.experiment
    threshold = experiment.threshold(reward)
    begun = {
        label: [
            run.means.get(reward.name, np.empty(0))
            for run in experiment.runs_of(label)
            if run.steps
        ]
        for label in experiment.labels
    }
    times = {
        label: [first_reached(curve, threshold) for curve in curves]
        for label, curves in begun.items()
    }
    if max(map(len, times.values())) < 2 or len({s for each in times.values() for s in each}) == 1:
        return None
    total = max(1, experiment.total_steps)
    grid = np.unique(np.linspace(0, total, min(total, 300) + 1).round())
    places = styles(experiment.labels)
    return Chart(
        title=reward.name,
        label="runs that have not reached the threshold, %",
        x=grid,
        low=0.0,
        high=100.0,
        lines=[
            _stairs(
                comparison.outcome(label, reward.name),
                places[label].place,
                grid,
                {
                    float(len(curve))
                    for curve, time in zip(begun[label], times[label], strict=True)
                    if len(curve) and time is None
                },
            )
            for label in experiment.labels
        ],
        stairs=True,
    )


def _points(comparison: Comparison) -> int:
    experiment = comparison.experiment
    lines = len(experiment.runs) * (len(experiment.rewards) + 2)  # 2 charts of lengths
    return min(400, max(20, _POINTS // max(1, lines)))


def _steps(comparison: Comparison) -> Points:
    steps = np.arange(1, max(1, comparison.experiment.total_steps) + 1, dtype=np.float64)
    return binned(steps[None], _points(comparison))[0]


def _lines(
    comparison: Comparison,
    key: str,
    of: CurveField = "means",
    labels: Sequence[str] | None = None,
) -> list[Line]:
    """Return a line for each label, with the curves of its runs (see `Experiment.curves`)."""
    experiment = comparison.experiment
    places, points = styles(experiment.labels), _points(comparison)
    return [
        _line(label, places[label].place, experiment.curves(label, key, of), points)
        for label in labels or experiment.labels
    ]


def _line(label: str, place: int, table: Curves, points: int) -> Line:
    """Return a line with the seeds' median, quartiles and curves."""
    if not table.shape[1]:
        table = np.full((len(table), 1), np.nan)
    seeds = binned(running_mean(table, smoothing(table.shape[1])), points)
    low, value, high = np.full((3, seeds.shape[1]), np.nan)
    if len(seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # raised if all values are NaN
            low, value, high = np.nanquantile(seeds, [0.25, 0.5, 0.75], axis=0)
    counts = np.sum(np.isfinite(seeds), axis=0)
    return Line(
        label=label,
        colour=place,
        value=value,
        low=low,
        high=high,
        thin=seeds if len(seeds) > 1 else seeds[:0],
        note=tuple("" if n == len(seeds) else f"{n} of {len(seeds)} runs" for n in counts),
    )


def _drawn(lines: Sequence[Line]) -> Points:
    return np.concatenate([line.thin.ravel() for line in lines] + [line.value for line in lines])


def _stairs(outcome: Outcome, place: int, grid: Points, censored: set[float]) -> Line:
    found = outcome.survival
    at = np.searchsorted(found.steps, grid, side="right") - 1
    share, *ends = (100 * each[at] for each in (found.share, found.low, found.high))
    low, high = (np.where(share > 0, end, np.nan) for end in ends)
    banded = outcome.runs >= FEWEST_SEEDS
    return Line(
        label=outcome.label,
        colour=place,
        value=share,
        low=low if banded else None,
        high=high if banded else None,
        censored=tuple(sorted(censored)) if np.isfinite(share).all() else (),
    )
