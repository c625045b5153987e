"""Findings of the diagnostics over time: which held from which step to which."""

from collections.abc import Sequence
from dataclasses import dataclass

from gdpo.analysis import LASTING, Span, spans
from gdpo.diagnostics import Finding, Kind, Severity, diagnose
from gdpo.experiments import Experiment, Run
from gdpo.report._replay import Replay, Replayed


@dataclass(frozen=True, slots=True)
class Lasting:
    """A finding that held for some time in the runs of an arm."""

    arm: str
    finding: Finding
    """As it was when it held last."""
    spans: dict[int, tuple[Span, ...]]
    """By seed, where it held."""
    steps: int
    """In which it held, over all seeds."""


def lasting_findings(experiment: Experiment, replay: Replay) -> list[Lasting]:
    """Arm by arm what held for 5 steps in a row or more in any run, worst first.

    A run of fewer steps has to show it in all of them.
    """
    return [found for arm in experiment.arms for found in _of_arm(experiment, arm, replay)]


def _of_arm(experiment: Experiment, arm: str, replay: Replay) -> list[Lasting]:
    merged: dict[tuple[Kind, tuple[str, ...]], Lasting] = {}
    for run in experiment.runs_of(arm):
        for finding, held, steps in _of_run(experiment, run, replay.of_run(run)):
            key = (finding.kind, finding.rewards)
            before = merged.get(key)
            earlier, count = (before.spans, before.steps) if before else ({}, 0)
            merged[key] = Lasting(arm, finding, {**earlier, run.seed: held}, count + steps)
    severities, kinds = list(Severity), list(Kind)
    return sorted(
        merged.values(),
        key=lambda found: (
            severities.index(found.finding.severity),
            -found.steps,
            kinds.index(found.finding.kind),
        ),
    )


def _of_run(
    experiment: Experiment, run: Run, steps: Sequence[Replayed]
) -> list[tuple[Finding, tuple[Span, ...], int]]:
    low = {reward.name: reward.low for reward in experiment.rewards}
    high = {reward.name: reward.high for reward in experiment.rewards}
    latest: dict[tuple[Kind, tuple[str, ...]], Finding] = {}
    held: dict[tuple[Kind, tuple[str, ...]], list[int]] = {}
    for place, replayed in enumerate(steps):
        step = replayed.step
        diagnosis = diagnose(
            step.rewards,
            step.weights,
            step.names,
            estimator=run.arm,
            advantages=step.advantages,
            low={name: low[name] for name in step.names if name in low},
            high={name: high[name] for name in step.names if name in high},
        )
        for finding in diagnosis.findings:
            key = (finding.kind, finding.rewards)
            latest[key] = finding
            held.setdefault(key, []).append(place)
    numbers = [replayed.step.number for replayed in steps]
    found: list[tuple[Finding, tuple[Span, ...], int]] = []
    for key, places in held.items():
        held_spans = spans(places)
        if max(last - first + 1 for first, last in held_spans) >= min(LASTING, len(steps)):
            named = tuple((numbers[first], numbers[last]) for first, last in held_spans)
            found.append((latest[key], named, len(places)))
    return found
