"""What the rewards of recorded rollouts did, in 20 lines of a terminal.

Every text of a file is made visible: none of it can command the terminal.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from textwrap import wrap

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from gdpo.analysis import Analysis
from gdpo.analysis.replay import Replayed
from gdpo.analysis.run import RewardOverall, RunAnalysis
from gdpo.diagnostics.diagnosis import Severity, interval, percent
from gdpo.diagnostics.watch import HeldFinding
from gdpo.report.text import one_line
from gdpo.rollouts.readers import ReadReport
from gdpo.rollouts.readers.formats import WORDLESS
from gdpo.rollouts.readers.inference import NO_REWARD, TOTAL_ALONE
from gdpo.rollouts.readers.report import ready_command

LINES = 20
"""What fits on a screen; the worst finding and three rewards are printed in any case."""

_NOTICES, _REWARDS, _NAME, _PROBLEM = 3, 6, 32, 160
"""Oddities and rewards that are listed, and characters of a name and of a problem, at most."""

_FINDING = 6
"""Lines that are left to a finding, the heading of the rewards, and the count of the others."""

_PLACE = 40
"""Cells of the name of a file that are kept in any case: what to do about it is never cut."""

_WHOLE = 500
"""Cells of the sentence about it, whose end says what to do."""

_LEAST = 14
"""Cells of a name that are kept."""

_STYLES = {Severity.WARNING: "bold red", Severity.NOTE: "yellow"}
_MARKS = {Severity.WARNING: "!", Severity.NOTE: "-"}


def rollouts_summary(analysis: Analysis, *, width: int = 100, room: int = LINES) -> list[Text]:
    """Lines to be printed with rich: what was read, the rewards, and the findings, worst first.

    Args:
        analysis: See `gdpo.analysis.analyze`.
        width: Of the terminal; long lines are cut into several.
        room: Lines that there is room for.
    """
    lines = [*_wrapped(_read(analysis.report), width)]
    if command := ready_command(analysis.report):  # whole, on a line to be copied
        lines.append(Text(f"  to choose others: {one_line(command)}"))
    lines += _odd(analysis, width)
    lines += [line for run in analysis.runs[:2] for line in _wrapped([_run(run, analysis)], width)]
    if len(analysis.runs) > 2:
        lines.append(Text(f"and {len(analysis.runs) - 2:,} more runs"))
    lines += _rewards(analysis, width, room - len(lines) - _FINDING)
    return [*lines, *_findings(analysis, width, room - len(lines))]


def estimators_summary(analysis: Analysis, *, width: int = 100) -> list[Text]:
    """What every estimator would have made of the same rollouts; nothing if none was asked for."""
    replayed = analysis.replayed
    if not replayed or not analysis.runs:
        return []
    first = replayed[0]
    heading = (
        f"the same rollouts under every estimator, beside {one_line(first.baseline)} "
        f"({_count(first.steps, 'step')}, {_count(first.groups, 'group')})"
    )
    rows = [("estimator", "correlation", "other sign", "groups die", "revive", "scale", "")]
    alone = analysis.report.total_alone
    rows += [_replayed_cells(each, alone=alone) for each in replayed if each.steps]
    verdict = [scalar_alone(analysis.report)] if alone else _verdict(replayed)
    sentences = [*verdict, *_gain(analysis), *_not_replayed(replayed)]
    if analysis.weights_to_give:
        sentences.insert(
            0,
            "none of them gives the recorded advantages with weights of 1: if the run had others, "
            "give --weights, and look again",
        )
    return [Text(heading, style="bold"), *_table(rows, width), *_wrapped(sentences, width)]


def _read(report: ReadReport) -> Iterator[str]:
    formats = list(report.formats.items())
    if len(formats) == 1:
        told_by = one_line(report.files[0].told_by)
        name, count = formats[0]
        yield f"{name}: {_count(count, 'file')}{', ' if told_by else ''}{told_by}"
    elif formats:
        yield "; ".join(f"{name}: {_count(n, 'file')}" for name, n in formats)
    skipped = f"{report.rows:,} rows = {report.read:,} read + {report.skipped:,} skipped"
    left = len(report.left_out)
    yield skipped + (f"; {_count(left, 'file')} not read" if left else "")
    sources = [
        file.rewards_told_by
        for file in report.files
        if file.rewards and (file.guessed or file.rewards_told_by.startswith(TOTAL_ALONE))
    ]
    sources += [f.rewards_told_by for f in report.files if NO_REWARD in f.rewards_told_by]
    remedy = ""
    if report.total_alone:
        wordless = _wordless(report)
        remedy = ", nor texts for --rescore" if wordless else "; --rescore gives the parts back"
    if sources:
        yield f"rewards: {'; '.join(map(one_line, dict.fromkeys(sources)))}{remedy}"


def scalar_alone(report: ReadReport) -> str:
    """What is said of estimators where there is nothing but a scalar reward."""
    sentence = (
        "these files contain only a scalar reward, so estimators that differ in how they combine "
        "rewards (gdpo, mo_grpo, ...) cannot be told apart; those without a per-group std still "
        "differ"
    )
    if _wordless(report):
        return sentence
    return f"{sentence} (--rescore gives the rewards one by one)"


def _wordless(report: ReadReport) -> bool:
    """Whether no file has texts that could be scored anew."""
    return all(file.format in WORDLESS for file in report.files)


def _odd(analysis: Analysis, width: int) -> Iterator[Text]:
    """What was wrong with files, groups and steps."""
    report = analysis.report
    oddities = [("", text) for text in report.group_findings()] + report.odd_places()
    oddities += [("", f"{why} ({count:,} rollouts)") for why, count in analysis.problems.items()]
    if len(oddities) > _NOTICES:
        oddities = [
            *oddities[: _NOTICES - 1],
            ("", f"and {len(oddities) - _NOTICES + 1:,} more: --json has all"),
        ]
    for place, what in oddities:
        text = _without_middle(one_line(_with_options(what)), _WHOLE)
        room = max(_PLACE, 2 * width - len(text) - len("! : "))
        where = _without_middle(one_line(place), room)
        yield Text(f"! {where}{': ' if where else ''}{text}", style="yellow")


def _with_options(text: str) -> str:
    """What is an argument in Python is an option here."""
    text = text.replace("group_size=", "--group-size ").replace("group_size", "--group-size")
    text = text.replace(
        "name the format, or the columns", "name the format (--format) or --columns"
    )
    return text.replace("(columns)", "(--columns)").replace("(low, high)", "(--low, --high)")


def _run(run: RunAnalysis, analysis: Analysis) -> str:
    numbers, report, span = run.steps, analysis.report, ""
    if len(numbers) > 1:
        apart = {later - step for step, later in pairwise(numbers)}
        # A log may hold one step of several alone.
        every = f", one in {min(apart):,}" if len(apart) == 1 and min(apart) > 1 else ""
        span = f" ({min(numbers):,} to {max(numbers):,}{every})"
    groups = ""
    if len(analysis.runs) == 1:
        size = report.group_sizes.most_common(1)[0][0]
        usual = f"of {size}" if len(report.group_sizes) == 1 else f"mostly of {size}"
        by = ", ".join(report.grouped_by)
        groups = f"; {_count(report.groups, 'group')} {usual}, by {by}"
    credit = [f"{', '.join(sorted(run.estimators))}'s"] if run.recorded < len(numbers) else []
    if run.recorded:
        where = f" in {run.recorded:,} steps" if credit else ""
        credit.insert(0, f"the dump's{where}")
    return (
        f"{f'{one_line(run.run)}: ' if run.run else ''}{_count(len(numbers), 'step')}{span}, "
        f"{run.rollouts:,} rollouts"
        f"{f' ({run.left_out:,} more not trained on)' if run.left_out else ''}{groups}; "
        f"weights: {run.weights_from}; advantages: {', '.join(credit)}"
    )


def _rewards(analysis: Analysis, width: int, room: int) -> Iterator[Text]:
    several = len(analysis.runs) > 1
    rows = [(run, reward) for run in analysis.runs for reward in run.rewards()]
    if not rows:
        return
    most = max(3, min(room, _REWARDS))
    headings = ("reward", "mean: first → last", "zero variance", "weight share", "influence share")
    headings = (*(["run"] if several else []), *headings)
    cells = [
        (*([_name(run.run)] if several else []), *_cells(reward)) for run, reward in rows[:most]
    ]
    if any(reward.missing for _, reward in rows):
        headings = (*headings, "missing")
        missing = [_share(reward.missing) for _, reward in rows]
        cells = [(*row, share) for row, share in zip(cells, missing, strict=False)]
    yield from _table([headings, *cells], width)
    if len(rows) > most:
        yield Text(f"and {len(rows) - most:,} more: --json has all", style="dim")


def _cells(reward: RewardOverall) -> tuple[str, ...]:
    constant = reward.zero_variance_groups / reward.groups if reward.groups else float("nan")
    return (
        _name(reward.name),
        f"{_number(reward.first)} → {_number(reward.last)}",
        _share(constant),
        _share(reward.weight_share),
        interval(reward.influence_share, reward.influence_margin),
    )


def _findings(analysis: Analysis, width: int, room: int) -> Iterator[Text]:
    found = analysis.findings()
    if not found and analysis.runs:
        yield Text("nothing found that lasted", style="green")
    for place, (run, held) in enumerate(found):
        lines = list(_finding(run if len(analysis.runs) > 1 else None, held, width))
        last = place == len(found) - 1
        if place >= 1 and len(lines) + (not last) > room:
            rest = _count(len(found) - place, "more finding")
            yield Text(f"and {rest}: --json has all", style="dim")
            return
        room -= len(lines)
        yield from lines


def _finding(run: RunAnalysis | None, held: HeldFinding, width: int) -> Iterator[Text]:
    finding = held.finding
    where = f"{_name(run.run)}: " if run is not None else ""
    when = f"in {held.steps:,} of {held.of:,} steps: " if held.of > 1 else ""
    message = f"{_MARKS[finding.severity]} {where}{when}{one_line(finding.message)}"
    for line in wrap(message, width, subsequent_indent="  "):
        yield Text(line, style=_STYLES[finding.severity])
    remedy = f"→ {one_line(_with_options(finding.remedy))}"
    for line in wrap(remedy, width, initial_indent="  ", subsequent_indent="    "):
        yield Text(line)


def _replayed_cells(replayed: Replayed, *, alone: bool) -> tuple[str, ...]:
    """Return a row of the table; of a scalar reward alone, equal estimators may still differ."""
    if replayed.estimator == replayed.baseline:
        verdict = ""
    elif replayed.problem:
        verdict = "fails"
    elif replayed.same:
        verdict = "cannot be told apart" if alone else "nothing would change"
    elif replayed.changed == replayed.steps:
        verdict = "changes every step"
    else:
        verdict = f"changes {_count(replayed.changed, 'step')}"
    return (
        _name(replayed.estimator),
        "–" if replayed.correlation != replayed.correlation else f"{replayed.correlation:z.3f}",
        _share(replayed.sign_flips),
        f"{replayed.signal_lost:,}",
        f"{replayed.signal_gained:,}",
        _number(replayed.scale),
        verdict,
    )


def _verdict(replayed: Sequence[Replayed]) -> Iterator[str]:
    others = [r for r in replayed if r.estimator != r.baseline and r.steps]
    same = [r.estimator for r in others if r.same]
    if others and len(same) == len(others):
        yield f"nothing would change under any of them: it is {others[0].baseline}, scaled"
    elif same:
        yield f"nothing would change under {', '.join(map(one_line, same))}"


def _not_replayed(replayed: Sequence[Replayed]) -> Iterator[str]:
    for each in replayed:
        if each.steps and each.problem:
            where = f"{one_line(each.estimator)} fails after {_count(each.steps, 'step')}"
            yield _cut(f"{where}: {one_line(each.problem)}", _PROBLEM)
        elif not each.steps:
            why = each.problem or f"nothing to compare: no step has {each.baseline} advantages too"
            yield _cut(f"not replayed: {one_line(each.estimator)}: {one_line(why)}", _PROBLEM)


def _gain(analysis: Analysis) -> Iterator[str]:
    gains = [g for run in analysis.runs for g in run.batch_gains().tolist() if g == g]
    if gains:
        yield (
            f"GDPO's batch step multiplies with {median(gains):.3g} "
            f"(median; {min(gains):.3g} to {max(gains):.3g} over the steps)"
        )


def _table(rows: Sequence[Sequence[str]], width: int) -> Iterator[Text]:
    """Columns under each other: names and remarks to the left, numbers to the right.

    Names that are too wide for the terminal are cut in their middle, the widest column first; where
    that would leave too little of them, they are whole, and the terminal breaks the lines.
    """
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(rows[0]))]
    names = [i for i, head in enumerate(rows[0]) if head in ("run", "reward", "estimator")]
    fitted = widths.copy()
    for _ in range(sum(widths) + 2 * (len(widths) - 1) - width):
        fitted[max(names, key=fitted.__getitem__)] -= 1
    if min(fitted[i] for i in names) >= min(_LEAST, *(widths[i] for i in names)):
        widths = fitted
    for place, row in enumerate(rows):
        cells = (
            set_cell_size(_without_middle(cell, size), size)
            if i in names or not rows[0][i]
            else " " * (size - cell_len(cell)) + cell
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        )
        yield Text("  ".join(cells).rstrip(), style="" if place else "dim")


def _without_middle(text: str, size: int) -> str:
    """In so many cells of the terminal: names that begin alike often end otherwise."""
    if cell_len(text) <= size:
        return text
    end, start = (size - 1) // 2, size - 1 - (size - 1) // 2
    return f"{chop_cells(text, start)[0]}…{chop_cells(text[::-1], end)[0][::-1]}"


def _wrapped(texts: Iterable[str], width: int) -> Iterator[Text]:
    for text in texts:
        yield from map(Text, wrap(text, width, subsequent_indent="  "))


def _name(name: str) -> str:
    return _without_middle(one_line(name), _NAME)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _share(value: float) -> str:
    return "–" if value != value else percent(value)


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.3g}"
