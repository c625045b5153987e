"""Writes the page of `gdpo analyze`: the influence of each reward over a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from gdpo._files import write_whole
from gdpo._text import capitalized, counted, one_line, visible
from gdpo.analysis import Analysis
from gdpo.analysis.replay import RECORDED
from gdpo.analysis.run import RunAnalysis
from gdpo.diagnostics.watch import LASTING
from gdpo.report.blocks import Block, Charts, Contents, Sentences, Table
from gdpo.report.charts import (
    COLOURS,
    Chart,
    Curves,
    Line,
    Points,
    binned,
    running_mean,
    smoothing,
)
from gdpo.report.html import render
from gdpo.report.summaries import contents, read_sentences
from gdpo.report.text import as_number, shortened
from gdpo.report.viewer import Labels, viewer_data

MARK = '<meta name="generator" content="gdpo analyze">'
"""Identifies a page that this module wrote."""

_RUNS, _REWARDS, _ESTIMATORS = 6, 24, 4
"""Maximum number of runs, of rewards, and of estimators in the table of rollouts."""

_POINTS = 16_000
"""Maximum total number of points in all lines, which limits the size of the page."""

_TURNS = 40
"""Maximum number of turns in a chart."""

_ROUNDING = 1e-12
"""A curve that varies by less than this fraction of its magnitude is drawn as constant."""


def write_rollouts_report(
    analysis: Analysis, file: Path, *, said: Contents | None = None, **reading: Any
) -> None:
    """Write a self-contained HTML page about an analysis.

    Args:
        analysis: The result of `gdpo.analysis.analyze`. The page shows its sampled rollouts, whose
            texts are read from the files again.
        file: Path of the page. A failure leaves an existing file unchanged.
        said: The contents that were printed. None: those of `gdpo.report.summaries`.
        reading: Options `columns` and `load_pt` that the rollout files were read with.
    """
    from markupsafe import Markup

    shown = _labels(analysis)
    viewer = viewer_data(analysis.sample, shown, _estimators(analysis), **reading)
    blocks = {**(said or contents(analysis, **reading)), **_only_on_page(analysis, shown)}
    charts = [
        chart
        for found in blocks.values()
        for block in found
        if isinstance(block, Charts)
        for chart in block.charts
    ]
    paths = analysis.report.paths
    where = visible(paths[0].absolute().name) if len(paths) == 1 else f"{len(paths):,} paths"
    question = f"Influence of each reward in {where}"
    (verdict,) = (
        t for each in blocks["verdict"] if isinstance(each, Sentences) for t in each.texts
    )
    answer = f"{capitalized(shortened(verdict, 1_200))}."
    page = render(
        "rollouts.html",
        data={"charts": [chart.data() for chart in charts], "rollouts": viewer},
        charts=charts,
        mark=Markup(MARK),
        title=f"{question} {answer}"[:300],
        setup=" · ".join(read_sentences(analysis.report)),
        question=question,
        answer=answer,
        said=blocks,
        window=smoothing(max(len(run.steps) for run in analysis.runs[:_RUNS])),
        lasting=LASTING,
        sampled=viewer["count"],
        read=analysis.report.read,
        spread="over the whole run",
    )
    write_whole(file, page)


def _only_on_page(analysis: Analysis, shown: Labels) -> dict[str, Sequence[Block | Charts]]:
    """Return what only the page shows: charts, correlations, all verdicts and the files."""
    runs = analysis.runs[:_RUNS]
    points = min(400, max(20, _POINTS // (3 * len(runs) * max(1, len(shown.rewards)))))
    means = [
        _over_steps(
            label,
            "mean reward",
            [
                (run.steps, shown.runs[run.run], run.over_time[name]["mean"][None])
                for run in runs
                if name in run.names
            ],
            points,
        )
        for name, label in shown.rewards.items()
    ]
    names = {name for run in analysis.runs for name in run.names}
    counts = ((len(analysis.runs), _RUNS, "runs"), (len(names), _REWARDS, "rewards"))
    left = " and ".join(f"{n - most:,} more {what}" for n, most, what in counts if n > most)
    left_out = [f"{left} are not shown in charts; --output json prints all."] if left else []
    each = [f"Verdict on {one_line(r.run)}: {analysis.verdict(r).sentence}" for r in analysis.runs]
    lengths, turns = _length_charts(runs, shown), _turn_charts(runs, shown)
    return {
        "verdicts": [Sentences(each if len(each) > 1 else [])],
        "left_out": [Sentences(left_out, "dim")],
        "curves": [Charts(means)],
        "influence": [Charts(_influence_charts(runs, shown, points))],
        "correlation": [_correlations(run, shown) for run in runs],
        "lengths": [Charts(lengths)] if lengths else [],
        "turn_charts": [Charts(turns)] if turns else [],
        "files": [Sentences(analysis.report.lines(options=True))],
    }


def _labels(analysis: Analysis) -> Labels:
    path = analysis.report.paths[0]
    only = path.stem if path.is_file() else path.absolute().name
    runs = {run.run: run.run or only for run in analysis.runs[:_RUNS]}
    rewards = dict.fromkeys(name for run in analysis.runs[:_RUNS] for name in run.names)
    return Labels(_distinct(runs), _distinct({name: name for name in list(rewards)[:_REWARDS]}))


def _distinct(names: Mapping[str, str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for place, (name, called) in enumerate(names.items()):
        label = shortened(visible(called))
        labels[name] = f"{label} ({place + 1})" if label in labels.values() else label
    return labels


def _estimators(analysis: Analysis) -> list[str]:
    every = list(dict.fromkeys(name for group in analysis.sample for name in group.advantages))
    first = [name for name in (RECORDED, *every[:1], "grpo", "gdpo") if name in every]
    return list(dict.fromkeys((*first, *every)))[:_ESTIMATORS]


def _correlations(run: RunAnalysis, shown: Labels) -> Table:
    labels = shown.of(run.names)
    rows = [
        (label, *(as_number(run.correlation(name, other)) for other in labels))
        for name, label in labels.items()
    ]
    title = shown.runs[run.run] if run.run else ""
    return Table(title, ("reward", *labels.values()), rows, "reward")


def _influence_charts(runs: Sequence[RunAnalysis], shown: Labels, points: int) -> list[Chart]:
    charts: list[Chart] = []
    for run in runs:
        title, steps = shown.runs[run.run] or "all rewards", run.steps
        columns = ("influence_share", "influence_margin", "zero_variance_groups")
        found = {
            label: [run.over_time[name][column] for column in columns]
            for name, label in shown.of(run.names).items()
        }
        shares = [
            (steps, label, 100 * np.stack([share, share - margin, share + margin]))
            for label, (share, margin, _) in found.items()
        ]
        constant = [(steps, label, 100 * zero[None]) for label, (_, _, zero) in found.items()]
        charts += [
            _over_steps(title, "influence share, %", shares, points, smooth=False, ends=[0.0]),
            _over_steps(title, "zero-variance groups, %", constant, points, ends=[0.0]),
        ]
    return charts


def _turn_charts(runs: Sequence[RunAnalysis], shown: Labels) -> list[Chart]:
    charts: list[Chart] = []
    for run in runs:
        turns = run.turns[:_TURNS]
        if len(turns) < 2:
            continue
        influence: list[Line] = []
        constant: list[Line] = []
        for place, reward in enumerate(turns[0].rewards):
            if reward.name not in shown.rewards:
                continue
            at = [turn.rewards[place] for turn in turns]
            label, colour = shown.rewards[reward.name], place % COLOURS
            rows = [(r.influence_share, r.influence_margin, r.zero_variance_groups) for r in at]
            share, margin, zero = 100 * np.array(rows, np.float64).T
            band = np.clip([share - margin, share + margin], -100, 100)
            notes = tuple(f"({turn.groups:,} groups)" for turn in turns)
            influence.append(Line(label, colour, share, *band, note=notes))
            notes = tuple(f"({each.groups:,} groups)" for each in at)
            constant.append(Line(label, colour, zero, note=notes))
        title = shown.runs[run.run] or "all rewards"
        x = np.array([turn.turn for turn in turns], np.float64)
        for what, lines in (
            ("influence share, %", influence),
            ("zero-variance groups, %", constant),
        ):
            chart = _chart(title, what, x, lines, ends=[0.0, 100.0])
            charts.append(replace(chart, unit="turn", rest="at the last turn"))
    return charts


def _length_charts(runs: Sequence[RunAnalysis], shown: Labels) -> list[Chart]:
    """Return a chart per reward of its mean by completion length, with a line per run."""
    charts: list[Chart] = []
    for name, label in shown.rewards.items():
        own = {run.run: run.lengths for run in runs if np.any(run.lengths.table(name)[1])}
        if not own:
            continue
        width = max(bins.width for bins in own.values())
        found = {run: bins.table(name, width) for run, bins in own.items()}
        x, lines = max((table[0] for table in found.values()), key=len), list[Line]()
        for place, (run, (_, counts, means)) in enumerate(found.items()):
            notes = [f"({counted(int(n), 'rollout')})" if n else "" for n in counts.tolist()]
            # Other runs may have longer completions.
            more = len(x) - len(means)
            means, notes = np.pad(means, (0, more), constant_values=nan), notes + [""] * more
            lines.append(Line(shown.runs[run], place % COLOURS, means, note=tuple(notes)))
        chart = _chart(label, "mean reward", x, lines)
        charts.append(replace(chart, unit="tokens", rest="the longest"))
    return charts


def _over_steps(
    title: str,
    label: str,
    curves: Sequence[tuple[Sequence[int], str, Curves]],
    points: int,
    *,
    smooth: bool = True,
    ends: Sequence[float] = (),
) -> Chart:
    """Return a chart of values at steps, or of shares with their bands if not `smooth`.

    The horizontal axis has the steps of all curves. A curve is its steps, its label, and rows of
    values.
    """
    steps = np.unique(np.concatenate([np.array(own, np.float64) for own, _, _ in curves]))
    lines: list[Line] = []
    for place, (own, name, values) in enumerate(curves):
        placed = np.full((len(values), len(steps)), nan)
        placed[:, np.searchsorted(steps, own)] = values
        if smooth:
            drawn = binned(running_mean(placed, smoothing(len(steps))), points)
        else:
            drawn = np.clip(binned(placed, points), -100, 100)
        lines.append(Line(name, place % COLOURS, *drawn))
    return _chart(title, label, binned(steps[None], points)[0], lines, ends=ends)


def _chart(
    title: str, label: str, x: Points, lines: Sequence[Line], *, ends: Sequence[float] = ()
) -> Chart:
    """Return a chart whose vertical axis has all values, and `ends`."""
    values = np.concatenate([line.numbers.ravel() for line in lines])
    known = values[np.isfinite(values)]
    known = np.append(known if len(known) else [0.0, 1.0], ends)
    least, most = float(known.min()), float(known.max())
    size = max(abs(least), abs(most))
    if most - least <= _ROUNDING * size:
        pad = 0.5 * max(1.0, size)
        least, most = least - pad, most + pad
    return Chart(title, label, x, least, most, lines)
