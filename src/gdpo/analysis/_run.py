"""All steps of a run together: each reward over time and over all, and which findings held."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import nan

import numpy as np
from jaxtyping import Float, Int

from gdpo.analysis._steps import StepAnalysis
from gdpo.diagnostics import Finding, Kind, Severity

OVER_TIME = ("mean", "missing", "dead_groups", "group_std", "requested", "realized", "energy")
"""What is kept of every reward at every step: fields of `RewardDiagnosis`."""


@dataclass(frozen=True, slots=True)
class RewardOverall:
    """One reward over all steps that have it. NaN: nothing to compute it from."""

    name: str
    steps: int
    mean: float
    """Over the rollouts that it applies to."""
    missing: float
    """Share of the rollouts."""
    groups: int
    live_groups: int
    """Groups in which it varies."""
    requested: float
    """Share of the influence that its weight asks for, mean over the steps."""
    realized: float
    """Share that it has, mean over the steps in which anything has influence."""
    energy: float
    with_length: float
    """Correlation with the number of tokens in groups, mean over the steps."""


@dataclass(frozen=True, slots=True)
class HeldFinding:
    """A finding, and for how long it held."""

    finding: Finding
    """As it was when it held last."""
    first: int
    last: int
    steps: int
    """In how many it held."""
    in_a_row: int
    """The longest time without a break, in steps that were recorded."""


@dataclass(slots=True)
class RunAnalysis:
    """One run, step by step."""

    run: str
    steps: list[int] = field(default_factory=list[int])
    rollouts: int = 0
    left_out: int = 0
    recorded: int = 0
    """Steps whose advantages are those of the dump."""
    weights_from: str = ""
    estimators: set[str] = field(default_factory=set[str])
    """What made the advantages of the other steps."""
    _kept: list[dict[str, Float[np.ndarray, " number"]]] = field(default_factory=list, repr=False)
    _lengths: list[tuple[float, float]] = field(default_factory=list, repr=False)
    _counts: dict[str, list[float]] = field(default_factory=dict, repr=False)
    _held: dict[tuple[Kind, tuple[str, ...]], tuple[list[int], Finding]] = field(
        default_factory=dict, repr=False
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The rewards of any step."""
        return tuple(self._counts)

    def add(self, step: StepAnalysis) -> None:
        """Take in the next step."""
        diagnosis = step.diagnosis
        self.rollouts += step.rollouts
        self.left_out += step.left_out
        self.recorded += step.recorded
        self.weights_from = step.weights_from
        if not step.recorded:
            self.estimators.add(str(diagnosis.estimator))
        self._keep(step)
        for finding in diagnosis.findings:
            key = (finding.kind, finding.rewards)
            at = self._held[key][0] if key in self._held else []
            at.append(len(self.steps))
            self._held[key] = (at, finding)
        self._lengths.append((step.num_tokens, step.cut))
        self.steps.append(step.step)

    def over_time(self, name: str, what: str) -> Float[np.ndarray, " step"]:
        """One number of a reward at every step; NaN where it has none.

        Args:
            name: The reward.
            what: One of `OVER_TIME`, or `with_length`.
        """
        place = (*OVER_TIME, "with_length").index(what)
        return np.array([kept[name][place] if name in kept else nan for kept in self._kept])

    def lengths(self) -> Float[np.ndarray, "step 2"]:
        """Mean tokens of a completion, and the share that was cut, at every step."""
        return np.array(self._lengths, np.float64).reshape(-1, 2)

    def rewards(self) -> list[RewardOverall]:
        """Every reward over all steps."""
        return [self._overall(name) for name in self.names]

    def findings(self) -> list[HeldFinding]:
        """What was found in any step: the worst first, and of these what held longest."""
        found = [self._one(np.array(at), last) for at, last in self._held.values()]
        severities, kinds = list(Severity), list(Kind)
        return sorted(
            found,
            key=lambda held: (
                severities.index(held.finding.severity),
                -held.steps,
                kinds.index(held.finding.kind),
            ),
        )

    def _keep(self, step: StepAnalysis) -> None:
        cells = step.diagnosis.prompts * step.diagnosis.samples
        kept: dict[str, Float[np.ndarray, " number"]] = {}
        for reward, length in zip(step.diagnosis.rewards, step.with_length, strict=True):
            there = round((1 - reward.missing) * cells)
            values = {name: getattr(reward, name) for name in OVER_TIME}
            # Padding of smaller groups is missing in the array, and no rollout.
            values |= {"missing": 1 - there / step.rollouts, "with_length": length}
            kept[reward.name] = np.array([nan if v is None else v for v in values.values()])
            counts = self._counts.setdefault(reward.name, [0.0] * 5)
            added = (
                there,
                there * (reward.mean or 0.0),
                step.rollouts,
                reward.groups,
                round(reward.groups * (1 - (reward.dead_groups or 0.0))),
            )
            self._counts[reward.name] = [a + b for a, b in zip(counts, added, strict=True)]
        self._kept.append(kept)

    def _overall(self, name: str) -> RewardOverall:
        there, total, rollouts, groups, live = self._counts[name]

        def mean(what: str) -> float:
            values = self.over_time(name, what)
            known = values[~np.isnan(values)]
            return float(np.mean(known)) if len(known) else nan

        return RewardOverall(
            name=name,
            steps=sum(name in kept for kept in self._kept),
            mean=total / there if there else nan,
            missing=1 - there / rollouts if rollouts else nan,
            groups=int(groups),
            live_groups=int(live),
            requested=mean("requested"),
            realized=mean("realized"),
            energy=mean("energy"),
            with_length=mean("with_length"),
        )

    def _one(self, at: Int[np.ndarray, " step"], finding: Finding) -> HeldFinding:
        breaks = np.flatnonzero(np.diff(at) != 1)
        ends = np.concatenate([[-1], breaks, [len(at) - 1]])
        return HeldFinding(
            finding=finding,
            first=self.steps[at[0]],
            last=self.steps[at[-1]],
            steps=len(at),
            in_a_row=int(np.max(np.diff(ends))),
        )


def analyze_runs(steps: Iterable[StepAnalysis]) -> list[RunAnalysis]:
    """The runs that the steps are of, in their order; only numbers of the steps are kept."""
    runs: dict[str, RunAnalysis] = {}
    for step in steps:
        runs.setdefault(step.run, RunAnalysis(step.run)).add(step)
    return list(runs.values())
