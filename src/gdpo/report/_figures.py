"""The charts of a comparison: each reward's curves, and how many runs were not there yet."""

import warnings
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from gdpo.experiments.comparison import Comparison, Outcome
from gdpo.experiments.reading import Measured
from gdpo.experiments.threshold import first_reached
from gdpo.report._charts import COLOURS, Chart, Line, Points

_POINTS = 20_000
"""Of all thin lines together: they decide the size of the page."""

_LENGTHS = 2
"""Charts of the lengths."""

Table = Float[np.ndarray, "seed step"]


def smoothing(total_steps: int) -> int:
    """Steps of the running mean that the curves show: a twentieth of the run, and an odd number."""
    return max(1, total_steps // 20) // 2 * 2 + 1


def curves(comparison: Comparison, reward: Measured) -> Chart:
    """Median over the seeds, the quarters around it, and every seed."""
    experiment = comparison.experiment
    points = _points(comparison)
    drawn = [
        _line(arm, place, experiment.curves(arm, reward.name), points)
        for place, arm in enumerate(experiment.arms)
    ]
    values = np.concatenate([line.thin.ravel() for line in drawn])
    known = values[np.isfinite(values)]
    low = min(reward.low, float(known.min()) if len(known) else reward.low)
    high = max(reward.high, float(known.max()) if len(known) else reward.high)
    return Chart(
        title=reward.name,
        label="mean reward",
        x=_steps(comparison, points),
        low=low,
        high=high if high > low else low + 1,
        lines=drawn,
        threshold=comparison.threshold(reward),
    )


def lengths(comparison: Comparison) -> list[Chart]:
    """The mean length of the completions, and the longest of each step, as the rewards are drawn.

    Nothing where no run has logged them.
    """
    logged = [run for run in comparison.experiment.runs if run.lengths]
    told = {"mean": "mean length, tokens", "max": "longest, tokens"} if logged else {}
    return [_length(comparison, figure, label) for figure, label in told.items()]


def _length(comparison: Comparison, figure: str, label: str) -> Chart:
    experiment = comparison.experiment
    points = _points(comparison)
    drawn = [
        _line(arm, place, experiment.lengths(arm, figure), points)
        for place, arm in enumerate(experiment.arms)
    ]
    values = np.concatenate([line.thin.ravel() for line in drawn] + [line.value for line in drawn])
    return Chart(
        title="completions",
        label=label,
        x=_steps(comparison, points),
        low=0.0,
        high=float(np.nanmax(values, initial=1.0)),
        lines=drawn,
    )


def survival(comparison: Comparison, reward: Measured) -> Chart:
    """The share of runs below the threshold, falling at each run that comes to it."""
    total = comparison.experiment.total_steps
    grid = np.unique(np.linspace(0, max(1, total), min(max(1, total), 300) + 1).round())
    arms = comparison.experiment.arms
    outcomes = [comparison.outcome(arm, reward.name) for arm in arms]
    return Chart(
        title=reward.name,
        label="share of runs that are not there yet",
        x=grid,
        low=0.0,
        high=1.0,
        lines=[
            _stairs(outcome, place, grid, _censored(comparison, outcome.arm, reward))
            for place, outcome in enumerate(outcomes)
        ],
        stairs=True,
    )


def _points(comparison: Comparison) -> int:
    """Of each line."""
    experiment = comparison.experiment
    lines = len(experiment.runs) * (len(experiment.rewards) + _LENGTHS)
    return min(400, max(20, _POINTS // max(1, lines)))


def _steps(comparison: Comparison, points: int) -> Points:
    steps = np.arange(1, max(1, comparison.experiment.total_steps) + 1, dtype=np.float64)
    return binned(steps[None], points)[0]


def _line(arm: str, place: int, table: Table, points: int) -> Line:
    """Median over the seeds, the quarters around it, and every seed."""
    if not table.shape[1]:
        table = np.full((len(table), 1), np.nan)
    seeds = binned(running_mean(table, smoothing(table.shape[1])), points)
    low, value, high = _quartiles(seeds)
    counts = np.sum(np.isfinite(seeds), axis=0)
    return Line(
        arm=arm,
        colour=place % COLOURS,
        value=value,
        low=low,
        high=high,
        thin=seeds if len(seeds) > 1 else seeds[:0],
        note=tuple("" if n == len(seeds) else f"{n} of {len(seeds)} runs" for n in counts),
    )


def _censored(comparison: Comparison, arm: str, reward: Measured) -> tuple[float, ...]:
    """Where the runs ended that did not come to the threshold."""
    threshold = comparison.threshold(reward)
    runs = [run for run in comparison.experiment.runs_of(arm) if run.steps]
    values = [run.means.get(reward.name, np.empty(0)) for run in runs]
    ends = {len(v) for v in values if len(v) and first_reached(v, threshold) is None}
    return tuple(float(end) for end in sorted(ends))


def _stairs(outcome: Outcome, place: int, grid: Points, censored: tuple[float, ...]) -> Line:
    found = outcome.survival
    at = np.searchsorted(found.steps, grid, side="right") - 1
    share = np.asarray(found.share, dtype=np.float64)
    if not outcome.runs or not len(share):
        share, at = np.full(1, np.nan), np.zeros(len(grid), dtype=int)
    bounds = [
        np.asarray(bound)[at] if len(bound) == len(share) else np.full(len(grid), np.nan)
        for bound in (found.low, found.high)
    ]
    return Line(
        arm=outcome.arm,
        colour=place % COLOURS,
        value=share[at],
        low=bounds[0],
        high=bounds[1],
        thin=np.empty((0, len(grid))),
        censored=censored if np.isfinite(share[at]).all() else (),
    )


def running_mean(table: Table, window: int) -> Table:
    """Over the steps around each, fewer at the ends; of what is known, and only where it is."""
    known = np.isfinite(table)
    half = window // 2

    def moving_sum(values: Table) -> Table:
        sums = np.cumsum(np.pad(values, ((0, 0), (half + 1, half))), axis=1)
        return sums[:, window:] - sums[:, :-window]

    counts = moving_sum(known.astype(np.float64))
    sums = moving_sum(np.where(known, table, 0.0))
    return np.where(known, sums / np.maximum(counts, 1), np.nan)


def binned(table: Table, points: int) -> Float[np.ndarray, "seed point"]:
    """Means of neighbouring steps, so that a long run has no more than so many points."""
    if table.shape[1] <= points:
        return table
    return np.stack([_nanmean(part) for part in np.array_split(table, points, axis=1)], axis=1)


def _nanmean(part: Table) -> Float[np.ndarray, " seed"]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nothing known: NaN is the answer
        return np.nanmean(part, axis=1)


def _quartiles(seeds: Float[np.ndarray, "seed point"]) -> Sequence[Points]:
    if not len(seeds):
        return [np.full(seeds.shape[1], np.nan)] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return list(np.nanquantile(seeds, [0.25, 0.5, 0.75], axis=0))
