"""A diagnosis as text for a terminal."""

from collections.abc import Iterator, Sequence
from math import nan
from textwrap import wrap

from gdpo.diagnostics._diagnosis import Diagnosis, RewardDiagnosis
from gdpo.diagnostics._finding import Finding, Severity
from gdpo.diagnostics._text import interval, percent

_LINES = 20
"""What fits on a screen beside something else."""
_WIDTH = 100
_HEADINGS = (
    "reward",
    "weight",
    "mean",
    "std",
    "zero-variance",
    "weight share",
    "influence share",
)
_MARKS = {Severity.WARNING: "!", Severity.NOTE: "-"}
_UNKNOWN = "–"


def summary(diagnosis: Diagnosis) -> str:
    """The rewards as a table, the batch in two lines, and the findings, worst first.

    Findings that do not fit into about 20 lines are counted; the first two are always shown.
    """
    head = [
        f"{diagnosis.estimator or 'advantages'} on {diagnosis.prompts} x {diagnosis.samples} "
        f"rollouts (prompts x samples)",
        *_table([_HEADINGS, *map(_cells, diagnosis.rewards)]),
        *_batch(diagnosis),
    ]
    return "\n".join([*head, *_findings(diagnosis.findings, _LINES - len(head))])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other: names to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(reward: RewardDiagnosis) -> tuple[str, ...]:
    return (
        reward.name,
        f"{reward.weight:g}",
        _figure(reward.mean),
        _figure(reward.live_std),
        _share(reward.dead_groups),
        _share(reward.weight_share),
        _interval(reward),
    )


def _batch(d: Diagnosis) -> Iterator[str]:
    groups = f"groups without signal {percent(d.silent_groups)}"
    if d.conflict is None or d.chance_conflict is None:
        yield groups
    else:
        yield (
            f"{groups}; rollouts pulled both ways {percent(d.conflict)} "
            f"({percent(d.chance_conflict)} by chance)"
        )
    if d.live_rms is not None and d.distinct is not None and d.distinct_grpo is not None:
        yield (
            f"advantages: rms {d.live_rms:.3g} where there is signal, largest {d.largest:.3g}; "
            f"different in a group {d.distinct:.3g} (grpo {d.distinct_grpo:.3g})"
        )


def _findings(findings: Sequence[Finding], room: int) -> Iterator[str]:
    if not findings:
        yield "nothing found"
        return
    for index, finding in enumerate(findings):
        lines = _lines(finding)
        last = index == len(findings) - 1
        if index >= 2 and len(lines) + (not last) > room:
            yield f"... and {len(findings) - index} more, in .findings"
            return
        room -= len(lines)
        yield from lines


def _lines(finding: Finding) -> list[str]:
    return [
        *wrap(f"{_MARKS[finding.severity]} {finding.message}", _WIDTH, subsequent_indent="  "),
        *wrap(f"→ {finding.remedy}", _WIDTH, initial_indent="  ", subsequent_indent="    "),
    ]


def _interval(reward: RewardDiagnosis) -> str:
    values = reward.influence_share, reward.influence_margin
    return interval(*(nan if value is None else value for value in values))


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else percent(value)


def _figure(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3g}"
