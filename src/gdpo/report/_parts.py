"""The page below its head: charts, findings over time, and what every estimator would have done."""

from collections.abc import Sequence

from gdpo.diagnostics.diagnosis import Severity
from gdpo.diagnostics.watch import LASTING, Span
from gdpo.experiments.comparison import Comparison
from gdpo.report._charts import Chart
from gdpo.report._head import arm_name, swatch, table
from gdpo.report._lasting import Lasting
from gdpo.report._replay import Replay, agreements
from gdpo.report.text import html, number

_STRIP = 160
"""Width of the picture of when a finding held."""


def legend(comparison: Comparison) -> str:
    """Which line is which arm."""
    arms = "".join(
        f"<li>{swatch(place)} <bdi>{html(arm)}</bdi></li>"
        for place, arm in enumerate(comparison.experiment.arms)
    )
    return f'<ul class="legend" aria-label="lines">{arms}</ul>'


def figures(charts: Sequence[Chart], first: int) -> str:
    """Charts side by side; `first` is the number of the first among all of the page's."""
    return "".join(_figure(chart, first + i) for i, chart in enumerate(charts))


def survival_section(charts: Sequence[Chart], first: int) -> str:
    """How soon the runs came to the threshold; nothing of a single run."""
    if not charts:
        return ""
    return (
        '<section aria-labelledby="survival"><h2 id="survival">How soon the runs came there</h2>'
        '<p class="small">Share of runs that have not come to the threshold (Kaplan–Meier), with a '
        "band of 95&nbsp;%. A cross: a run ended without coming there.</p>"
        f'<div class="figures">{figures(charts, first)}</div></section>'
    )


def _figure(chart: Chart, place: int) -> str:
    title, unit = f"{html(chart.title)}: {html(chart.label)}", html(chart.unit)
    names = "".join(
        f"<li>{swatch(line.colour)} <bdi>{html(line.arm)}</bdi> <output></output></li>"
        for line in chart.lines
    )
    return (
        f"<figure><figcaption><b><bdi>{html(chart.title)}</bdi></b> {html(chart.label)}"
        f'</figcaption><div class="chart" role="slider" tabindex="0" data-chart="{place}" '
        f'aria-label="{title}; arrow keys choose a {unit}" aria-valuemin="{chart.x[0]:g}" '
        f'aria-valuemax="{chart.x[-1]:g}" aria-valuenow="{chart.x[-1]:g}" '
        f'aria-valuetext="no {unit} chosen">{chart.svg()}</div>'
        f'<div class="values"><span class="at">{html(chart.rest)}</span><ul>{names}</ul></div>'
        "</figure>"
    )


def findings(comparison: Comparison, found: Sequence[Lasting], replay: Replay) -> str:
    """Arm by arm what lasted, worst first, when, and what to do."""
    if not replay.steps:
        return "<p>No rollouts were recorded, so there is nothing to diagnose.</p>"
    return "".join(
        _findings_of(comparison, arm, [f for f in found if f.arm == arm], replay)
        for arm in comparison.experiment.arms
    )


def _findings_of(comparison: Comparison, arm: str, found: Sequence[Lasting], replay: Replay) -> str:
    if not any(replayed.run.arm == arm for replayed in replay.steps):
        return f"<p>{arm_name(comparison, arm)}: no rollouts were recorded.</p>"
    if not found:
        return f"<p>{arm_name(comparison, arm)}: nothing held for {LASTING} steps in a row.</p>"
    rows = [_finding_row(comparison, lasting) for lasting in found]
    headings = ["finding", "when", "what, when it held last", "what to do"]
    return table(headings, rows, f"{arm_name(comparison, arm)}")


def _finding_row(comparison: Comparison, found: Lasting) -> list[str]:
    finding = found.finding
    mark = "bad" if finding.severity is Severity.WARNING else "note"
    about = ", ".join(f"<bdi>{html(name)}</bdi>" for name in finding.rewards)
    when = "".join(
        f"<li>{strip(spans, comparison.experiment.total_steps)} seed {seed}: "
        f"{_in_words(spans)}</li>"
        for seed, spans in sorted(found.spans.items())
    )
    return [
        f'<span class="{mark}">{finding.severity.value}</span> '
        f"{finding.kind.value.replace('_', ' ')} <span>{about}</span>",
        f'<ul class="when">{when}</ul>',
        f"<bdi>{html(finding.message)}</bdi>",
        f"<bdi>{html(finding.remedy)}</bdi>",
    ]


def strip(spans: Sequence[Span], total: int) -> str:
    """When it held, as bars over the steps of the run."""
    scale = _STRIP / max(1, total)
    bars = "".join(
        f'<path d="M{(first - 1) * scale:.1f} 5H{max(last * scale, (first - 1) * scale + 1):.1f}"/>'
        for first, last in spans
    )
    return f'<svg class="strip" viewBox="0 0 {_STRIP} 10" aria-hidden="true">{bars}</svg>'


def _in_words(spans: Sequence[Span]) -> str:
    longest = max(spans, key=lambda span: span[1] - span[0])
    words = f"steps {longest[0]} to {longest[1]}"
    if len(spans) == 1:
        return words
    return f"{words}, and on and off from {spans[0][0]} to {spans[-1][1]}"


def estimators(comparison: Comparison, replay: Replay) -> str:
    """How the estimators' advantages differ on the same rollouts."""
    if not replay.steps:
        return "<p>No rollouts were recorded, so there are no advantages to compare.</p>"
    first, arms = replay.estimators[0], comparison.experiment.arms
    rows = [
        [
            f"{swatch(arms.index(a.estimator)) if a.estimator in arms else ''} "
            f"<bdi>{html(a.estimator)}</bdi>",
            number(a.correlation),
            percentage(a.opposite),
            percentage(a.zero),
            "–" if a.off != a.off else f"{a.off:.1e}",
        ]
        for a in agreements(replay)
    ]
    headings = [
        "estimator",
        f"correlation with {html(first)}",
        f"opposite sign to {html(first)}",
        "advantage exactly 0",
        "off the record by at most",
    ]
    looked_at = f"{replay.rollouts:,} rollouts of {len(replay.steps):,} steps"
    if len(replay.steps) < replay.recorded_steps:
        looked_at += f", spread evenly over {replay.recorded_steps:,}"
    problems = "".join(
        f'<p class="bad"><bdi>{html(name)}</bdi> could not be replayed: <bdi>{html(why)}</bdi></p>'
        for name, why in replay.problems.items()
    )
    own = "".join(
        f"<p><bdi>{html(name)}</bdi> is no estimator of gdpo's own, and a report runs no code that "
        "a run names: it was not given other runs' rollouts, and its row is of the advantages that "
        "its own runs recorded.</p>"
        for name in replay.not_called
    )
    return table(headings, rows, looked_at) + own + problems


def percentage(share: float) -> str:
    return "–" if share != share else f"{100 * share:.1f}&nbsp;%"
