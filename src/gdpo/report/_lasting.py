"""Findings of the diagnostics over time: which held from which step to which."""

from collections.abc import Sequence
from dataclasses import dataclass

from gdpo.diagnostics import Finding, diagnose
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.diagnostics.watch import FindingHistory, HeldFinding, Span
from gdpo.experiments.grid import estimator_of
from gdpo.experiments.reading import Experiment, Run
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
    """Return what lasted in any run, arm by arm, worst first: see `HeldFinding.lasting`."""
    return [found for arm in experiment.arms for found in _of_arm(experiment, arm, replay)]


def _of_arm(experiment: Experiment, arm: str, replay: Replay) -> list[Lasting]:
    merged: dict[tuple[Kind, tuple[str, ...]], Lasting] = {}
    for run in experiment.runs_of(arm):
        steps = replay.of_run(run)
        numbers = [replayed.step.number for replayed in steps]
        for held in _of_run(experiment, run, steps):
            finding = held.finding
            key = (finding.kind, finding.rewards)
            before = merged.get(key)
            earlier, count = (before.spans, before.steps) if before else ({}, 0)
            spans = tuple((numbers[first - 1], numbers[last - 1]) for first, last in held.spans)
            merged[key] = Lasting(arm, finding, {**earlier, run.seed: spans}, count + held.steps)
    severities, kinds = list(Severity), list(Kind)
    return sorted(
        merged.values(),
        key=lambda found: (
            severities.index(found.finding.severity),
            -found.steps,
            kinds.index(found.finding.kind),
        ),
    )


def _of_run(experiment: Experiment, run: Run, steps: Sequence[Replayed]) -> list[HeldFinding]:
    low = {reward.name: reward.low for reward in experiment.rewards}
    high = {reward.name: reward.high for reward in experiment.rewards}
    history = FindingHistory()
    for step in (replayed.step for replayed in steps):
        diagnosis = diagnose(
            step.rewards,
            step.weights,
            step.names,
            estimator=estimator_of(run.arm),
            advantages=step.advantages,
            low={name: low[name] for name in step.names if name in low},
            high={name: high[name] for name in step.names if name in high},
        )
        history.add(diagnosis.influence, diagnosis.findings)
    return [held for held in history.held() if held.lasting]
