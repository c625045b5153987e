"""All steps of a run together: each reward over time and over all, and which findings held."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from gdpo.analysis._steps import StepAnalysis
from gdpo.diagnostics import Diagnosis, Finding, Kind, Severity

OVER_TIME = ("mean", "missing", "dead_groups", "group_std", "requested", "realized", "energy")
"""What is kept of every reward at every step: fields of `RewardDiagnosis`."""

LASTING = 5
"""Steps in a row that a finding has to hold for to be told, as the alarms in training want it."""

_TENTH = 10

_Pairs: TypeAlias = tuple[Float[np.ndarray, "reward reward"], Float[np.ndarray, "reward reward"]]

Span: TypeAlias = tuple[int, int]
"""First and last step."""


@dataclass(frozen=True, slots=True)
class RewardOverall:
    """One reward over all steps that have it. NaN: nothing to compute it from."""

    name: str
    steps: int
    mean: float
    """Over the rollouts that it applies to."""
    first: float
    """Mean of the first tenth of the steps that have it, one at least."""
    last: float
    """Mean of the last tenth."""
    missing: float
    """Share of the rollouts of the run."""
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
    spans: tuple[Span, ...]
    """From which recorded step to which, counted from 1: their places, not their numbers."""
    of: int
    """Recorded steps in all."""

    @property
    def lasting(self) -> bool:
        """Whether it held for 5 steps in a row, or for all of a shorter run."""
        return self.in_a_row >= min(LASTING, self.of)


@dataclass(slots=True)
class _Held:
    """A finding as it is kept while steps come in."""

    last: Finding
    """As it was in the last of these steps."""
    step: int
    at: list[int] = field(default_factory=list[int])
    """Places of the steps in which it held."""


@dataclass(slots=True)
class RunAnalysis:
    """One run, step by step."""

    run: str
    steps: list[int] = field(default_factory=list[int])
    rollouts: int = 0
    left_out: int = 0
    recorded: int = 0
    """Steps whose advantages are those of the dump."""
    weightings: Counter[str] = field(default_factory=Counter[str])
    """How the weights of the steps are known, and of how many."""
    estimators: set[str] = field(default_factory=set[str])
    """What made the advantages of the other steps."""
    _kept: list[dict[str, Float[np.ndarray, " number"]]] = field(default_factory=list, repr=False)
    _gains: list[float] = field(default_factory=list[float], repr=False)
    _pairs: dict[tuple[str, ...], _Pairs] = field(default_factory=dict, repr=False)
    _lengths: list[tuple[float, float]] = field(default_factory=list, repr=False)
    _counts: dict[str, list[float]] = field(default_factory=dict, repr=False)
    _held: dict[tuple[Kind, tuple[str, ...]], "_Held"] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The rewards of any step."""
        return tuple(self._counts)

    @property
    def weights_from(self) -> str:
        """How the weights are known: of all steps, or of how many in which way."""
        if len(self.weightings) < 2:
            return "".join(self.weightings)
        of = len(self.steps)
        known = self.weightings.most_common()
        return "; ".join(f"in {count:,} of {of:,} steps {how}" for how, count in known)

    def add(self, step: StepAnalysis) -> None:
        """Take in the next step."""
        diagnosis = step.diagnosis
        self.rollouts += step.rollouts
        self.left_out += step.left_out
        self.recorded += step.recorded
        self.weightings[step.weights_from] += 1
        if not step.recorded:
            self.estimators.add(str(diagnosis.estimator))
        self._keep(step)
        for finding in diagnosis.findings:
            key = (finding.kind, finding.rewards)
            held = self._held.setdefault(key, _Held(finding, step.step))
            held.at.append(len(self.steps))
            if step.step >= held.step:
                held.last, held.step = finding, step.step
        self._lengths.append((step.num_tokens, step.cut))
        self._gains.append(nan if diagnosis.batch_gain is None else diagnosis.batch_gain)
        self._correlate(diagnosis)
        self.steps.append(step.step)

    def sort(self) -> None:
        """Put the steps in order: several files may each begin anew, as those of ranks do."""
        order = np.argsort(self.steps, kind="stable").tolist()
        if order == list(range(len(order))):
            return
        for kept in (self.steps, self._kept, self._gains, self._lengths):
            kept[:] = [kept[place] for place in order]
        now = {place: i for i, place in enumerate(order)}
        for held in self._held.values():
            held.at.sort(key=now.__getitem__)
            held.at[:] = map(now.__getitem__, held.at)

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

    def batch_gains(self) -> Float[np.ndarray, " step"]:
        """What GDPO's batch step multiplies with at every step; NaN: nothing varies."""
        return np.array(self._gains)

    def correlation(self, a: str, b: str) -> float:
        """Of the z-scores of two rewards in groups in which both vary, over all steps.

        The mean over the steps, each counted by its degrees of freedom. NaN: there is none.
        """
        total = degrees = 0.0
        for names, (sums, counts) in self._pairs.items():
            if a in names and b in names:
                place = names.index(a), names.index(b)
                total, degrees = total + sums[place], degrees + counts[place]
        return float(total / degrees) if degrees else nan

    def rewards(self) -> list[RewardOverall]:
        """Every reward over all steps."""
        return [self._overall(name) for name in self.names]

    def findings(self) -> list[HeldFinding]:
        """What was found in any step: the worst first, and of these what held longest."""
        found = [self._one(held.at, held.last) for held in self._held.values()]
        severities, kinds = list(Severity), list(Kind)
        return sorted(
            found,
            key=lambda held: (
                severities.index(held.finding.severity),
                -held.steps,
                kinds.index(held.finding.kind),
            ),
        )

    def _correlate(self, diagnosis: Diagnosis) -> None:
        names = tuple(reward.name for reward in diagnosis.rewards)
        values, degrees = np.array(diagnosis.correlation), np.array(diagnosis.degrees)
        counts = np.where(np.isnan(values), 0.0, degrees)
        sums = np.where(counts > 0, values, 0.0) * counts
        before = self._pairs.get(names, (np.zeros_like(sums), np.zeros_like(sums)))
        self._pairs[names] = (before[0] + sums, before[1] + counts)

    def _keep(self, step: StepAnalysis) -> None:
        cells = step.diagnosis.prompts * step.diagnosis.samples
        kept: dict[str, Float[np.ndarray, " number"]] = {}
        for reward, length in zip(step.diagnosis.rewards, step.with_length, strict=True):
            there = round((1 - reward.missing) * cells)
            values = {name: getattr(reward, name) for name in OVER_TIME}
            # Padding of smaller groups is missing in the array, and no rollout.
            values |= {"missing": 1 - there / step.rollouts, "with_length": length}
            kept[reward.name] = np.array([nan if v is None else v for v in values.values()])
            counts = self._counts.setdefault(reward.name, [0.0] * 4)
            added = (
                there,
                there * (reward.mean or 0.0),
                reward.groups,
                round(reward.groups * (1 - (reward.dead_groups or 0.0))),
            )
            self._counts[reward.name] = [a + b for a, b in zip(counts, added, strict=True)]
        self._kept.append(kept)

    def _overall(self, name: str) -> RewardOverall:
        there, total, groups, live = self._counts[name]

        def mean(what: str) -> float:
            return _mean(self.over_time(name, what))

        means = self.over_time(name, "mean")
        means = means[~np.isnan(means)]
        tenth = max(1, len(means) // _TENTH)
        return RewardOverall(
            name=name,
            steps=sum(name in kept for kept in self._kept),
            mean=total / there if there else nan,
            first=_mean(means[:tenth]),
            last=_mean(means[-tenth:]),
            missing=1 - there / self.rollouts if self.rollouts else nan,
            groups=int(groups),
            live_groups=int(live),
            requested=mean("requested"),
            realized=mean("realized"),
            energy=mean("energy"),
            with_length=mean("with_length"),
        )

    def _one(self, at: list[int], finding: Finding) -> HeldFinding:
        held = spans(at)
        return HeldFinding(
            finding=finding,
            first=self.steps[at[0]],
            last=self.steps[at[-1]],
            steps=len(at),
            in_a_row=max(last - first + 1 for first, last in held),
            spans=tuple((first + 1, last + 1) for first, last in held),
            of=len(self.steps),
        )


def spans(places: Sequence[int]) -> list[Span]:
    """Runs of consecutive numbers.

    >>> spans([1, 2, 3, 7, 8])
    [(1, 3), (7, 8)]
    """
    found: list[Span] = []
    for place in places:
        if found and found[-1][1] == place - 1:
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found


def _mean(values: Float[np.ndarray, " step"]) -> float:
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else nan


def analyze_runs(steps: Iterable[StepAnalysis]) -> list[RunAnalysis]:
    """The runs that the steps are of, in their order; only numbers of the steps are kept."""
    runs: dict[str, RunAnalysis] = {}
    for step in steps:
        runs.setdefault(step.run, RunAnalysis(step.run)).add(step)
    for run in runs.values():
        run.sort()
    return list(runs.values())
