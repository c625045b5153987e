"""Writes the page of runs that gdpo trained: which estimator is better, and how certain that is."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gdpo._files import write_whole
from gdpo.diagnostics.watch import LASTING
from gdpo.experiments.comparison import Comparison, Outcome, details, headline
from gdpo.experiments.reading import Experiment, Measured
from gdpo.experiments.statistics import FEWEST_SEEDS
from gdpo.report._charts import smoothing
from gdpo.report._html import bars, finding_row, render
from gdpo.report._run_contents import Contents, Lasting, read_contents
from gdpo.report._run_tables import off_record
from gdpo.report._summary import caution
from gdpo.report._viewer import Labels, count_shown, viewer_data
from gdpo.report.colours import styles
from gdpo.report.export import check_destination, write_export
from gdpo.report.text import number, probability, visible

_LISTED = 10
"""Maximum number of seeds that are listed one by one."""

_LINES = 3
"""Last lines of a failed run's output that are shown."""


def write_report(comparison: Comparison, file: Path, *, export: Path | None = None) -> None:
    """Write a self-contained HTML file that shows which estimator is better, and how certain it is.

    The page is made from the run directories only. It loads nothing, and shows text that a model
    wrote as text. Runs without recorded rollouts are named. Only gdpo's own estimators are called;
    an estimator of the user is code that a run names, and is not imported.

    Args:
        comparison: See `gdpo.experiments.analysis.analyse`. For a single run there is nothing to
            compare; the page shows its curves, findings and rollouts.
        file: The HTML file. An existing file is replaced as a whole.
        export: Folder for every figure (SVG, and PNG if matplotlib is installed) and every table
            (CSV, Markdown, LaTeX). It must not exist, or be empty. None: nothing is exported.

    Raises:
        ConfigError: If `export` exists and is not an empty folder, or is the folder of `file`.
            Nothing is written then.
        DataError: If a rollout file in a run directory cannot be read.
    """
    if export is not None:
        check_destination(export, page=file)
    contents = read_contents(comparison)
    write_whole(file, _page(contents))
    if export is not None:
        write_export(contents, export)


def _page(contents: Contents) -> str:
    comparison, analysis = contents.comparison, contents.analysis
    experiment = comparison.experiment
    viewer = viewer_data(analysis.sample, _labels(contents), tuple(analysis.estimators))
    drawn = [*contents.rewards, *contents.lengths]
    charts = list(enumerate([*drawn, *contents.times]))
    rewards = {reward.name: reward for reward in experiment.rewards}

    def finals(outcome: Outcome) -> str:
        reward = rewards[outcome.reward]
        return _listed(number(v, reward.low, reward.high) for v in outcome.finals.tolist())

    return render(
        "runs.html",
        data={"charts": [chart.data() for _, chart in charts], "rollouts": viewer},
        title=f"{experiment.name}: {headline(comparison)}",
        setup=_setup(experiment),
        comparison=comparison,
        experiment=experiment,
        rewards=rewards,
        headline=headline(comparison),
        details=details(comparison),
        caution=caution(comparison),
        colours={label: each.place for label, each in styles(experiment.labels).items()},
        differences={(d.label, d.reward): d for d in comparison.differences},
        results=[(reward, *_scale(comparison, reward)) for reward in experiment.rewards],
        fewest=FEWEST_SEEDS,
        few_seeds=any(outcome.final.low != outcome.final.low for outcome in comparison.outcomes),
        window=smoothing(experiment.total_steps),
        curves=charts[: len(drawn)],
        survival=charts[len(drawn) :],
        no_bands=all(outcome.runs < FEWEST_SEEDS for outcome in comparison.outcomes),
        sentences=contents.sentences,
        listed=_listed,
        finals=finals,
        last_lines=lambda why: "\n".join(why.strip().splitlines()[-_LINES:])[-600:],
        analysis=analysis,
        off_record=off_record,
        lasting=LASTING,
        findings=[
            (label, recorded, [_finding(each, experiment) for each in found])
            for label, recorded, found in contents.findings
        ],
        sampled=count_shown(viewer),
    )


def _setup(experiment: Experiment) -> str:
    runs, failed = len(experiment.runs), sum(run.state == "failed" for run in experiment.runs)
    return " · ".join(
        (
            experiment.name,
            f"{runs} run{'s' * (runs != 1)} of {experiment.total_steps:,} steps",
            f"seed{'s' * (len(experiment.seeds) != 1)} {_listed(experiment.seeds)}",
            *([f"{failed} failed"] if failed else ()),
        )
    )


def _listed(values: Iterable[Any]) -> str:
    """Return the first values, and how many there are."""
    every = [str(value) for value in values]
    rest = f", … ({len(every)} in all)" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + rest


def _scale(comparison: Comparison, reward: Measured) -> tuple[float, str]:
    """Return the largest end of a difference's interval, and the smallest attainable p-values.

    Estimators with fewer seeds have a higher smallest p-value.
    """
    found = [d for d in comparison.differences if d.reward == reward.name]
    ends = [abs(end) for d in found for end in (d.final.value, d.final.low, d.final.high)]
    floors = " to ".join(map(probability, sorted({d.p_floor for d in found})))
    return max((end for end in ends if end == end), default=0.0) or 1.0, floors


def _labels(contents: Contents) -> Labels:
    names = dict.fromkeys(n for run in contents.analysis.runs.values() for n in run.names)
    runs = contents.comparison.experiment.runs
    return Labels(
        runs={str(place): visible(run.label) for place, run in enumerate(runs)},
        rewards={name: visible(name) for name in names},
        seeds={str(place): run.seed for place, run in enumerate(runs)},
    )


def _finding(found: Lasting, experiment: Experiment) -> dict[str, Any]:
    shapes = [bars(spans, experiment.total_steps) for _, spans in sorted(found.spans)]
    return finding_row(found.finding, list(zip(shapes, found.when(), strict=True)))
