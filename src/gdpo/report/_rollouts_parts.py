"""The parts of the page of recorded rollouts: tables and charts of every run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan

import numpy as np

from gdpo.analysis import Analysis
from gdpo.analysis.lengths import LengthBins
from gdpo.analysis.replay import Replayed
from gdpo.analysis.run import RewardOverall, RunAnalysis
from gdpo.diagnostics.diagnosis import Severity, interval, percent
from gdpo.diagnostics.watch import HeldFinding
from gdpo.report._charts import COLOURS, Chart, Line, Points
from gdpo.report._figures import binned, running_mean, smoothing
from gdpo.report._head import table
from gdpo.report._parts import percentage, strip
from gdpo.report._rollouts_sample import Labels
from gdpo.report.rollouts_summary import total_told
from gdpo.report.text import breakable, html, one_line, visible

RUNS, REWARDS = 6, 24
"""That the page shows; the rest is in the JSON."""

_POINTS = 16_000
"""Of all lines together: they decide the size of the page."""

_FINDINGS, _NOTICES = 40, 50
"""Of a run, and of all files."""

_ROUNDING = 1e-12
"""Of its size: what a curve varies by less is drawn as constant."""

_LABEL, _SENTENCE = 60, 600
"""Characters of a name, and of a sentence that may hold names."""


def labels(analysis: Analysis) -> Labels:
    """Names of runs and rewards that can be shown, each different from the others."""
    runs = [run.run for run in analysis.runs[:RUNS]]
    rewards = dict.fromkeys(name for run in analysis.runs[:RUNS] for name in run.names)
    path = analysis.report.paths[0]
    called = {"": path.stem if path.is_file() else path.absolute().name}
    return Labels(_distinct(runs, called), _distinct(list(rewards)[:REWARDS]))


def rewards_table(run: RunAnalysis, shown: Labels) -> str:
    """What every reward of a run did."""
    rows = [
        [
            _bdi(shown.rewards[reward.name]),
            f"<b>{figure(reward.first)} → {figure(reward.last)}</b>",
            figure(reward.mean),
            f"{reward.live_groups:,} of {reward.groups:,}",
            share(reward.weight_share),
            f"<b>{_interval(reward)}</b>",
            figure(reward.with_length),
            share(reward.missing),
        ]
        for reward in run.rewards()
        if reward.name in shown.rewards
    ]
    headings = (
        *("reward", "mean: first → last", "mean of all", "live groups", "weight share"),
        *("influence share", "with length", "missing"),
    )
    return table(headings, rows, caption(run, shown))


def caption(run: RunAnalysis, shown: Labels) -> str:
    """Which run it is, and what its numbers are made of."""
    name = f"<b>{_bdi(shown.runs[run.run])}</b> " if run.run else ""
    credit = "the dump’s" if run.recorded == len(run.steps) else ", ".join(sorted(run.estimators))
    more = f", {run.left_out:,} more not trained on" if run.left_out else ""
    return (
        f"{name}<span>{len(run.steps):,} steps, {run.rollouts:,} rollouts{more}; weights: "
        f"{html(run.weights_from)}; advantages: {html(credit)}</span>"
    )


def mean_charts(runs: Sequence[RunAnalysis], shown: Labels) -> list[Chart]:
    """The mean of each reward over the steps, a line per run."""
    points = _points(runs, shown)
    return [
        _chart(
            label,
            "mean reward",
            [(r, shown.runs[r.run], r.over_time(name, "mean")) for r in runs if name in r.names],
            points,
        )
        for name, label in shown.rewards.items()
    ]


def influence_charts(runs: Sequence[RunAnalysis], shown: Labels) -> list[Chart]:
    """Influence, and live groups, of every reward of a run."""
    points = _points(runs, shown)
    charts: list[Chart] = []
    for run in runs:
        names = [name for name in run.names if name in shown.rewards]
        title = shown.runs[run.run] or "all rewards"
        live = [(run, shown.rewards[n], 1 - run.over_time(n, "dead_groups")) for n in names]
        charts.append(_influence_chart(run, title, names, shown, points))
        charts.append(_chart(title, "live groups", live, points, low=0.0))
    return charts


def _influence_chart(
    run: RunAnalysis, title: str, names: Sequence[str], shown: Labels, points: int
) -> Chart:
    """The influence share of each reward over the last groups, with its interval as a band."""
    steps = np.array(run.steps, np.float64)
    lines: list[Line] = []
    for place, name in enumerate(names):
        value, margin = (
            run.over_time(name, what) for what in ("influence_share", "influence_margin")
        )
        table = np.stack([value, value - margin, value + margin])
        drawn = np.clip(binned(table, points), -1.0, 1.0)
        lines.append(
            replace(_line(place, shown.rewards[name], drawn[0]), low=drawn[1], high=drawn[2])
        )
    return _drawn(title, "influence share", binned(steps[None], points)[0], lines, low=0.0)


def length_charts(lengths: Mapping[str, LengthBins], shown: Labels) -> list[Chart]:
    """The mean of each reward by the tokens of the completion, a line per run."""
    charts: list[Chart] = []
    for name, label in shown.rewards.items():
        found = {run: bins for run, bins in lengths.items() if run in shown.runs}
        found = {run: bins for run, bins in found.items() if np.any(bins.counts(name))}
        width = max((bins.width for bins in found.values()), default=0.0)
        found = {run: bins.widened(width) for run, bins in found.items()}
        if found:
            x = max((bins.middles for bins in found.values()), key=len)
            lines = [
                _by_length(place, shown.runs[run], bins, name, len(x))
                for place, (run, bins) in enumerate(found.items())
            ]
            chart = _drawn(label, "mean reward", x, lines)
            charts.append(replace(chart, unit="tokens", rest="the longest"))
    return charts


def _by_length(place: int, run: str, bins: LengthBins, name: str, size: int) -> Line:
    """The means of a run whose completions may be shorter than those of others."""
    counts, means = bins.counts(name), bins.means(name)
    notes = [f"of {n:,.0f} rollout{'s' * (n != 1)}" if n else "" for n in counts.tolist()]
    shorter = size - len(means)
    means = np.pad(means, (0, shorter), constant_values=nan)
    return replace(_line(place, run, means), note=(*notes, *[""] * shorter))


def findings(run: RunAnalysis, shown: Labels) -> str:
    """What lasted in a run, when, and what to do."""
    found = [held for held in run.findings() if held.lasting]
    name = f"{_bdi(shown.runs[run.run])}: " if run.run else ""
    if not found:
        return f"<p>{name}nothing lasted.</p>"
    rows = [_finding(run, held) for held in found[:_FINDINGS]]
    more = f" <span>{len(found) - _FINDINGS:,} more are not shown</span>"
    headings = ["finding", "when", "what, when it held last", "what to do"]
    return table(headings, rows, name + (more if len(found) > _FINDINGS else ""))


def _finding(run: RunAnalysis, held: HeldFinding) -> list[str]:
    finding = held.finding
    mark = "bad" if finding.severity is Severity.WARNING else "note"
    about = ", ".join(_bdi(_cut(name, _LABEL)) for name in finding.rewards)
    first, last = max(held.spans, key=lambda span: span[1] - span[0])
    words = f"steps {run.steps[first - 1]} to {run.steps[last - 1]}"
    if len(held.spans) > 1:
        first, last = held.spans[0][0], held.spans[-1][1]
        words += f", and on and off from {run.steps[first - 1]} to {run.steps[last - 1]}"
    return [
        f'<span class="{mark}">{finding.severity.value}</span> '
        f"{finding.kind.value.replace('_', ' ')} <span>{about}</span>",
        f'<ul class="when"><li>{strip(held.spans[:400], held.of)} {words}: {held.steps:,} of '
        f"{held.of:,}</li></ul>",
        _bdi(_cut(finding.message, _SENTENCE)),
        _bdi(_cut(finding.remedy, _SENTENCE)),
    ]


def correlation_table(run: RunAnalysis, shown: Labels) -> str:
    """Every reward with every other."""
    names = [name for name in run.names if name in shown.rewards]
    rows = [
        [_bdi(shown.rewards[a]), *(figure(run.correlation(a, b)) for b in names)] for a in names
    ]
    headings = ["", *(_bdi(shown.rewards[name]) for name in names)]
    return table(headings, rows, _bdi(shown.runs[run.run]) if run.run else "")


def estimators(analysis: Analysis) -> str:
    """What every estimator would have made of the rollouts."""
    replayed = analysis.replayed
    if not replayed:
        return "<p>None was asked for: <code>--estimators</code> replays them.</p>"
    rows = [_replayed(each) for each in replayed if each.steps and not each.problem]
    beside = html(replayed[0].beside)
    headings = (
        *("estimator", f"correlation with {beside}", "other sign", "exactly 0", "groups die"),
        *("groups revive", "scale", "would anything change?"),
    )
    looked_at = f"{replayed[0].steps:,} steps, {replayed[0].groups:,} groups"
    problems = "".join(
        f'<p class="bad">{_bdi(_cut(each.estimator, _LABEL))} could not be replayed: '
        f"{_bdi(_cut(each.problem, _SENTENCE))}</p>"
        for each in replayed
        if each.problem
    )
    how = (
        '<p class="small">Every step was given anew to each estimator, whole, with its default '
        f"options. Other sign: rollouts that {beside} pushes one way and the estimator the other. "
        "Die: groups with a signal there and none here; revive: the other way round. Scale: what "
        "its advantages are multiplied with, median over the steps. Nothing would change: on every "
        "step the same advantages up to one factor.</p>"
    )
    return how + table(headings, rows, looked_at) + problems


def _replayed(each: Replayed) -> list[str]:
    if each.estimator == each.beside:
        verdict = ""
    else:
        verdict = "no" if each.same else f"<b>yes</b> <span>on {each.changed:,} steps</span>"
    return [
        _bdi(_cut(each.estimator, _LABEL)),
        f"{each.correlation:.3f}".replace("-", "−") if isfinite(each.correlation) else "–",
        percentage(each.opposite),
        percentage(each.zero),
        f"{each.dies:,}",
        f"{each.revives:,}",
        figure(each.scale),
        verdict,
    ]


def what_was_read(analysis: Analysis) -> str:
    """Files by format, groups, and all that was odd."""
    report = analysis.report
    lines = [
        f"{report.rows:,} rows = {report.read:,} read + {report.skipped:,} skipped",
        *(f"format {name}: {count:,} files" for name, count in report.formats.items()),
        *dict.fromkeys(
            f"rewards: {', '.join(f.rewards)} ({f.rewards_told_by})"
            for f in report.files
            if f.rewards
        ),
        f"{report.groups:,} groups by {', '.join(report.grouped_by)}",
        *report.group_findings(),
        *(f"{why} ({count:,} rollouts)" for why, count in analysis.problems.items()),
        *report.oddities(),
    ]
    shown = [f"<li>{_bdi(_cut(line, _SENTENCE))}</li>" for line in lines[:_NOTICES]]
    if len(lines) > _NOTICES:
        shown.append(f"<li>and {len(lines) - _NOTICES:,} more, which --json has</li>")
    return f"<ul>{''.join(shown)}</ul>"


def smoothing_note(runs: Sequence[RunAnalysis]) -> str:
    """What the curves are."""
    window = smoothing(max(len(run.steps) for run in runs))
    what = f"Running mean over {window} steps" if window > 1 else "Mean of each step"
    return f"{what}; a line is a run, and below, a reward."


def figure(value: float) -> str:
    """A number of any size, to three digits."""
    return "–" if not isfinite(value) else f"{value:.3g}".replace("-", "−")


def _interval(reward: RewardOverall) -> str:
    return interval(reward.influence_share, reward.influence_margin).replace(" ", "&nbsp;")


def share(value: float) -> str:
    """In percent; – where it is not known."""
    return percent(value).replace(" ", "&nbsp;") if isfinite(value) else "–"


def _points(runs: Sequence[RunAnalysis], shown: Labels) -> int:
    return min(400, max(20, _POINTS // (3 * len(runs) * max(1, len(shown.rewards)))))


def _chart(
    title: str,
    label: str,
    curves: Iterable[tuple[RunAnalysis, str, Points]],
    points: int,
    *,
    low: float | None = None,
) -> Chart:
    """Curves over the steps; of several runs over the steps of all of them."""
    found = list(curves)
    steps = np.unique(np.concatenate([np.array(run.steps, np.float64) for run, _, _ in found]))
    lines = [
        _line(place, name, _smoothed(run, values, steps, points))
        for place, (run, name, values) in enumerate(found)
    ]
    return _drawn(title, label, binned(steps[None], points)[0], lines, low=low)


def _smoothed(run: RunAnalysis, values: Points, steps: Points, points: int) -> Points:
    placed = np.full(len(steps), nan)
    placed[np.searchsorted(steps, run.steps)] = values
    return binned(running_mean(placed[None], smoothing(len(steps))), points)[0]


def _drawn(
    title: str,
    label: str,
    x: Points,
    lines: Sequence[Line],
    *,
    low: float | None = None,
) -> Chart:
    values = np.concatenate([each for line in lines for each in (line.value, line.low, line.high)])
    known = values[np.isfinite(values)]
    least = float(known.min()) if len(known) else 0.0
    most = float(known.max()) if len(known) else 1.0
    if low is not None:
        least = min(low, least)
    size = max(abs(least), abs(most))
    if most - least <= _ROUNDING * size:
        pad = 0.5 * max(1.0, size)
        least, most = least - pad, most + pad
    return Chart(title=title, label=label, x=x, low=least, high=most, lines=lines)


def _line(place: int, name: str, values: Points) -> Line:
    nothing = np.full(len(values), nan)
    return Line(name, place % COLOURS, values, nothing, nothing, np.empty((0, len(values))))


def _distinct(names: Sequence[str], called: Mapping[str, str] | None = None) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, name in enumerate(names):
        label = _cut(visible((called or {}).get(name, name)), _LABEL)
        found[name] = f"{label} ({place + 1})" if label in found.values() else label
    return found


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _bdi(text: str) -> str:
    return f"<bdi>{breakable(text)}</bdi>"


def sentences(analysis: Analysis) -> Iterator[str]:
    """The answer: the worst that lasted, and whether another estimator would change anything."""
    found = analysis.findings()
    warnings = [pair for pair in found if pair[1].finding.severity is Severity.WARNING]
    if warnings:
        run, held = warnings[0]
        where = f" of {_cut(visible(run.run), _LABEL)}" if len(analysis.runs) > 1 else ""
        message = _cut(visible(held.finding.message), _SENTENCE)
        yield f"In {held.steps:,} of {held.of:,} steps{where}: {message}."
    if len(warnings) > 1:
        yield f"{len(warnings) - 1} more warning{'s' * (len(warnings) > 2)} below."
    if not warnings:
        notes = f"; {len(found)} notes are below" if len(found) > 1 else ""
        yield f"No warning lasted{notes}."
    yield from _estimator_sentences(analysis)


def _estimator_sentences(analysis: Analysis) -> Iterator[str]:
    others = [r for r in analysis.replayed if r.estimator != r.beside and r.steps]
    if others and analysis.report.total_alone:
        told = total_told(analysis.report)
        yield f"{told[0].upper()}{told[1:]}."
    elif analysis.weights_to_give:
        yield (
            "No estimator gives the recorded advantages with weights of 1; if the run had others, "
            "what is told here is of another run (--weights)."
        )
        return
    elif others and all(r.same for r in others):
        yield f"Nothing would change under {', '.join(one_line(r.estimator) for r in others)}."
    for each in others:
        if each.estimator == "gdpo" and not each.same:
            yield (
                f"Under gdpo {percent(each.opposite)} of the rollouts would be pushed the other "
                f"way than under {each.beside}."
            )
