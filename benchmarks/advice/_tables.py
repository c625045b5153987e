"""Prints what following the verdict gained or lost, per script and per kind, from the records."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from benchmarks._shown import half_width, row
from benchmarks.advice._scenarios import SCENARIOS, Scenario

Record = Mapping[str, Any]
Ends = Mapping[str, float]
"""Mean of every feature at the end of a training."""

CLEAR = 0.02
"""A mean gain or loss below this size counts as no change, whatever its interval."""

FELL = 0.1
"""A point that fell by more than this from the first 5 steps to the last 10 before the analysis has
fallen."""

THERE, START = "from there", "from the start"


def purpose(scenario: Scenario, ends: Ends) -> float:
    """Return the mean of the features that the author wants, weighted by their importance."""
    total = sum(scenario.purpose.values())
    return sum(importance * ends[name] for name, importance in scenario.purpose.items()) / total


def point(scenario: Scenario, ends: Ends) -> float:
    """Return the feature that is the point of the training."""
    return ends[scenario.point]


Measure = Callable[[Scenario, Ends], float]
Measured = ((THERE, purpose), (START, purpose), (THERE, point), (START, point))


def gains(records: Iterable[Record], where: str, of: Measure, arm: str = "obeyed") -> list[float]:
    """Return the gain of an arm over the unchanged script, in every record that has both."""
    found: list[float] = []
    for record in records:
        scenario, arms = SCENARIOS[record["scenario"]], record[where]
        if arm in arms:
            found.append(of(scenario, arms[arm]) - of(scenario, arms["unchanged"]))
    return found


def outcome(values: Sequence[float]) -> str:
    """Return `helped`, `hurt` or `nothing`, by the interval over warm starts."""
    if not values:
        return "not followed"
    mean = float(np.mean(values))
    if abs(mean) < CLEAR or not abs(mean) > half_width(values):
        return "nothing"
    return "helped" if mean > 0 else "hurt"


def by_warm_start(records: Sequence[Record], where: str, of: Measure) -> list[float]:
    """Return the gain of each warm start, averaged over its scripts."""
    seeds = sorted({record["seed"] for record in records})
    each = [gains([r for r in records if r["seed"] == seed], where, of) for seed in seeds]
    return [float(np.mean(of_seed)) for of_seed in each if of_seed]


def print_tables(records: Sequence[Record]) -> None:
    """Print the tables, as Markdown."""
    scripts = {name: [r for r in records if r["scenario"] == name] for name in SCENARIOS}
    scripts = {name: own for name, own in scripts.items() if own}
    _scripts(scripts)
    print()
    row("kind", _HEADS, head=True)
    for kind in dict.fromkeys(SCENARIOS[name].kind for name in scripts):
        own = [r for r in records if SCENARIOS[r["scenario"]].kind == kind]
        row(kind, [_shown(by_warm_start(own, *each)) for each in Measured])
    print()
    _settings(scripts)
    print()
    _nothing(records)


_HEADS = [f"{of.__name__}, {where}" for where, of in Measured]


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{np.mean(values):+.2f} ± {half_width(values):.2f}"


def _scripts(scripts: Mapping[str, Sequence[Record]]) -> None:
    row("script", ["sort", "verdicts", "unchanged point", *_HEADS, "outcome"], head=True)
    for name, own in scripts.items():
        said = Counter(f"{r['action']} {r['kind'] or ''}".strip() for r in own)
        begin = np.mean([point(SCENARIOS[name], r["begin"]) for r in own])
        end = np.mean([point(SCENARIOS[name], r[START]["unchanged"]) for r in own])
        cells = [_shown(gains(own, *each)) for each in Measured]
        verdicts = ", ".join(f"{count} {what}" for what, count in said.items())
        course = f"{begin:.2f} → {end:.2f}"
        result = outcome(gains(own, START, purpose))
        row(name, [SCENARIOS[name].sort, verdicts, course, *cells, result])


def _settings(scripts: Mapping[str, Sequence[Record]]) -> None:
    """Print how often the setting of each meaning helped, hurt or did nothing, by script."""
    row("setting for", ["scripts", "runs", "helped", "hurt", "nothing"], head=True)
    for meaning in ("weights", "equal", "sizes"):
        found = {name: [r for r in own if r["meaning"] == meaning] for name, own in scripts.items()}
        found = {name: own for name, own in found.items() if own}
        counts = Counter(outcome(gains(own, START, purpose)) for own in found.values())
        counted = [counts[what] for what in ("helped", "hurt", "nothing")]
        row(meaning, [len(found), sum(map(len, found.values())), *counted])


def _nothing(records: Sequence[Record]) -> None:
    """Print the runs with "nothing to do", and what GDPO would have given."""
    row("sort", ["runs", "nothing to do", "its point fell", "gdpo instead: purpose"], head=True)
    for sort in ("healthy", "open", "fault"):
        own = [r for r in records if SCENARIOS[r["scenario"]].sort == sort]
        calm = [r for r in own if r["action"] == "nothing"]
        fallen = [
            r
            for r in calm
            if point(SCENARIOS[r["scenario"]], r["before"])
            < point(SCENARIOS[r["scenario"]], r["begin"]) - FELL
        ]
        instead = _shown(gains(calm, START, purpose, "gdpo"))
        row(sort, [len(own), len(calm), len(fallen), instead])
