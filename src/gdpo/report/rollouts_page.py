"""Writes the page of `gdpo analyze`: the influence of each reward over a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from gdpo._files import write_whole
from gdpo._text import capitalized, counted, one_line, visible
from gdpo.analysis import Analysis
from gdpo.analysis.replay import RECORDED
from gdpo.analysis.run import LengthBins, RunAnalysis
from gdpo.diagnostics.diagnosis import Severity, interval, percent
from gdpo.diagnostics.watch import LASTING
from gdpo.report.charts import COLOURS, Chart, Line, Points, binned, running_mean, smoothing
from gdpo.report.html import bars, finding_row, in_words, render, shortened
from gdpo.report.summaries import INTERVALS, advantages_from, scalar_only, when_found, with_options
from gdpo.report.text import as_number, as_share
from gdpo.report.viewer import Labels, count_shown, viewer_data

MARK = '<meta name="generator" content="gdpo analyze">'
"""Identifies a page that this module wrote."""

_RUNS, _REWARDS, _ESTIMATORS = 6, 24, 4
"""Maximum number of runs, of rewards, and of estimators in the table of rollouts."""

_POINTS = 16_000
"""Maximum total number of points in all lines, which limits the size of the page."""

_FINDINGS, _NOTICES = 40, 50
"""Maximum number of findings per run, and of notices for all files."""

_TURNS = 40
"""Maximum number of turns in a table or chart."""

_ROUNDING = 1e-12
"""A curve that varies by less than this fraction of its magnitude is drawn as constant."""


def write_rollouts_report(analysis: Analysis, file: Path, **reading: Any) -> None:
    """Write a self-contained HTML page about an analysis.

    Args:
        analysis: The result of `gdpo.analysis.analyze`. The page shows its sampled rollouts, whose
            texts are read from the files again.
        file: Path of the page. A failure leaves an existing file unchanged.
        reading: Options `columns` and `load_pt` that the rollout files were read with.
    """
    from markupsafe import Markup

    report, shown = analysis.report, _labels(analysis)
    runs = [run for run in analysis.runs if run.run in shown.runs]
    viewer = viewer_data(analysis.sample, shown, _estimators(analysis), **reading)
    points = min(400, max(20, _POINTS // (3 * len(runs) * max(1, len(shown.rewards)))))
    curves = [
        _chart(
            label,
            "mean reward",
            [(r, shown.runs[r.run], r.over_time(name, "mean")) for r in runs if name in r.names],
            points,
        )
        for name, label in shown.rewards.items()
    ]
    influence = _influence_charts(runs, shown, points)
    lengths, turns = _length_charts(analysis.lengths, shown), _turn_charts(runs, shown)
    drawn = [*curves, *influence, *lengths, *turns]
    charts, others = list(enumerate(drawn)), len(curves) + len(influence)
    path = visible(str(report.paths[0]))[-120:]
    where = path if len(report.paths) == 1 else f"{len(report.paths):,} paths"
    question = f"Influence of each reward in {where}"
    answer = " ".join(_sentences(analysis))
    problems = (f"{why} ({count:,} rollouts)" for why, count in analysis.problems.items())
    lines = [*report.lines(), *problems]
    page = render(
        "rollouts.html",
        data={"charts": [chart.data() for chart in drawn], "rollouts": viewer},
        mark=Markup(MARK),
        title=f"{question} {answer}"[:300],
        setup=_setup(analysis),
        question=question,
        answer=answer,
        analysis=analysis,
        labels=shown,
        runs=runs,
        made_of=_made_of,
        left_out=_left_out(analysis),
        intervals=INTERVALS,
        lasting=LASTING,
        verdicts=[analysis.verdict(run) for run in runs],
        findings=[_findings(run) for run in runs],
        window=smoothing(max(len(run.steps) for run in runs)),
        curves=charts[: len(curves)],
        influence=charts[len(curves) : others],
        lengths=charts[others : others + len(lengths)],
        turns=charts[others + len(lengths) :],
        turn_tables=[_turn_table(run, shown) for run in runs if len(run.turns()) > 1],
        figure=as_number,
        share=as_share,
        interval=interval,
        correlation=partial(as_number, form="z.3f"),
        read=lines[:_NOTICES],
        unlisted=max(0, len(lines) - _NOTICES),
        sampled=count_shown(viewer),
    )
    write_whole(file, page)


def _labels(analysis: Analysis) -> Labels:
    runs = [run.run for run in analysis.runs[:_RUNS]]
    rewards = dict.fromkeys(name for run in analysis.runs[:_RUNS] for name in run.names)
    path = analysis.report.paths[0]
    called = {"": path.stem if path.is_file() else path.absolute().name}
    return Labels(_distinct(runs, called), _distinct(list(rewards)[:_REWARDS], {}))


def _distinct(names: Sequence[str], called: Mapping[str, str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for place, name in enumerate(names):
        label = shortened(visible(called.get(name, name)))
        labels[name] = f"{label} ({place + 1})" if label in labels.values() else label
    return labels


def _estimators(analysis: Analysis) -> list[str]:
    every = list(dict.fromkeys(name for group in analysis.sample for name in group.advantages))
    first = [name for name in (RECORDED, *every[:1], "grpo", "gdpo") if name in every]
    return list(dict.fromkeys((*first, *every)))[:_ESTIMATORS]


def _setup(analysis: Analysis) -> str:
    report = analysis.report
    runs, steps = len(analysis.runs), sum(len(run.steps) for run in analysis.runs)
    return " · ".join(
        (
            ", ".join(report.formats),
            f"{counted(runs, 'run')}, {counted(steps, 'step')}",
            f"{report.rows:,} rows: {report.read:,} read, {report.skipped:,} skipped",
            f"{report.groups:,} groups",
        )
    )


def _made_of(run: RunAnalysis) -> str:
    more = f", {run.left_out:,} more not trained on" if run.left_out else ""
    return (
        f"{len(run.steps):,} steps, {run.rollouts:,} rollouts{more}; weights: {run.weights_from}; "
        f"advantages: {advantages_from(run)}"
    )


def _left_out(analysis: Analysis) -> str:
    names = {name for run in analysis.runs for name in run.names}
    counts = ((len(analysis.runs), _RUNS, "runs"), (len(names), _REWARDS, "rewards"))
    left = [f"{count - most:,} more {what}" for count, most, what in counts if count > most]
    return f"{' and '.join(left)} are not shown; --output json prints all." if left else ""


def _findings(run: RunAnalysis) -> tuple[RunAnalysis, list[dict[str, Any]], int]:
    found = [held for held in run.findings() if held.lasting]
    rows: list[dict[str, Any]] = []
    numbers = run.steps
    for held in found[:_FINDINGS]:
        words = in_words([(numbers[first - 1], numbers[last - 1]) for first, last in held.spans])
        when = bars(held.spans[:400], held.of), f"{words}: {held.steps:,} of {held.of:,}"
        finding = replace(held.finding, remedy=with_options(held.finding.remedy))
        rows.append(finding_row(finding, [when]))
    return run, rows, len(found) - len(rows)


def _sentences(analysis: Analysis) -> Iterator[str]:
    """Yield the conclusion: the worst lasting finding, and how the estimators differ."""
    found = analysis.findings()
    warnings = [pair for pair in found if pair[1].finding.severity is Severity.WARNING]
    if warnings:
        run, held = warnings[0]
        where = f"{shortened(visible(run.run))}: " if len(analysis.runs) > 1 else ""
        message = shortened(visible(held.finding.message), 600)
        when = when_found(run, held)
        sentence = f"{where}{when}{message}"
        yield f"{capitalized(sentence)}."
    if len(warnings) > 1:
        yield f"{counted(len(warnings) - 1, 'more warning')} below."
    if not warnings:
        notes = f"; {len(found)} notes are below" if len(found) > 1 else ""
        verdict = analysis.worst_verdict()
        unknown = shortened(visible(verdict.unknown if verdict else ""), 600)
        yield f"No warning, but {unknown}." if unknown else f"No warning{notes}."
    yield from _estimator_sentences(analysis)


def _estimator_sentences(analysis: Analysis) -> Iterator[str]:
    others = [r for r in analysis.replayed if r.estimator != r.baseline and r.steps]
    if others and analysis.report.scalar_only:
        sentence = scalar_only(analysis.report)
        yield f"{capitalized(sentence)}."
    elif analysis.weights_to_give:
        yield (
            "No estimator gives the recorded advantages with weights of 1. If the run used other "
            "weights, rerun with --weights: the shares on this page depend on them."
        )
        return
    elif others and all(r.same for r in others):
        names = ", ".join(one_line(r.estimator) for r in others)
        yield f"The advantages of {names} equal those of the baseline up to a factor."
    for each in others:
        if each.estimator == "gdpo" and not each.same:
            yield (
                f"Compared with the baseline ({one_line(each.baseline)}), the advantages of gdpo "
                f"have the opposite sign for {percent(each.sign_flips)} of the rollouts."
            )


def _influence_charts(runs: Sequence[RunAnalysis], shown: Labels, points: int) -> list[Chart]:
    charts: list[Chart] = []
    for run in runs:
        names = [name for name in run.names if name in shown.rewards]
        title = shown.runs[run.run] or "all rewards"
        lines: list[Line] = []
        for place, name in enumerate(names):
            value = run.over_time(name, "influence_share")
            margin = run.over_time(name, "influence_margin")
            table = np.stack([value, value - margin, value + margin])
            drawn = np.clip(binned(table, points), -1.0, 1.0)
            lines.append(Line(shown.rewards[name], place % COLOURS, *drawn))
        x = binned(np.array(run.steps, np.float64)[None], points)[0]
        charts.append(_drawn(title, "influence share", x, lines, low=0.0))
        constant = [
            (run, shown.rewards[n], run.over_time(n, "zero_variance_groups")) for n in names
        ]
        charts.append(_chart(title, "zero-variance groups", constant, points, low=0.0))
    return charts


def _length_charts(lengths: Mapping[str, LengthBins], shown: Labels) -> list[Chart]:
    """Return a chart per reward of its mean by completion length, with a line per run."""
    charts: list[Chart] = []
    for name, label in shown.rewards.items():
        found = {run: bins for run, bins in lengths.items() if run in shown.runs}
        found = {run: bins for run, bins in found.items() if np.any(bins.counts(name))}
        width = max((bins.width for bins in found.values()), default=0.0)
        found = {run: bins.widened(width) for run, bins in found.items()}
        x, lines = max((bins.middles for bins in found.values()), key=len, default=None), []
        if x is None:
            continue
        for place, (run, bins) in enumerate(found.items()):
            shorter = len(x) - len(means := bins.means(name))  # other runs have longer completions
            notes = [
                f"({n:,.0f} rollout{'s' * (n != 1)})" if n else ""
                for n in bins.counts(name).tolist()
            ]
            means = np.pad(means, (0, shorter), constant_values=nan)
            lines.append(
                Line(shown.runs[run], place % COLOURS, means, note=(*notes, *[""] * shorter))
            )
        chart = _drawn(label, "mean reward", x, lines)
        charts.append(replace(chart, unit="tokens", rest="the longest"))
    return charts


def _chart(
    title: str,
    label: str,
    curves: Iterable[tuple[RunAnalysis, str, Points]],
    points: int,
    *,
    low: float | None = None,
) -> Chart:
    """Return a chart whose horizontal axis has the steps of all its runs."""
    found = list(curves)
    steps = np.unique(np.concatenate([np.array(run.steps, np.float64) for run, _, _ in found]))
    lines: list[Line] = []
    for place, (run, name, values) in enumerate(found):
        placed = np.full(len(steps), nan)
        placed[np.searchsorted(steps, run.steps)] = values
        (drawn,) = binned(running_mean(placed[None], smoothing(len(steps))), points)
        lines.append(Line(name, place % COLOURS, drawn))
    return _drawn(title, label, binned(steps[None], points)[0], lines, low=low)


def _drawn(
    title: str,
    label: str,
    x: Points,
    lines: Sequence[Line],
    *,
    low: float | None = None,
    high: float | None = None,
) -> Chart:
    """Return a chart whose vertical axis has all values, and `low` and `high`, if given."""
    drawn = (each for line in lines for each in (line.value, line.low, line.high))
    values = np.concatenate([each for each in drawn if each is not None])
    known = values[np.isfinite(values)]
    ends = [each for each in (low, high) if each is not None]
    known = np.append(known if len(known) else [0.0, 1.0], ends)
    least, most = float(known.min()), float(known.max())
    size = max(abs(least), abs(most))
    if most - least <= _ROUNDING * size:
        pad = 0.5 * max(1.0, size)
        least, most = least - pad, most + pad
    return Chart(title=title, label=label, x=x, low=least, high=most, lines=lines)


def _turn_table(run: RunAnalysis, shown: Labels) -> dict[str, Any]:
    turns = run.turns()
    rows = [
        {
            "turn": each.turn,
            "alive": percent(each.alive),
            "rollouts": f"{each.rollouts:,}",
            "groups": f"{each.groups:,}",
            "rewards": [
                (
                    as_share(reward.zero_variance_groups),
                    interval(reward.influence_share, reward.influence_margin),
                )
                for reward in each.rewards
                if reward.name in shown.rewards
            ],
        }
        for each in turns[:_TURNS]
    ]
    related = [each for each in run.with_turns() if each.name in shown.rewards]
    return {
        "run": run,
        "names": [shown.rewards[each.name] for each in related],
        "rows": rows,
        "related": [
            as_number(each.correlation, ".2f")
            + (f" ± {each.margin:.2f}" if each.margin == each.margin else "")
            for each in related
        ],
        "more": max(0, len(turns) - _TURNS),
    }


def _turn_charts(runs: Sequence[RunAnalysis], shown: Labels) -> list[Chart]:
    charts: list[Chart] = []
    for run in runs:
        turns = run.turns()[:_TURNS]
        if len(turns) < 2:
            continue
        influence: list[Line] = []
        constant: list[Line] = []
        for place, reward in enumerate(turns[0].rewards):
            if reward.name not in shown.rewards:
                continue
            at = [turn.rewards[place] for turn in turns]
            label, colour = shown.rewards[reward.name], place % COLOURS
            value = np.array([each.influence_share for each in at])
            margin = np.array([each.influence_margin for each in at])
            band = (np.clip(value + sign * margin, -1.0, 1.0) for sign in (-1, 1))
            notes = tuple(f"({turn.groups:,} groups)" for turn in turns)
            influence.append(Line(label, colour, value, *band, note=notes))
            value = np.array([each.zero_variance_groups for each in at])
            notes = tuple(f"({each.groups:,} groups)" for each in at)
            constant.append(Line(label, colour, value, note=notes))
        title = shown.runs[run.run] or "all rewards"
        x = np.array([turn.turn for turn in turns], np.float64)
        for what, lines in (("influence share", influence), ("zero-variance groups", constant)):
            chart = _drawn(title, what, x, lines, low=0.0, high=1.0)
            charts.append(replace(chart, unit="turn", rest="at the last turn"))
    return charts
