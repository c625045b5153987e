"""Writes the page about runs that gdpo trained."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from gdpo._files import write_whole
from gdpo._text import visible
from gdpo.diagnostics.account import WINDOW
from gdpo.diagnostics.watch import LASTING
from gdpo.lab.experiments.comparison import Comparison, Outcome, further, headline
from gdpo.lab.experiments.reading import Experiment, Measured
from gdpo.lab.experiments.statistics import FEWEST_SEEDS
from gdpo.lab.report._run_charts import account, curves, lengths, survival, weights
from gdpo.lab.report._run_contents import analyze_experiment, lasting_findings
from gdpo.lab.report._summary import caution, setup
from gdpo.lab.report.export import check_destination, write_export
from gdpo.lab.report.trained import TrainedAnalysis
from gdpo.report.blocks import Findings
from gdpo.report.charts import smoothing
from gdpo.report.colours import styles
from gdpo.report.html import render
from gdpo.report.text import as_number, number, probability
from gdpo.report.viewer import Labels, viewer_data

_LISTED = 10
"""Maximum number of seeds that are listed individually."""

_LINES = 3
"""Number of last output lines to show for a failed run."""


def write_report(comparison: Comparison, file: Path, *, export: Path | None = None) -> None:
    """Write a self-contained HTML file that shows which estimator is better.

    All data comes from the run directories. The page loads no external files, and escapes a model's
    text. A user's own estimator is never imported or recomputed, because a run directory could
    refer to arbitrary code.

    Args:
        comparison: The result of `gdpo.lab.experiments.analysis.analyse`, even for a single run.
        file: The HTML file, replaced if it exists.
        export: New or empty folder for the numbers as CSV files. None: no export.

    Raises:
        ConfigError: If `export` exists and is not an empty folder. Then nothing is written.
        DataError: If a rollout file in a run directory cannot be read.
    """
    if export is not None:
        check_destination(export)
    write_whole(file, _page(comparison))
    if export is not None:
        write_export(comparison, export)


def _page(comparison: Comparison) -> str:
    experiment = comparison.experiment
    analysis = analyze_experiment(experiment)
    viewer = viewer_data(analysis.sample, _labels(experiment, analysis), tuple(analysis.estimators))
    drawn = [curves(comparison, reward) for reward in experiment.rewards] + lengths(comparison)
    times = [survival(comparison, reward) for reward in experiment.rewards]
    timed = [chart for chart in times if chart is not None]
    moved, changed = account(comparison), weights(comparison)
    charts = [*drawn, *timed, *changed, *moved]
    rewards = {reward.name: reward for reward in experiment.rewards}

    def finals(outcome: Outcome) -> str:
        reward = rewards[outcome.reward]
        return _listed(number(v, reward.low, reward.high) for v in outcome.finals.tolist())

    return render(
        "runs.html",
        package="gdpo.lab.report",
        data={"charts": [chart.data() for chart in charts], "rollouts": viewer},
        charts=charts,
        title=f"{experiment.name}: {headline(comparison)}",
        mark="",
        question=experiment.name,
        setup=setup(experiment),
        comparison=comparison,
        experiment=experiment,
        rewards=rewards,
        headline=headline(comparison),
        further=further(comparison),
        caution=caution(comparison),
        colours={label: each.place for label, each in styles(experiment.labels).items()},
        differences=comparison.by_place,
        results=[(reward, *_scale(comparison, reward)) for reward in experiment.rewards],
        fewest=FEWEST_SEEDS,
        few_seeds=any(outcome.final.low != outcome.final.low for outcome in comparison.outcomes),
        window=smoothing(experiment.total_steps),
        curves=drawn,
        survival=timed,
        weights=changed,
        window_steps=WINDOW,
        account=moved,
        weight_of=partial(_weight, experiment),
        no_bands=all(outcome.runs < FEWEST_SEEDS for outcome in comparison.outcomes),
        listed=_listed,
        finals=finals,
        last_lines=lambda why: "\n".join(why.strip().splitlines()[-_LINES:])[-600:],
        analysis=analysis,
        # Differences from recorded advantages have two significant digits.
        off_record=lambda off: "–" if off is None else as_number(off, ".1e"),
        lasting=LASTING,
        findings=[
            (label, recorded, Findings(found))
            for label, recorded, found in lasting_findings(experiment, analysis)
        ],
        sampled=viewer["count"],
        read=analysis.rollouts,
        spread="evenly over runs and steps",
    )


def _weight(experiment: Experiment, reward: Measured) -> str:
    """Return the weight of a reward, or a word if it differs between labels or steps."""
    changes = {reward.name in run.weights for run in experiment.runs}
    if reward.weight is None or len(changes) > 1:
        return "varied"
    return "changing" if changes == {True} else as_number(reward.weight, "g")


def _listed(values: Iterable[Any]) -> str:
    """Return the first values, and the total number if some are omitted."""
    every = [str(value) for value in values]
    rest = f", … ({len(every)} in all)" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + rest


def _scale(comparison: Comparison, reward: Measured) -> tuple[float, str]:
    """Return the scale for plots of differences, and the smallest attainable p-values as text.

    The scale is the largest absolute difference or bound of its interval.
    """
    found = [d for d in comparison.differences if d.reward == reward.name]
    ends = [abs(end) for d in found for end in (d.final.value, d.final.low, d.final.high)]
    floors = " to ".join(map(probability, sorted({d.p_floor for d in found})))
    return max((end for end in ends if end == end), default=0.0) or 1.0, floors


def _labels(experiment: Experiment, analysis: TrainedAnalysis) -> Labels:
    names = dict.fromkeys(n for run in analysis.runs.values() for n in run.names)
    runs = experiment.runs
    return Labels(
        runs={str(place): visible(run.label) for place, run in enumerate(runs)},
        rewards={name: visible(name) for name in names},
        seeds={str(place): run.seed for place, run in enumerate(runs)},
    )
