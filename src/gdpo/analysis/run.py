"""All steps of a run together: each reward over time and over all, and which findings held."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from gdpo.analysis._steps import StepAnalysis
from gdpo.diagnostics import Diagnosis, Finding, Influence
from gdpo.diagnostics.influence import pooled
from gdpo.diagnostics.watch import FindingHistory, HeldFinding

OVER_TIME = ("mean", "missing", "dead_groups", "group_std")
"""What is kept of every reward at every step: fields of `RewardDiagnosis`."""

OVER_WINDOW = ("weight_share", "influence_share", "influence_margin")
"""What is known of every reward at every step from the last groups together."""

_TENTH = 10

_Pairs: TypeAlias = tuple[Float[np.ndarray, "reward reward"], Float[np.ndarray, "reward reward"]]


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
    weight_share: float
    """Share of the weights, mean over the groups."""
    influence_share: float
    """Share of the influence of all groups together; negative: against its weight."""
    influence_margin: float
    """Half of the 95 % interval of that share."""
    with_length: float
    """Correlation with the number of tokens in groups, mean over the steps."""


@dataclass(slots=True)
class _Traced:
    """The steps of a run in their order, as far as they have been taken in."""

    history: FindingHistory = field(default_factory=FindingHistory)
    windows: list[Influence] = field(default_factory=list[Influence])


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
    _found: list[tuple[Influence, tuple[Finding, ...]]] = field(default_factory=list, repr=False)
    """Numbers of each step alone."""
    _traced: _Traced = field(default_factory=_Traced, repr=False)

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
        self._found.append((diagnosis.influence, diagnosis.findings))
        self._lengths.append((step.num_tokens, step.cut))
        self._gains.append(nan if diagnosis.batch_gain is None else diagnosis.batch_gain)
        self._correlate(diagnosis)
        self.steps.append(step.step)

    def sort(self) -> None:
        """Put the steps in order: several files may each begin anew, as those of ranks do."""
        order = np.argsort(self.steps, kind="stable").tolist()
        if order == list(range(len(order))):
            return
        for kept in (self.steps, self._kept, self._gains, self._lengths, self._found):
            kept[:] = [kept[place] for place in order]
        self._traced = _Traced()

    def over_time(self, name: str, what: str) -> Float[np.ndarray, " step"]:
        """One number of a reward at every step; NaN where it has none.

        Args:
            name: The reward.
            what: One of `OVER_TIME`, `OVER_WINDOW`, or `with_length`.
        """
        if what in OVER_WINDOW:
            windows = (_of_window(window, what) for window in self._trace().windows)
            return np.array([window.get(name, nan) for window in windows])
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
        if not self._found:
            return []
        whole = _whole([influence for influence, _ in self._found])
        return [self._overall(name, whole) for name in self.names]

    def findings(self) -> list[HeldFinding]:
        """What was found in any step: the worst first, and of these what held longest."""
        return self._trace().history.held()

    def _trace(self) -> _Traced:
        """Follow the findings through the steps that came since it was last asked."""
        traced = self._traced
        for influence, findings in self._found[traced.history.steps :]:
            window, _ = traced.history.add(influence, findings)
            traced.windows.append(window)
        return traced

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

    def _overall(self, name: str, whole: Influence) -> RewardOverall:
        there, total, groups, live = self._counts[name]
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
            with_length=_mean(self.over_time(name, "with_length")),
            **{what: _of_window(whole, what)[name] for what in OVER_WINDOW},
        )


def _whole(steps: Sequence[Influence]) -> Influence:
    """Return the sums over all steps, in which steps of one group count after one another."""
    return pooled([step.after(last) for step, last in zip(steps, [None, *steps], strict=False)])


def _of_window(window: Influence, what: str) -> dict[str, float]:
    """Return one of `OVER_WINDOW` by reward."""
    values = {
        "weight_share": window.weight_shares,
        "influence_share": window.shares,
        "influence_margin": window.margins,
    }[what]
    return dict(zip(window.names, values.tolist(), strict=True))


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
