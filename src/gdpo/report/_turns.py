"""Makes the table and the charts of the turns for the page of `gdpo analyze`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gdpo.analysis.run import RunAnalysis
from gdpo.analysis.turns import TurnOverall, WithTurns
from gdpo.diagnostics.diagnosis import interval, percent
from gdpo.report._terminal import as_share
from gdpo.report.charts import COLOURS, Chart, Line
from gdpo.report.viewer import Labels

_ROWS = 40
"""Maximum number of turns in a table or chart."""


def turn_table(run: RunAnalysis, shown: Labels) -> dict[str, Any]:
    """Return the rows of the table of a run, as text."""
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
        for each in turns[:_ROWS]
    ]
    related = [each for each in run.with_turns() if each.name in shown.rewards]
    return {
        "run": run,
        "names": [shown.rewards[each.name] for each in related],
        "rows": rows,
        "related": [_related(each) for each in related],
        "more": max(0, len(turns) - _ROWS),
    }


def _related(each: WithTurns) -> str:
    if each.correlation != each.correlation:
        return "–"
    margin = f" ± {each.margin:.2f}" if each.margin == each.margin else ""
    return f"{each.correlation:.2f}{margin}".replace("-", "−")


def turn_charts(runs: Sequence[RunAnalysis], shown: Labels) -> list[Chart]:
    """Return the charts of influence shares and of zero-variance groups by turn, for each run."""
    charts: list[Chart] = []
    for run in runs:
        turns = run.turns()[:_ROWS]
        if len(turns) < 2:
            continue
        title = shown.runs[run.run] or "all rewards"
        names = [reward.name for reward in turns[0].rewards if reward.name in shown.rewards]
        places = [[reward.name for reward in turns[0].rewards].index(name) for name in names]
        labels = [shown.rewards[name] for name in names]
        influence = [_influence_line(turns, *each) for each in zip(places, labels, strict=True)]
        lines = [_constant_line(turns, *each) for each in zip(places, labels, strict=True)]
        charts.append(_chart(title, "influence share", turns, influence))
        charts.append(_chart(title, "zero-variance groups", turns, lines))
    return charts


def _influence_line(turns: Sequence[TurnOverall], place: int, label: str) -> Line:
    rewards = [turn.rewards[place] for turn in turns]
    value = np.array([reward.influence_share for reward in rewards])
    margin = np.array([reward.influence_margin for reward in rewards])
    notes = tuple(f"({turn.groups:,} groups)" for turn in turns)
    low, high = (np.clip(value + sign * margin, -1.0, 1.0) for sign in (-1, 1))
    return Line(label, place % COLOURS, value, low, high, note=notes)


def _constant_line(turns: Sequence[TurnOverall], place: int, label: str) -> Line:
    value = np.array([turn.rewards[place].zero_variance_groups for turn in turns])
    notes = tuple(f"({turn.rewards[place].groups:,} groups)" for turn in turns)
    return Line(label, place % COLOURS, value, note=notes)


def _chart(title: str, label: str, turns: Sequence[TurnOverall], lines: Sequence[Line]) -> Chart:
    drawn = [line.value if line.low is None else line.low for line in lines]
    least = float(np.nanmin(np.concatenate([[0.0], *drawn])))
    return Chart(
        title=title,
        label=label,
        x=np.array([turn.turn for turn in turns], np.float64),
        low=least,
        high=1.0,
        lines=lines,
        unit="turn",
        rest="at the last turn",
    )
