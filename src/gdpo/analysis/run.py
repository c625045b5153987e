"""All steps of a run: each reward over time, over all and by length, and which findings held."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from gdpo.analysis.steps import StepAnalysis
from gdpo.diagnostics import Diagnosis, Finding, Influence
from gdpo.diagnostics.influence import pooled
from gdpo.diagnostics.watch import FindingHistory, HeldFinding

OVER_TIME = ("mean", "missing", "zero_variance_groups", "group_std")
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
    zero_variance_groups: int
    """Number of groups in which all samples have the same value."""
    weight_share: float
    """Share of the weights, mean over the groups."""
    influence_share: float
    """Share of the influence of all groups together; negative: against its weight."""
    influence_margin: float
    """Half of the 95 % interval of that share."""
    with_length: float
    """Correlation with the number of tokens in groups, mean over the steps."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """The numbers of a step alone."""

    number: int
    rewards: Mapping[str, Float[np.ndarray, " number"]]
    """By reward: those of `OVER_TIME`, and `with_length`."""
    batch_gain: float
    num_tokens: float
    cut: float
    influence: Influence
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class RunAnalysis:
    """One run, step by step."""

    run: str
    rollouts: int = 0
    left_out: int = 0
    recorded: int = 0
    """Steps whose advantages are those of the dump."""
    weightings: Counter[str] = field(default_factory=Counter[str])
    """How the weights of the steps are known, and of how many."""
    estimators: set[str] = field(default_factory=set[str])
    """What made the advantages of the other steps."""
    _steps: list[_Step] = field(default_factory=list[_Step], repr=False)
    _pairs: dict[tuple[str, ...], _Pairs] = field(default_factory=dict, repr=False)
    _counts: dict[str, Float[np.ndarray, " number"]] = field(default_factory=dict, repr=False)
    _history: FindingHistory = field(default_factory=FindingHistory, repr=False)
    """Of the steps in their order, as far as they have been taken in; see `_follow`."""
    _windows: list[Influence] = field(default_factory=list[Influence], repr=False)

    @property
    def steps(self) -> list[int]:
        """The numbers of the steps, in their order."""
        return [step.number for step in self._steps]

    @property
    def names(self) -> tuple[str, ...]:
        """The rewards of any step."""
        return tuple(self._counts)

    @property
    def weights_from(self) -> str:
        """How the weights are known: of all steps, or of how many in which way."""
        if len(self.weightings) < 2:
            return "".join(self.weightings)
        of = len(self._steps)
        known = self.weightings.most_common()
        return "; ".join(f"{how} in {count:,} of {of:,} steps" for how, count in known)

    def add(self, step: StepAnalysis) -> None:
        """Take in the next step."""
        diagnosis = step.diagnosis
        self.rollouts += step.rollouts
        self.left_out += step.left_out
        self.recorded += step.recorded
        self.weightings[step.weights_from] += 1
        if not step.recorded:
            self.estimators.add(str(diagnosis.estimator))
        self._correlate(diagnosis)
        self._steps.append(
            _Step(
                number=step.step,
                rewards=self._numbers(step),
                batch_gain=nan if diagnosis.batch_gain is None else diagnosis.batch_gain,
                num_tokens=step.num_tokens,
                cut=step.cut,
                influence=diagnosis.influence,
                findings=diagnosis.findings,
            )
        )

    def sort(self) -> None:
        """Put the steps in order: several files may each begin anew, as those of ranks do."""
        ordered = sorted(self._steps, key=lambda step: step.number)
        if ordered != self._steps:
            self._steps = ordered
            self._history, self._windows = FindingHistory(), []

    def over_time(self, name: str, what: str) -> Float[np.ndarray, " step"]:
        """One number of a reward at every step; NaN where it has none.

        Args:
            name: The reward.
            what: One of `OVER_TIME`, `OVER_WINDOW`, or `with_length`.
        """
        if what in OVER_WINDOW:
            self._follow()
            windows = (_of_window(window, what) for window in self._windows)
            return np.array([window.get(name, nan) for window in windows])
        place = (*OVER_TIME, "with_length").index(what)
        numbers = (step.rewards.get(name) for step in self._steps)
        return np.array([nan if known is None else known[place] for known in numbers])

    def lengths(self) -> Float[np.ndarray, "step 2"]:
        """Mean tokens of a completion, and the share that was cut, at every step."""
        lengths = [(step.num_tokens, step.cut) for step in self._steps]
        return np.array(lengths, np.float64).reshape(-1, 2)

    def batch_gains(self) -> Float[np.ndarray, " step"]:
        """What GDPO's batch step multiplies with at every step; NaN: nothing varies."""
        return np.array([step.batch_gain for step in self._steps])

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
        if not self._steps:
            return []
        influences = [step.influence for step in self._steps]
        # Steps of one group count after one another.
        after = zip(influences, [None, *influences], strict=False)
        whole = pooled([step.after(last) for step, last in after])
        return [self._overall(name, whole) for name in self.names]

    def findings(self) -> list[HeldFinding]:
        """What was found in any step: the worst first, and of these what held longest."""
        self._follow()
        return self._history.held()

    def _follow(self) -> None:
        """Follow the findings through the steps that came since this was last asked."""
        for step in self._steps[self._history.steps :]:
            window, _ = self._history.add(step.influence, step.findings)
            self._windows.append(window)

    def _correlate(self, diagnosis: Diagnosis) -> None:
        names = tuple(reward.name for reward in diagnosis.rewards)
        values, degrees = np.array(diagnosis.correlation), np.array(diagnosis.degrees)
        counts = np.where(np.isnan(values), 0.0, degrees)
        sums = np.where(counts > 0, values, 0.0) * counts
        before = self._pairs.get(names, (np.zeros_like(sums), np.zeros_like(sums)))
        self._pairs[names] = (before[0] + sums, before[1] + counts)

    def _numbers(self, step: StepAnalysis) -> dict[str, Float[np.ndarray, " number"]]:
        cells = step.diagnosis.prompts * step.diagnosis.samples
        numbers: dict[str, Float[np.ndarray, " number"]] = {}
        for reward, length in zip(step.diagnosis.rewards, step.with_length, strict=True):
            there = round((1 - reward.missing) * cells)
            values = {name: getattr(reward, name) for name in OVER_TIME}
            # Padding of smaller groups is missing in the array, and no rollout.
            values |= {"missing": 1 - there / step.rollouts, "with_length": length}
            numbers[reward.name] = np.array([nan if v is None else v for v in values.values()])
            constant = round(reward.groups * (reward.zero_variance_groups or 0.0))
            counts = np.array([1, there, there * (reward.mean or 0.0), reward.groups, constant])
            self._counts[reward.name] = self._counts.get(reward.name, 0) + counts
        return numbers

    def _overall(self, name: str, whole: Influence) -> RewardOverall:
        steps, there, total, groups, constant = self._counts[name].tolist()
        means = self.over_time(name, "mean")
        means = means[~np.isnan(means)]
        tenth = max(1, len(means) // _TENTH)
        return RewardOverall(
            name=name,
            steps=int(steps),
            mean=total / there if there else nan,
            first=_mean(means[:tenth]),
            last=_mean(means[-tenth:]),
            missing=1 - there / self.rollouts if self.rollouts else nan,
            groups=int(groups),
            zero_variance_groups=int(constant),
            with_length=_mean(self.over_time(name, "with_length")),
            **{what: _of_window(whole, what)[name] for what in OVER_WINDOW},
        )


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


_BINS = 24
"""At most; there are at least half as many once lengths reach that."""


class LengthBins:
    """Rewards by length, added to step by step. The width of the bins doubles when it has to."""

    def __init__(self) -> None:
        self.width = 1.0
        self._sums: dict[str, tuple[Float[np.ndarray, " bin"], Float[np.ndarray, " bin"]]] = {}

    def add(
        self,
        name: str,
        lengths: Float[np.ndarray, " rollout"],
        rewards: Float[np.ndarray, " rollout"],
    ) -> None:
        """Take in the rollouts of a step; those without a length or the reward are left out."""
        known = np.isfinite(lengths) & np.isfinite(rewards) & (lengths >= 0)
        if not np.any(known):
            return
        while float(np.max(lengths[known])) >= self.width * _BINS:
            self._widen()
        places = (lengths[known] / self.width).astype(np.int64)
        counts, sums = self._sums.get(name, (np.zeros(_BINS), np.zeros(_BINS)))
        self._sums[name] = (
            counts + np.bincount(places, minlength=_BINS),
            sums + np.bincount(places, weights=rewards[known], minlength=_BINS),
        )

    def widened(self, width: float) -> "LengthBins":
        """The same rollouts in bins of that width, which is its own or that doubled some times."""
        wide = LengthBins()
        wide.width, wide._sums = self.width, self._sums
        while wide.width < width:
            wide._widen()
        return wide

    @property
    def middles(self) -> Float[np.ndarray, " bin"]:
        """The length in the middle of each bin, up to the last that holds a rollout."""
        filled = [np.flatnonzero(counts) for counts, _ in self._sums.values()]
        last = max((int(places[-1]) for places in filled if len(places)), default=-1)
        return (np.arange(last + 1) + 0.5) * self.width

    def counts(self, name: str) -> Float[np.ndarray, " bin"]:
        """Rollouts in each bin that have the reward."""
        return self._sums.get(name, (np.zeros(_BINS),))[0][: len(self.middles)]

    def means(self, name: str) -> Float[np.ndarray, " bin"]:
        """Mean reward in each bin; NaN: it holds none."""
        counts, sums = self._sums.get(name, (np.zeros(_BINS), np.zeros(_BINS)))
        means = np.where(counts > 0, sums / np.maximum(counts, 1), nan)
        return means[: len(self.middles)]

    def _widen(self) -> None:
        self.width *= 2
        self._sums = {key: (_halved(n), _halved(s)) for key, (n, s) in self._sums.items()}


def _halved(values: Float[np.ndarray, " bin"]) -> Float[np.ndarray, " bin"]:
    """Two neighbouring bins as one, and empty ones at the end."""
    return np.concatenate([values.reshape(-1, 2).sum(axis=1), np.zeros(_BINS // 2)])
