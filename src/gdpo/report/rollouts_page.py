"""The page of the rollouts that any framework left behind: what each reward did, and when."""

from pathlib import Path
from typing import Any

from gdpo._files import write_whole
from gdpo.analysis import Analysis
from gdpo.diagnostics.watch import LASTING
from gdpo.report import _parts as parts
from gdpo.report import _rollouts_parts as of_rollouts
from gdpo.report._page import framed
from gdpo.report._rollouts_sample import sample_of
from gdpo.report._sample import Sample
from gdpo.report.text import breakable, embedded, html, visible

MARK = '<meta name="generator" content="gdpo analyze">'
"""What tells the page from any other file."""


def write_rollouts_report(analysis: Analysis, file: Path, **reading: Any) -> None:
    """Write one HTML file that says what each reward did, and loads nothing from anywhere.

    Args:
        analysis: See `gdpo.analysis.analyze`; with a sample, some rollouts are shown with their
            texts, which are read from their files now.
        file: Replaced whole, or left as it was.
        reading: `columns` and `load_pt`, as the files were read with.
    """
    write_whole(file, _page(analysis, **reading))


def _page(analysis: Analysis, **reading: Any) -> str:
    shown = of_rollouts.labels(analysis)
    runs = [run for run in analysis.runs if run.run in shown.runs]
    sampled = sample_of(analysis, shown, **reading)
    curves = of_rollouts.mean_charts(runs, shown)
    influence = of_rollouts.influence_charts(runs, shown)
    lengths = of_rollouts.length_charts(analysis.lengths, shown)
    charts = [*curves, *influence, *lengths]
    answer = " ".join(of_rollouts.sentences(analysis))
    question = f"What did each reward do in {_where(analysis)}?"
    return framed(
        "rollouts.html",
        mark=MARK,
        title=html(f"{question} {answer}"[:300]),
        setup=html(_setup(analysis)),
        question=breakable(question),
        answer=breakable(answer),
        rewards="".join(of_rollouts.rewards_table(run, shown) for run in runs) + _more(analysis),
        lasting=LASTING,
        findings="".join(of_rollouts.findings(run, shown) for run in runs),
        smoothing=of_rollouts.smoothing_note(runs),
        curves=parts.figures(curves, 0),
        influence=parts.figures(influence, len(curves)),
        correlation="".join(of_rollouts.correlation_table(run, shown) for run in runs),
        lengths=_lengths(parts.figures(lengths, len(curves) + len(influence))),
        estimators=of_rollouts.estimators(analysis),
        read=of_rollouts.what_was_read(analysis),
        sampled=_sampled(analysis, sampled),
        data=embedded({"charts": [chart.data() for chart in charts], "rollouts": sampled.data}),
    )


def _where(analysis: Analysis) -> str:
    paths = analysis.report.paths
    return visible(str(paths[0]))[-120:] if len(paths) == 1 else f"{len(paths):,} paths"


def _setup(analysis: Analysis) -> str:
    report = analysis.report
    runs, steps = len(analysis.runs), sum(len(run.steps) for run in analysis.runs)
    return " · ".join(
        (
            ", ".join(report.formats),
            f"{runs:,} run{'s' * (runs != 1)}, {steps:,} step{'s' * (steps != 1)}",
            f"{report.rows:,} rows = {report.read:,} read + {report.skipped:,} skipped",
            f"{report.groups:,} groups",
        )
    )


def _more(analysis: Analysis) -> str:
    """What the page has no room for."""
    names = {name for run in analysis.runs for name in run.names}
    left = [
        f"{count - most:,} more {what}"
        for count, most, what in (
            (len(analysis.runs), of_rollouts.RUNS, "runs"),
            (len(names), of_rollouts.REWARDS, "rewards"),
        )
        if count > most
    ]
    return f'<p class="small">{" and ".join(left)} are in --json.</p>' if left else ""


def _lengths(charts: str) -> str:
    if not charts:
        return ""
    return (
        '<section aria-labelledby="lengths"><h2 id="lengths">Each reward by the length of the '
        'completion</h2><p class="small">Mean over all rollouts of so many tokens.</p>'
        f'<div class="figures">{charts}</div></section>'
    )


def _sampled(analysis: Analysis, sampled: Sample) -> str:
    if not sampled.rollouts:
        return "No texts could be read."
    return (
        f"{sampled.rollouts:,} of {analysis.report.read:,} rollouts are shown here: groups spread "
        "over the steps, and those that the estimators disagree on most. Disagreement: the range "
        "of the estimators' advantages, each divided by their root mean square over the step."
    )
