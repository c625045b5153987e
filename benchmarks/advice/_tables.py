"""Prints what following the verdict gained or lost, per script and per kind, from the records."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from benchmarks.advice._scenarios import SCENARIOS, Scenario

from gdpo._student import student_quantile

Records = Sequence[Mapping[str, Any]]
Arms = Mapping[str, Mapping[str, float]]

CLEAR = 0.02
"""A mean gain or loss below this size counts as no change, whatever its interval."""


def purpose(scenario: Scenario, features: Mapping[str, float]) -> float:
    """Return the mean of the features that the author wants, weighted by their importance."""
    total = sum(scenario.purpose.values())
    return sum(of * features[name] for name, of in scenario.purpose.items()) / total


def point(scenario: Scenario, features: Mapping[str, float]) -> float:
    """Return the feature that is the point of the training."""
    return features[scenario.point]


Measure = Callable[[Scenario, Mapping[str, float]], float]


def gains(records: Records, where: str, measure: Measure) -> np.ndarray:
    """Return the gain of the followed verdict in every record that has a setting."""
    found: list[float] = []
    for record in records:
        scenario, arms = SCENARIOS[record["scenario"]], record[where]
        if "obeyed" in arms:
            found.append(
                measure(scenario, arms["obeyed"]) - measure(scenario, arms["unchanged"])
            )
    return np.array(found)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and the half-width of its 95 % interval. Infinite for one value."""
    count = len(values)
    if count < 2:
        return float(np.mean(values)) if count else np.nan, np.inf
    error = float(np.std(values, ddof=1)) / count**0.5
    return float(np.mean(values)), student_quantile(0.975, count - 1) * error


def outcome(values: np.ndarray) -> str:
    """Return `helped`, `hurt` or `nothing`, by the interval over warm starts."""
    mean, margin = interval(values)
    if abs(mean) < CLEAR or not abs(mean) > margin:
        return "nothing"
    return "helped" if mean > 0 else "hurt"


def _shown(values: np.ndarray) -> str:
    mean, margin = interval(values)
    if not len(values):
        return "–"
    return f"{mean:+.2f}" + (f" ± {margin:.2f}" if np.isfinite(margin) else "")


def _of(records: Records, key: str, value: str) -> list[Mapping[str, Any]]:
    return [record for record in records if record[key] == value]


def lines(records: Records) -> Iterator[str]:
    """Yield the tables, as Markdown."""
    yield from _scripts(records)
    yield ""
    yield from _kinds(records)
    yield ""
    yield from _commands(records)
    yield ""
    yield from _nothing(records)


def _scripts(records: Records) -> Iterator[str]:
    yield "| script | | verdicts | unchanged: point, before and after | purpose, from there | purpose, from the start | point, from the start |"
    yield "|---|---|---|---|---|---|---|"
    for name, scenario in SCENARIOS.items():
        own = _of(records, "scenario", name)
        said = ", ".join(f"{count} {what}" for what, count in _counted(own).items())
        before, after = (
            np.mean([point(scenario, each) for each in ends])
            for ends in (
                [r["begin"] for r in own],
                [r["from the start"]["unchanged"] for r in own],
            )
        )
        cells = (
            _shown(gains(own, "from there", purpose)),
            _shown(gains(own, "from the start", purpose)),
            _shown(gains(own, "from the start", point)),
        )
        yield f"| {name} | {scenario.sort} | {said} | {before:.2f}, {after:.2f} | {' | '.join(cells)} |"


def _counted(records: Records) -> dict[str, int]:
    said = [f"{r['action']}{f' ({r['kind']})' if r['kind'] else ''}" for r in records]
    return {what: said.count(what) for what in dict.fromkeys(said)}
