"""Lists the checks that could not run on a run, and what each of them needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import nan

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
    """What the files contain."""
    needs: str
    """What the check needs, and how to get it."""

    def __str__(self) -> str:
        return f"{self.check}, because {self.reason} (needed: {self.needs})"


def unchecked_of(run: RunAnalysis, report: ReadReport) -> Iterator[Unchecked]:
    """Yield the checks that could not run, but would matter for this run.

    Args:
        run: The analysis of the run.
        report: What was read.
    """
    rewards = [reward for reward in run.rewards() if reward.weight_share > 0]
    groups = run.groups
    if report.scalar_only:
        yield Unchecked(
            "the effect of each reward",
            "the files contain only a scalar reward",
            "the rewards one by one: --rescore, or files that contain them",
        )
    elif len(rewards) > 1 and groups < LEAST_GROUPS:
        how = _logging_steps(run, report)
        few = f"there are only {groups} groups"
        yield Unchecked("the effect of each reward", few, f"{LEAST_GROUPS} groups{how}")
    turns = run.turns()
    total = ", of its sum over the turns" if turns else ""
    places = [held.finding for held in run.findings() if at_unknown_place(held.finding)]
    if names := [name for finding in places for name in finding.rewards]:
        each, value = (("is", "its value is"), ("are", "their values are"))[len(names) > 1]
        low, high = (",".join(f"{name}={end}" for name in names) for end in ("LOWEST", "HIGHEST"))
        yield Unchecked(
            f"whether {' and '.join(f'`{name}`' for name in names)} {each} learned or out of reach",
            f"{value} in no known range",
            f"--low {low} --high {high}{total}",
        )
    if len(turns) > 1 and turns[0].groups < _TURN_GROUPS:
        few = f"there are only {turns[0].groups} groups"
        yield Unchecked("findings about turns", few, f"{_TURN_GROUPS} groups")


def at_unknown_place(finding: Finding) -> bool:
    """Return whether a reward is constant at a place that its range, if any, does not contain."""
    place = finding.evidence.get("saturation", nan)
    return finding.kind is Kind.CONSTANT and not 0 <= place <= 1


def _logging_steps(run: RunAnalysis, report: ReadReport) -> str:
    """Return what to set in TRL, if it recorded only every N-th step."""
    gaps = [later - step for step, later in pairwise(run.steps)]
    if "trl" not in report.formats or not gaps or min(gaps) == 1:
        return ""
    return ": TRL writes only every logging step; set logging_steps=1"
