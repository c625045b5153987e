"""Lists the checks that could not run on a run, and what to do about each."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan

from gdpo.analysis.run import RunAnalysis
from gdpo.diagnostics import Finding
from gdpo.diagnostics.diagnosis import Kind
from gdpo.diagnostics.watch import LEAST_GROUPS
from gdpo.rollouts.readers import ReadReport

_TURN_GROUPS = 40
"""Number of groups that findings about turns need (see `Thresholds.constant_turns`)."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Stores a check that could not run."""

    check: str
    """What was not checked."""
    reason: str
    """What is missing, as a sentence without a capital letter and a period."""
    remedy: str
    """What to do, so that the check can run."""

    def __str__(self) -> str:
        return f"{self.check}: {self.reason} ({self.remedy})"


def unchecked_of(run: RunAnalysis, report: ReadReport) -> Iterator[Unchecked]:
    """Yield the checks that could not run, but would matter for this run."""
    rewards = [reward for reward in run.rewards() if reward.weight_share > 0]
    turns = run.turns()
    if report.scalar_only:
        yield Unchecked(
            "effect of each reward",
            "the files contain only a scalar reward",
            "pass --rescore, or files that contain the rewards one by one",
        )
    elif len(rewards) > 1 and run.groups < LEAST_GROUPS:
        record = f"record at least {LEAST_GROUPS} groups{_logging_steps(run, report)}"
        yield Unchecked("effect of each reward", _only(run.groups), record)
    places = {
        held.finding.rewards[0]: held.finding.evidence.get("saturation", nan)
        for held in run.findings()
        if at_unknown_place(held.finding)
    }
    if places:
        yield _unknown_range(places, of_sum=bool(turns))
    if len(turns) > 1 and turns[0].groups < _TURN_GROUPS:
        record = f"record at least {_TURN_GROUPS} groups"
        yield Unchecked("findings about turns", _only(turns[0].groups), record)


def _only(groups: int) -> str:
    return f"there {'is only 1 group' if groups == 1 else f'are only {groups} groups'}"


def _unknown_range(places: Mapping[str, float], *, of_sum: bool) -> Unchecked:
    """Return what to add for rewards that are constant, with all of them in one pair of options.

    `places` are NaN where a reward has no declared range. `of_sum`: the range is that of the sum
    over turns.
    """
    names = [f"`{name}`" for name in places]
    ranges, they, are = "the range", "it", "is"
    if len(names) > 1:
        ranges, they, are = "the ranges", "they", "are"
    wrong = not any(map(isnan, places.values()))
    state = f"{'wrong' if wrong else 'unknown'}, so {they} may be learned or out of reach"
    low, high = (
        shlex.quote(",".join(f"{name}={end}" for name in places)) for end in ("LOWEST", "HIGHEST")
    )
    total = " (of the sum over the turns)" if of_sum else ""
    return Unchecked(
        f"whether {' and '.join(names)} {are} learned",
        f"{ranges} of {' and '.join(names)} {are} {state}",
        f"add --low {low} --high {high}{total}",
    )


def at_unknown_place(finding: Finding) -> bool:
    """Return whether a reward is constant at a place that its range, if any, does not contain."""
    place = finding.evidence.get("saturation", nan)
    return finding.kind is Kind.CONSTANT and not 0 <= place <= 1


def _logging_steps(run: RunAnalysis, report: ReadReport) -> str:
    gaps = [later - step for step, later in pairwise(run.steps)]
    if "trl" not in report.formats or not gaps or min(gaps) == 1:
        return ""
    return ". TRL writes only every logging step: set logging_steps=1"
