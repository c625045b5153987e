"""Lists the checks that could not run on a run, and what each of them needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from gdpo.analysis.run import RunAnalysis
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
        return f"{self.check}: {self.reason} (needs {self.needs})"


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
            "effect of each reward",
            "the files contain only a scalar reward",
            "the rewards one by one: --rescore, or files that contain them",
        )
    elif len(rewards) > 1 and groups < LEAST_GROUPS:
        how = _logging_steps(run, report)
        yield Unchecked("effect of each reward", f"{groups} groups", f"{LEAST_GROUPS} groups{how}")
    for held in run.findings():
        finding = held.finding
        if finding.kind is Kind.CONSTANT and "saturation" not in finding.evidence:
            (name,) = finding.rewards
            yield Unchecked(
                f"whether `{name}` is learned or out of reach",
                "its range is unknown",
                f"--low {name}=LOWEST --high {name}=HIGHEST",
            )
    turns = run.turns()
    if len(turns) > 1 and turns[0].groups < _TURN_GROUPS:
        yield Unchecked("findings about turns", f"{turns[0].groups} groups", f"{_TURN_GROUPS}")


def _logging_steps(run: RunAnalysis, report: ReadReport) -> str:
    """Return what to set in TRL, if it recorded only every N-th step."""
    gaps = [later - step for step, later in pairwise(run.steps)]
    if "trl" not in report.formats or not gaps or min(gaps) == 1:
        return ""
    return ": TRL writes only every logging step; set logging_steps=1"
