"""Writes the page of `gdpo analyze`: the influence of each reward over a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gdpo._files import write_whole
from gdpo._text import capitalized, visible
from gdpo.analysis import Analysis
from gdpo.analysis.replay import RECORDED
from gdpo.analysis.run import LengthBins, RunAnalysis
from gdpo.diagnostics.watch import LASTING
from gdpo.report.blocks import Block, Charts, Contents, Sentences
from gdpo.report.charts import COLOURS, Chart, Line, Points, binned, running_mean, smoothing
from gdpo.report.html import render
from gdpo.report.summaries import contents
from gdpo.report.text import shortened
from gdpo.report.viewer import Labels, sampled, viewer_data

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


class Section(NamedTuple):
    """Stores a section of a page."""

    name: str
    title: str
    note: str
    """Explanation of the numbers, in small letters."""
    parts: Sequence[str]
    """The parts of the contents that the section shows. Without blocks, it is left out."""


_SECTIONS = (
    Section(
        "rewards",
        "Rewards",
        "First and last: mean over the first tenth of the steps, and over the last tenth. Trend: "
        "change from the first third of the steps to the last, with a 95 % confidence interval. "
        "Zero variance: share of groups in which all samples have the same reward, so the reward "
        "gives no signal. Weight share: weight of the reward, divided by the sum of all weights "
        "(absolute values). Influence: covariance of the advantages with the z-scores of the "
        "reward. Influence share: the reward’s share of the influence over all groups; a negative "
        "share means that the advantages push the reward against its weight. Correlation with "
        "length: within groups, with the number of tokens of the completion. Missing: share of "
        "rollouts without this reward.",
        ("runs", "rewards", "verdicts", "unchecked", "shares", "left_out"),
    ),
    Section(
        "findings",
        "Findings",
        f"Findings that lasted for at least {LASTING} steps in a row, or for all steps of a "
        "shorter run, worst first. Findings from sums over groups, such as ignored, are tested "
        "over all groups of the run, and over its last quarter, which the description then names. "
        "A note without advice was true only in earlier steps.",
        ("findings",),
    ),
    Section("curves", "Mean of each reward over the steps", "", ("curves",)),
    Section(
        "influence",
        "Influence and zero-variance groups over the steps",
        "Each line is a reward. Influence share: over the last 256 groups at each step, with its "
        "95 % interval. Zero-variance groups: share of groups in which all samples have the same "
        "reward.",
        ("influence",),
    ),
    Section(
        "correlation",
        "Correlation between rewards",
        "Correlation of the z-scores of two rewards, over the groups in which both vary.",
        ("correlation",),
    ),
    Section(
        "lengths",
        "Mean of each reward by length of the completion",
        "Mean over all rollouts of that length, in tokens.",
        ("lengths",),
    ),
    Section(
        "turns",
        "Turns",
        "Alive: share of the rollouts that took the turn. The other columns are about what these "
        "rollouts earn from the turn on: the share of groups in which all of them earn the same, "
        "so the turn gives no signal for the reward, and the influence share with the advantages "
        "of the turn.",
        ("turns", "turn_charts"),
    ),
    Section(
        "advantages",
        "Advantages of the same rollouts with other estimators",
        "The advantages of every step were recomputed with each estimator and its default options, "
        "and compared with the baseline. Sign flips: share of rollouts whose advantage has the "
        "opposite sign. Signal lost or gained: groups whose advantages are all 0 in this row but "
        "not in the baseline, or vice versa. Scale: factor between these advantages and the "
        "baseline, median over the steps.",
        ("advantages",),
    ),
    Section("priority", "Priority", "", ("priority",)),
    Section("read", "Files read", "", ("files", "notices")),
)
"""What the page shows of an analysis, in this order."""


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
    blocks = {**(said or contents(analysis, **reading)), **_drawn_contents(analysis, shown)}
    sections = [
        (section, found)
        for section in _SECTIONS
        if (found := [block for part in section.parts for block in blocks[part]])
    ]
    charts = [
        chart
        for _, found in sections
        for block in found
        if isinstance(block, Charts)
        for chart in block.charts
    ]
    paths = analysis.report.paths
    where = visible(str(paths[0]))[-120:] if len(paths) == 1 else f"{len(paths):,} paths"
    question = f"Influence of each reward in {where}"
    (verdict,) = blocks["verdict"]
    answer = f"{capitalized(shortened(verdict.text, 1_200))}."
    page = render(
        "rollouts.html",
        data={"charts": [chart.data() for chart in charts], "rollouts": viewer},
        mark=Markup(MARK),
        title=f"{question} {answer}"[:300],
        setup=" · ".join(text for block in blocks["read"] for text in block.texts),
        question=question,
        answer=answer,
        sections=sections,
        sampled=sampled(viewer, analysis.report.read),
    )
    write_whole(file, page)


def _drawn_contents(analysis: Analysis, shown: Labels) -> dict[str, Sequence[Block]]:
    """Return what only the page shows: charts, and what they leave out."""
    runs = [run for run in analysis.runs if run.run in shown.runs]
    points = min(400, max(20, _POINTS // (3 * len(runs) * max(1, len(shown.rewards)))))
    means = [
        _chart(
            label,
            "mean reward",
            [(r, shown.runs[r.run], r.over_time(name, "mean")) for r in runs if name in r.names],
            points,
        )
        for name, label in shown.rewards.items()
    ]
    window = smoothing(max(len(run.steps) for run in runs))
    mean = f"Running mean over {window} steps" if window > 1 else "Mean of each step"
    note = (
        f"{mean}. Each line is a run. To read values, point at a chart, or focus it and use the "
        "arrow keys."
    )
    names = {name for run in analysis.runs for name in run.names}
    counts = ((len(analysis.runs), _RUNS, "runs"), (len(names), _REWARDS, "rewards"))
    left = " and ".join(f"{n - most:,} more {what}" for n, most, what in counts if n > most)
    left_out = [f"{left} are not shown in charts; --output json prints all."] if left else []
    lengths, turns = _length_charts(analysis.lengths, shown), _turn_charts(runs, shown)
    return {
        "left_out": [Sentences(left_out, "dim")],
        "curves": [Charts(means), Sentences((note,), "dim")],
        "influence": [Charts(_influence_charts(runs, shown, points))],
        "lengths": [Charts(lengths)] if lengths else [],
        "turn_charts": [Charts(turns)] if turns else [],
    }


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
        charts.append(_drawn(title, "influence share", x, lines, ends=[0.0]))
        constant = [
            (run, shown.rewards[n], run.over_time(n, "zero_variance_groups")) for n in names
        ]
        charts.append(_chart(title, "zero-variance groups", constant, points, ends=[0.0]))
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
    ends: Sequence[float] = (),
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
    return _drawn(title, label, binned(steps[None], points)[0], lines, ends=ends)


def _drawn(
    title: str,
    label: str,
    x: Points,
    lines: Sequence[Line],
    *,
    ends: Sequence[float] = (),
) -> Chart:
    """Return a chart whose vertical axis has all values, and `ends`."""
    drawn = (each for line in lines for each in (line.value, line.low, line.high))
    values = np.concatenate([each for each in drawn if each is not None])
    known = values[np.isfinite(values)]
    known = np.append(known if len(known) else [0.0, 1.0], ends)
    least, most = float(known.min()), float(known.max())
    size = max(abs(least), abs(most))
    if most - least <= _ROUNDING * size:
        pad = 0.5 * max(1.0, size)
        least, most = least - pad, most + pad
    return Chart(title=title, label=label, x=x, low=least, high=most, lines=lines)


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
            chart = _drawn(title, what, x, lines, ends=[0.0, 1.0])
            charts.append(replace(chart, unit="turn", rest="at the last turn"))
    return charts
