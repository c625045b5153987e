"""Prints what following the verdict gained or lost, per script and per kind, from the records."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from benchmarks.advice._scenarios import SCENARIOS, Scenario

from gdpo._student import student_quantile

Record = Mapping[str, Any]
Ends = Mapping[str, float]
"""Mean of every feature at the end of a training."""

CLEAR = 0.02
"""A mean gain or loss below this size counts as no change, whatever its interval."""

THERE, START = "from there", "from the start"


def purpose(scenario: Scenario, ends: Ends) -> float:
    """Return the mean of the features that the author wants, weighted by their importance."""
    total = sum(scenario.purpose.values())
    return sum(importance * ends[name] for name, importance in scenario.purpose.items()) / total


def point(scenario: Scenario, ends: Ends) -> float:
    """Return the feature that is the point of the training."""
    return ends[scenario.point]


Measure = Callable[[Scenario, Ends], float]


def gains(records: Iterable[Record], where: str, measure: Measure, arm: str = "obeyed") -> Any:
    """Return the gain of an arm over the unchanged script, in every record that has both."""
    return np.array(
        [
            measure(scenario, arms[arm]) - measure(scenario, arms["unchanged"])
            for record in records
            for scenario, arms in [(SCENARIOS[record["scenario"]], record[where])]
            if arm in arms
        ]
    )


def interval(values: Any) -> tuple[float, float]:
    """Return the mean and the half-width of its 95 % interval (Student's t over warm starts)."""
    count = len(values)
    if count < 2:
        return (float(np.mean(values)) if count else np.nan), np.inf
    error = float(np.std(values, ddof=1)) / count**0.5
    return float(np.mean(values)), student_quantile(0.975, count - 1) * error


def outcome(values: Any) -> str:
    """Return `helped`, `hurt` or `nothing`, by the interval over warm starts."""
    mean, margin = interval(values)
    if not len(values):
        return "no command"
    if abs(mean) < CLEAR or abs(mean) <= margin:
        return "nothing"
    return "helped" if mean > 0 else "hurt"


def by_warm_start(records: Sequence[Record], where: str, measure: Measure) -> Any:
    """Return the gain of each warm start, averaged over its scripts."""
    seeds = sorted({record["seed"] for record in records})
    each = [
        gains([record for record in records if record["seed"] == seed], where, measure)
        for seed in seeds
    ]
    return np.array([np.mean(of_seed) for of_seed in each if len(of_seed)])


def lines(records: Sequence[Record]) -> Iterator[str]:
    """Yield the tables, as Markdown."""
    by_script = {
        name: [record for record in records if record["scenario"] == name] for name in SCENARIOS
    }
    by_script = {name: own for name, own in by_script.items() if own}
    yield from _scripts(by_script)
    yield ""
    yield from _kinds(by_script)
    yield ""
    yield from _commands(by_script)
    yield ""
    yield from _nothing(by_script)


def _shown(values: Any) -> str:
    mean, margin = interval(values)
    if not len(values):
        return "–"
    return f"{mean:+.2f}" + (f" ± {margin:.2f}" if np.isfinite(margin) else "")


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _verdict(record: Record) -> str:
    return record["action"] + (f" ({record['kind']})" if record["kind"] else "")


Scripts = Mapping[str, Sequence[Record]]


def _scripts(by_script: Scripts) -> Iterator[str]:
    yield _row(
        "script", "sort", "verdicts", "unchanged point", "purpose, from there",
        "purpose, from the start", "point, from the start", "outcome",
    )  # fmt: skip
    yield _row(*["---"] * 8)
    for name, own in by_script.items():
        said = Counter(map(_verdict, own))
        course = [
            np.mean([point(SCENARIOS[name], record) for record in ends])
            for ends in (
                [record["begin"] for record in own],
                [record[START]["unchanged"] for record in own],
            )
        ]
        yield _row(
            name,
            SCENARIOS[name].sort,
            ", ".join(f"{count} {what}" for what, count in said.items()),
            " → ".join(f"{each:.2f}" for each in course),
            _shown(gains(own, THERE, purpose)),
            _shown(gains(own, START, purpose)),
            _shown(gains(own, START, point)),
            outcome(gains(own, START, purpose)),
        )


def _kinds(by_script: Scripts) -> Iterator[str]:
    yield _row("kind", "purpose, from there", "purpose, from the start", "point, from the start")
    yield _row(*["---"] * 4)
    for kind in dict.fromkeys(SCENARIOS[name].kind for name in by_script):
        own = [
            record
            for name, records in by_script.items()
            if SCENARIOS[name].kind == kind
            for record in records
        ]
        measured = ((THERE, purpose), (START, purpose), (START, point))
        yield _row(kind, *(_shown(by_warm_start(own, *each)) for each in measured))


def _commands(by_script: Scripts) -> Iterator[str]:
    """Yield how often each verdict with a command helped, hurt or did nothing, by script."""
    yield _row("verdict", "scripts", "runs", "helped", "hurt", "nothing")
    yield _row(*["---"] * 6)
    every = [record for own in by_script.values() for record in own]
    for said in sorted({_verdict(record) for record in every if record["setting"]}):
        found = {
            name: [each for each in own if each["setting"] and _verdict(each) == said]
            for name, own in by_script.items()
        }
        found = {name: own for name, own in found.items() if own}
        counts = Counter(outcome(gains(own, START, purpose)) for own in found.values())
        counted = (counts[what] for what in ("helped", "hurt", "nothing"))
        yield _row(said, len(found), sum(map(len, found.values())), *counted)


def _nothing(by_script: Scripts) -> Iterator[str]:
    """Yield what the runs with "nothing to do" did, and what GDPO would have given."""
    yield _row("sort", "runs", "nothing to do", "of these, the point fell", "gdpo instead: purpose")
    yield _row(*["---"] * 5)
    for sort in ("healthy", "open", "fault"):
        own = [r for name, rs in by_script.items() if SCENARIOS[name].sort == sort for r in rs]
        calm = [record for record in own if record["action"] == "nothing"]
        fell = sum(
            point(SCENARIOS[r["scenario"]], r["before"])
            < point(SCENARIOS[r["scenario"]], r["begin"]) - FELL
            for r in calm
        )
        yield _row(sort, len(own), len(calm), fell, _shown(gains(calm, START, purpose, "gdpo")))


FELL = 0.1
"""A point that fell by more than this from the first 5 steps to the last 10 before the analysis has
fallen."""
