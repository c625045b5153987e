"""The page of runs that gdpo trained: which estimator, by how much, and how sure."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gdpo._files import write_whole
from gdpo.analysis.replay import TrainedWith
from gdpo.analysis.trained import TrainedAnalysis, TrainedRun, analyze_trained
from gdpo.diagnostics import Finding
from gdpo.diagnostics.diagnosis import Kind
from gdpo.diagnostics.watch import LASTING, Span
from gdpo.errors import GdpoError
from gdpo.experiments.comparison import Comparison, Outcome
from gdpo.experiments.grid import estimator_of
from gdpo.experiments.reading import Experiment, Measured
from gdpo.experiments.threshold import first_reached
from gdpo.recipes.read import read_recipe
from gdpo.report._charts import (
    COLOURS,
    Chart,
    Curves,
    Line,
    Points,
    binned,
    running_mean,
    smoothing,
)
from gdpo.report._html import bars, finding_row, in_words, render
from gdpo.report._summary import caution
from gdpo.report._viewer import Labels, count_shown, viewer_data
from gdpo.report.text import number, probability, visible
from gdpo.runs.directory import RunDirectory

_POINTS = 20_000
"""Of all thin lines together: they decide the size of the page."""

_LENGTHS = 2
"""Charts of the lengths."""

_LISTED = 10
"""Seeds that are written out, at most."""

_LINES = 3
"""Last lines of what a failed run printed."""


def write_report(comparison: Comparison, file: Path) -> None:
    """Write one HTML file that answers which estimator, by how much, and how sure that is.

    It is made from the run directories alone, loads nothing from anywhere, and shows what a model
    wrote as text, whatever it wrote. Without recorded rollouts it says so in their place. Only
    gdpo's own estimators are called: a user's own is code that a run names.

    Args:
        comparison: See `gdpo.experiments.analysis.analyse`. Of a single run there is nothing to
            compare; the curves, findings and rollouts are there.
        file: Replaced whole, or left as it was.

    Raises:
        DataError: A rollout file in a run directory cannot be read.
    """
    write_whole(file, _page(comparison))


def _page(comparison: Comparison) -> str:
    experiment = comparison.experiment
    analysis = analyze_experiment(experiment)
    viewer = viewer_data(analysis.sample, _labels(experiment, analysis), tuple(analysis.estimators))
    drawn = [curves(comparison, reward) for reward in experiment.rewards] + lengths(comparison)
    # Of a single run a survival curve is one step down.
    timed = experiment.rewards if len(experiment.runs) > 1 else ()
    charts = list(enumerate([*drawn, *(survival(comparison, reward) for reward in timed)]))
    failed = sum(run.state == "failed" for run in experiment.runs)
    setup = (
        experiment.name,
        f"{len(experiment.runs)} run{'s' * (len(experiment.runs) != 1)} of "
        f"{experiment.total_steps:,} steps",
        f"seed{'s' * (len(experiment.seeds) != 1)} {_listed(experiment.seeds)}",
        *([f"{failed} failed"] if failed else ()),
    )
    rewards = {reward.name: reward for reward in experiment.rewards}

    def finals(outcome: Outcome) -> str:
        reward = rewards[outcome.reward]
        return _listed(number(v, reward.low, reward.high) for v in outcome.finals.tolist())

    return render(
        "runs.html",
        data={"charts": [chart.data() for _, chart in charts], "rollouts": viewer},
        title=f"{experiment.name}: {comparison.answer}",
        setup=" · ".join(setup),
        comparison=comparison,
        experiment=experiment,
        rewards=rewards,
        caution=caution(comparison),
        colours={label: place % COLOURS for place, label in enumerate(experiment.labels)},
        differences={(d.label, d.reward): d for d in comparison.differences},
        results=[(reward, *_scale(comparison, reward)) for reward in experiment.rewards],
        few_seeds=any(outcome.final.low != outcome.final.low for outcome in comparison.outcomes),
        window=smoothing(experiment.total_steps),
        curves=charts[: len(drawn)],
        survival=charts[len(drawn) :],
        listed=_listed,
        finals=finals,
        last_lines=lambda why: "\n".join(why.strip().splitlines()[-_LINES:])[-600:],
        analysis=analysis,
        lasting=LASTING,
        findings=list(_findings(experiment, analysis)),
        sampled=count_shown(viewer),
    )


def _listed(values: Any) -> str:
    """The first of them, and how many there are."""
    every = [str(value) for value in values]
    rest = f", … ({len(every)} in all)" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + rest


def _scale(comparison: Comparison, reward: Measured) -> tuple[float, str]:
    """The largest end of an interval of a difference, and the least p-values that were possible.

    Estimators with fewer seeds have a higher one.
    """
    found = [d for d in comparison.differences if d.reward == reward.name]
    ends = [abs(end) for d in found for end in (d.final.value, d.final.low, d.final.high)]
    floors = " to ".join(map(probability, sorted({d.p_floor for d in found})))
    return max((end for end in ends if end == end), default=0.0) or 1.0, floors


def analyze_experiment(experiment: Experiment) -> TrainedAnalysis:
    """Every recorded step under the estimators of all estimators; a run is named by its place.

    An estimator stands there once for each set of options; GRPO or GDPO beside a single one. An
    estimator's name stands for the estimator with the estimator's options, where there are several. Estimators that
    differ in their weights alone are one estimator: those of each step are the recorded ones.
    """
    problems: dict[str, str] = {}
    options: dict[str, Mapping[str, object]] = {}
    runs: dict[str, set[str]] = {}
    for label in experiment.labels:
        estimator, own, problem = estimator_of(label), *_options(experiment, label)
        alike = (n for n, o in options.items() if (estimator_of(n), o) == (estimator, own))
        name = next(alike, label if estimator in options else estimator)
        options.setdefault(name, own)
        problems |= {name: problem} if problem else {}
        runs.setdefault(name, set()).update(
            str(place) for place, run in enumerate(experiment.runs) if run.label == label
        )
    if len(options) == 1:
        options["gdpo" if "grpo" in options else "grpo"] = {}
    return analyze_trained(
        [
            TrainedRun(str(place), RunDirectory(run.path).rollouts, estimator_of(run.label))
            for place, run in enumerate(experiment.runs)
        ],
        {
            name: TrainedWith(estimator_of(name), own, frozenset(runs.get(name, ())))
            for name, own in options.items()
        },
        low={reward.name: reward.low for reward in experiment.rewards},
        high={reward.name: reward.high for reward in experiment.rewards},
        problems=problems,
    )


def _options(experiment: Experiment, label: str) -> tuple[Mapping[str, object], str]:
    """The options of an estimator's estimator, as its runs' recipes have them; or why they cannot be."""
    recipes = (RunDirectory(run.path).recipe for run in experiment.runs_of(label))
    first = next((recipe for recipe in recipes if recipe.is_file()), None)
    try:
        return read_recipe(first).advantage_options if first is not None else {}, ""
    except GdpoError as error:
        return {}, str(error)


def _labels(experiment: Experiment, analysis: TrainedAnalysis) -> Labels:
    names = dict.fromkeys(name for run in analysis.runs.values() for name in run.names)
    return Labels(
        runs={str(place): visible(run.label) for place, run in enumerate(experiment.runs)},
        rewards={name: visible(name) for name in names},
        seeds={str(place): run.seed for place, run in enumerate(experiment.runs)},
    )


@dataclass(slots=True)
class _Lasting:
    """A finding that lasted in runs of an estimator, as it was when it held last."""

    finding: Finding
    steps: int = 0
    """In which it held, over all runs."""
    spans: list[tuple[int, list[Span]]] = field(default_factory=list[tuple[int, list[Span]]])
    """With the seed of the run."""


def _findings(
    experiment: Experiment, analysis: TrainedAnalysis
) -> Iterator[tuple[str, bool, list[dict[str, Any]]]]:
    """Estimator by estimator whether it has rollouts, and what lasted in any run, worst first."""
    for label in experiment.labels:
        runs = [
            (run.seed, analysis.runs[str(place)])
            for place, run in enumerate(experiment.runs)
            if run.label == label and str(place) in analysis.runs
        ]
        lasting: dict[tuple[Kind, tuple[str, ...]], _Lasting] = {}
        for seed, run in runs:
            numbers = run.steps
            for held in (held for held in run.findings() if held.lasting):
                finding = held.finding
                found = lasting.setdefault((finding.kind, finding.rewards), _Lasting(finding))
                found.finding = finding
                found.steps += held.steps
                spans = [(numbers[first - 1], numbers[last - 1]) for first, last in held.spans]
                found.spans.append((seed, spans))
        worst_first = sorted(
            lasting.values(),
            key=lambda found: (found.finding.rank[0], -found.steps, found.finding.rank[1]),
        )
        rows = [
            finding_row(
                found.finding,
                [
                    (bars(spans, experiment.total_steps), f"seed {seed}: {in_words(spans)}")
                    for seed, spans in sorted(found.spans)
                ],
            )
            for found in worst_first
        ]
        yield label, bool(runs), rows


def curves(comparison: Comparison, reward: Measured) -> Chart:
    """Median over the seeds, the quarters around it, and every seed."""
    experiment = comparison.experiment
    points = _points(comparison)
    drawn = [
        _line(label, place, experiment.curves(label, reward.name), points)
        for place, label in enumerate(experiment.labels)
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
    if not any(run.lengths for run in comparison.experiment.runs):
        return []
    return [
        _length(comparison, "mean", "mean length, tokens"),
        _length(comparison, "max", "longest, tokens"),
    ]


def _length(comparison: Comparison, figure: str, label: str) -> Chart:
    experiment = comparison.experiment
    points = _points(comparison)
    drawn = [
        _line(label, place, experiment.lengths(label, figure), points)
        for place, label in enumerate(experiment.labels)
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
    labels = comparison.experiment.labels
    outcomes = [comparison.outcome(label, reward.name) for label in labels]
    return Chart(
        title=reward.name,
        label="share of runs that are not there yet",
        x=grid,
        low=0.0,
        high=1.0,
        lines=[
            _stairs(outcome, place, grid, _censored(comparison, outcome.label, reward))
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


def _line(label: str, place: int, table: Curves, points: int) -> Line:
    """Median over the seeds, the quarters around it, and every seed."""
    if not table.shape[1]:
        table = np.full((len(table), 1), np.nan)
    seeds = binned(running_mean(table, smoothing(table.shape[1])), points)
    low, value, high = _quartiles(seeds)
    counts = np.sum(np.isfinite(seeds), axis=0)
    return Line(
        label=label,
        colour=place % COLOURS,
        value=value,
        low=low,
        high=high,
        thin=seeds if len(seeds) > 1 else seeds[:0],
        note=tuple("" if n == len(seeds) else f"{n} of {len(seeds)} runs" for n in counts),
    )


def _censored(comparison: Comparison, label: str, reward: Measured) -> tuple[float, ...]:
    """Where the runs ended that did not come to the threshold."""
    threshold = comparison.threshold(reward)
    runs = [run for run in comparison.experiment.runs_of(label) if run.steps]
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
        label=outcome.label,
        colour=place % COLOURS,
        value=share[at],
        low=bounds[0],
        high=bounds[1],
        censored=censored if np.isfinite(share[at]).all() else (),
    )


def _quartiles(seeds: Curves) -> Sequence[Points]:
    if not len(seeds):
        return [np.full(seeds.shape[1], np.nan)] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return list(np.nanquantile(seeds, [0.25, 0.5, 0.75], axis=0))
