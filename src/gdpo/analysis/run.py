"""Collects the results of a run: rewards over time, overall and by length, and findings."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from math import nan, sqrt
from typing import TypeAlias

import numpy as np

from gdpo._shapes import Float
from gdpo._text import quoted
from gdpo.analysis.steps import StepAnalysis
from gdpo.analysis.trend import end_means, known_mean, trend
from gdpo.diagnostics import Influence, TurnDiagnosis
from gdpo.diagnostics.diagnosis import Cause, Finding, Kind, Range, Severity, interval, percent
from gdpo.diagnostics.findings import DOMINANT, Thresholds, finding
from gdpo.diagnostics.influence import NORMAL_95, pooled
from gdpo.diagnostics.looks import LEAST_GROUPS
from gdpo.diagnostics.readings import (
    EARNED_ALONE,
    Meaning,
    Reading,
    ScoredSteps,
    readings_of,
    replayed,
)
from gdpo.diagnostics.turns import pooled_turns
from gdpo.diagnostics.watch import FindingHistory, HeldFinding, Last, Span

OVER_TIME = ("mean", "missing", "zero_variance_groups", "group_std", "weight")
"""Fields of `RewardDiagnosis` that are stored at every step."""

OVER_WINDOW = ("weight_share", "influence_share", "influence_margin")
"""Fields of `RewardDiagnosis` over the most recent groups at every step."""

_Pairs: TypeAlias = Float[np.ndarray, "two reward reward"]
"""Correlations times their degrees of freedom, and these degrees, summed over steps."""


@dataclass(frozen=True, slots=True)
class RewardOverall:
    """Stores the results for one reward over all steps that have it. NaN: no data."""

    name: str
    steps: int
    mean: float
    first: float
    """Mean over the first tenth of these steps, at least one."""
    last: float
    """Mean over the last tenth."""
    change: float
    """Mean over the last third of these steps, minus that over the first third."""
    change_margin: float
    """Half-width of the 95 % confidence interval of `change` (see `gdpo.analysis.trend`)."""
    missing: float
    """Share of the rollouts of the run without this reward."""
    groups: int
    zero_variance_groups: int
    """Number of groups in which all samples have the same value."""
    weight_share: float
    influence_share: float
    """Share of the influence over all groups. Negative: pushed against the weight."""
    influence_margin: float
    with_length: float
    """Correlation with the number of tokens within groups, averaged over the steps."""


@dataclass(slots=True)
class RunAnalysis:
    """Collects the results of one run, step by step."""

    run: str
    purpose: Meaning | None = None
    """What the user says about the meaning of the weights, if anything."""
    rollouts: int = 0
    left_out: int = 0
    recorded: int = 0
    """Number of steps with recorded advantages."""
    weightings: Counter[str] = field(default_factory=Counter)
    """Number of steps for each source of the weights."""
    equal_to: set[str] | None = None
    """Compared estimators that give the recorded advantages. None: no recorded advantages."""
    estimators: set[str] = field(default_factory=set)
    """Estimators that computed the advantages of the other steps."""
    _steps: dict[int, StepAnalysis] = field(default_factory=dict, repr=False)
    """The steps without their rewards, keyed by their place in the order of addition."""
    _numbers: dict[int, dict[str, Float[np.ndarray, " number"]]] = field(
        default_factory=dict, repr=False
    )
    """Values of `OVER_TIME` and `with_length`, keyed by place and reward."""
    _pairs: dict[tuple[str, ...], _Pairs] = field(default_factory=dict, repr=False)
    _counts: dict[str, Float[np.ndarray, " number"]] = field(default_factory=dict, repr=False)
    _history: FindingHistory = field(default_factory=FindingHistory, repr=False)
    """History of the findings, for the steps that `_follow` has added, as in the two windows."""
    _windows: list[dict[str, tuple[float, float, float]]] = field(default_factory=list, repr=False)
    """Values of `OVER_WINDOW` at every step, keyed by reward."""
    _scored: ScoredSteps = field(default_factory=ScoredSteps, repr=False)
    _found: list[HeldFinding] | None = field(default=None, repr=False)
    """The findings, if they were computed since the last step was added."""
    _readings: tuple[Reading, ...] | None = field(default=None, repr=False)
    """The replayed readings, if they were computed since the last step was added."""

    @property
    def steps(self) -> list[int]:
        """Step numbers, in order."""
        return [each.step for each in self._steps.values()]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rewards of all steps."""
        return tuple(self._counts)

    @property
    def weights_from(self) -> str:
        """Source of the weights, or several sources, each with its number of steps."""
        if len(self.weightings) < 2:
            return "".join(self.weightings)
        of = len(self._steps)
        known = self.weightings.most_common()
        return "; ".join(f"{how} in {count:,} of {of:,} steps" for how, count in known)

    def add(self, step: StepAnalysis) -> None:
        """Add the next step."""
        diagnosis, self._found, self._readings = step.diagnosis, None, None
        self.rollouts += step.rollouts
        self.left_out += step.left_out
        self.recorded += step.recorded
        self.weightings[step.weights_from] += 1
        if not step.recorded:
            self.estimators.add(str(diagnosis.estimator))
        names = tuple(reward.name for reward in diagnosis.rewards)
        related, degrees = np.array(diagnosis.correlation), np.array(diagnosis.degrees)
        degrees = np.where(np.isnan(related), 0.0, degrees)
        sums = np.where(degrees > 0, related, 0.0) * degrees
        self._pairs[names] = self._pairs.get(names, 0.0) + np.stack([sums, degrees])
        place = len(self._steps)
        self._steps[place] = replace(step, diagnosis=replace(diagnosis, scored=None))
        if diagnosis.scored is not None:
            self._scored.add(diagnosis.scored)
        cells, numbers = diagnosis.prompts * diagnosis.samples, self._numbers.setdefault(place, {})
        for reward, length in zip(diagnosis.rewards, step.with_length, strict=True):
            there = round((1 - reward.missing) * cells)
            values = {name: getattr(reward, name) for name in OVER_TIME}
            # Padding of smaller groups is NaN in the array, but not a rollout.
            values |= {"missing": 1 - there / step.rollouts, "with_length": length}
            numbers[reward.name] = np.array(list(values.values()), np.float64)
            constant = round(reward.groups * (reward.zero_variance_groups or 0.0))
            counts = np.array([1, there, there * (reward.mean or 0.0), reward.groups, constant])
            self._counts[reward.name] = self._counts.get(reward.name, 0) + counts

    def sort(self) -> None:
        """Sort the steps by number, because each file may start at the first step."""
        ordered = sorted(self._steps, key=lambda place: self._steps[place].step)
        if ordered != list(self._steps):
            self._steps = {place: self._steps[place] for place in ordered}
            self._history, self._windows, self._found = FindingHistory(), [], None

    def over_time(self, name: str, what: str) -> Float[np.ndarray, " step"]:
        """Return a reward's number, from `OVER_TIME` or `OVER_WINDOW`, at every step."""
        if what in OVER_WINDOW:
            self._follow()
            column, numbers = OVER_WINDOW.index(what), [step.get(name) for step in self._windows]
        else:
            column = (*OVER_TIME, "with_length").index(what)
            numbers = [self._numbers[place].get(name) for place in self._steps]
        return np.array([nan if known is None else known[column] for known in numbers])

    def weight_changes(self) -> dict[str, tuple[float, float]]:
        """Return the first and last weight of each reward whose weight changes."""
        found: dict[str, tuple[float, float]] = {}
        for name in self.names:
            weights = self.over_time(name, "weight")
            known = weights[~np.isnan(weights)]
            if len(known) and np.any(known != known[0]):
                found[name] = float(known[0]), float(known[-1])
        return found

    def lengths(self) -> Float[np.ndarray, "step 2"]:
        """Return the mean token count and the share of truncated completions at every step."""
        lengths = [(step.num_tokens, step.cut) for step in self._steps.values()]
        return np.array(lengths, np.float64).reshape(-1, 2)

    def batch_gains(self) -> Float[np.ndarray, " step"]:
        """Return the factor of GDPO's batch normalization at every step. NaN: nothing varies."""
        gains = [step.diagnosis.batch_gain for step in self._steps.values()]
        return np.array(gains, np.float64)

    def correlation(self, a: str, b: str, *, least: float = 0.0) -> float:
        """Return the correlation of two rewards' z-scores, in groups in which both vary.

        Averaged over the steps, weighted by degrees of freedom. NaN: with fewer than `least`.
        """
        total = degrees = 0.0
        for names, (sums, counts) in self._pairs.items():
            if a in names and b in names:
                place = names.index(a), names.index(b)
                total, degrees = total + sums[place], degrees + counts[place]
        return float(total / degrees) if degrees and degrees >= least else nan

    def influence(self) -> Influence:
        """Return the influence, pooled over all steps."""
        return pooled([each.diagnosis.influence for each in self._steps.values()])

    def learned(self) -> tuple[str, ...]:
        """Return the rewards at the good end of their range."""
        self._follow()
        return self._history.learned()

    def rewards(self) -> list[RewardOverall]:
        """Return the results for every reward."""
        if not self._steps:
            return []
        whole = self.influence().by_reward
        found: list[RewardOverall] = []
        for name in self.names:
            steps, there, total, groups, constant = self._counts[name].tolist()
            means = self.over_time(name, "mean")
            first, last = end_means(means)
            change, change_margin = trend(means)
            overall = RewardOverall(
                name=name,
                steps=int(steps),
                mean=total / there if there else nan,
                first=first,
                last=last,
                change=change,
                change_margin=change_margin,
                missing=1 - there / self.rollouts if self.rollouts else nan,
                groups=int(groups),
                zero_variance_groups=int(constant),
                with_length=known_mean(self.over_time(name, "with_length")),
                **dict(zip(OVER_WINDOW, whole[name], strict=True)),
            )
            found.append(overall)
        return found

    def _falling(self) -> Iterator[Finding]:
        """Yield the trained rewards whose mean falls over the run, as parts of their known range.

        Up is the direction of the weight. The interval is that of the trend, or that of drawing the
        groups, if it is narrower: the standard deviation of a group mean is at most half of the
        range. If a small dense reward falls, this is a note: a length penalty may fall while
        correctness rises.
        """
        least, up, down = Thresholds().falls, list[str](), list[tuple[RewardOverall, float]]()
        for reward in self.rewards():
            low, high, _ = self._history.ranges.get(reward.name, Range())
            if not (high > low and reward.weight_share > 0):
                continue
            sign = np.sign(known_mean(self.over_time(reward.name, "weight")))
            rise = sign * reward.change / (high - low)
            drawn = NORMAL_95 * sqrt(1.5 / max(reward.groups, 1))
            margin = min(reward.change_margin / (high - low), drawn)
            if rise - margin > least:
                up.append(reward.name)
            if -rise - margin > least:
                down.append((reward, margin * (high - low)))
        small = {name for reading in self.readings()[:1] for name in reading.small}
        for reward, margin in down:
            yield finding(
                Kind.FALLS,
                (reward.name,),
                {"change": reward.change, "margin": margin},
                severity=Severity.NOTE if reward.name in small else None,
                first=f"{reward.first:.2g}",
                last=f"{reward.last:.2g}",
                beside=f", while {quoted(up)} rose" if up else "",
            )

    def _dominant(self) -> Iterator[Finding]:
        """Yield the rewards with far more influence than their weight, if another has far less."""
        whole, learned = self.influence(), self.learned()
        dense = {name for reading in self.readings()[:1] for name in reading.dense}
        rows = {name: row for name, row in whole.by_reward.items() if row[0] > 0}
        least = (1 - Thresholds().zero_variance) * whole.sums.applies
        varies = {whole.names[k] for k in np.flatnonzero(whole.sums.live > least)} - {*learned}
        for name, (weight, share, margin) in rows.items():
            less = [
                f"`{other}` ({interval(theirs, off)} for {percent(due)})"
                for other, (due, theirs, off) in rows.items()
                if other in varies and theirs + off < due / 2
            ]
            if not share - margin > DOMINANT * weight or not less:
                continue
            yield finding(
                Kind.DOMINANT,
                (name,),
                {"weight_share": weight, "influence_share": share, "influence_margin": margin},
                severity=Severity.WARNING if name in dense else None,
                share=interval(share, margin),
                weight=percent(weight),
                others=" and ".join(less),
            )

    def readings(self) -> tuple[Reading, ...]:
        """Return what the weights may mean, with the influence that each setting would give."""
        if self._readings is None:
            self._follow()
            kept = list(self._scored.steps.values())
            whole, ranges = self.influence(), self._history.ranges
            # No list of weights says what each prompt has.
            per_prompt = any(np.ndim(step.weights) > 1 for step in kept)
            found = () if per_prompt else readings_of(whole, ranges, self.purpose)
            self._readings = tuple(replayed(reading, kept) for reading in found)
        return self._readings

    def _answered(self, held: HeldFinding, opposed: Collection[str]) -> HeldFinding:
        """Return a finding with the settings that the verdict may name for its reward."""
        readings = self.readings()
        if held.finding.causes[:1] != (Cause.RANGE,) or not readings:
            return held
        name, remedy = held.finding.rewards[0], "; ".join(map(str, readings))
        if name in opposed:
            remedy = "decide how much it matters: another reward pulls against it"
        elif name in readings[0].small:
            remedy = f"no setting should raise it: {EARNED_ALONE}"
        return replace(held, finding=replace(held.finding, remedy=remedy))

    def turns(self) -> tuple[TurnDiagnosis, ...]:
        """Return the results for every turn."""
        steps = [step.turns for step in self._steps.values() if step.turns is not None]
        return pooled_turns(steps).turns if steps else ()

    @property
    def last(self) -> Last:
        """The last quarter of the steps, and more up to 64 groups."""
        influences = [step.diagnosis.influence for step in self._steps.values()]
        groups = np.cumsum([influence.groups for influence in reversed(influences)])
        least = int(np.searchsorted(groups, LEAST_GROUPS)) + 1
        count = min(len(influences), max(least, -(-len(influences) // 4)))
        return Last(pooled(influences[-count:]), count, self.steps[-count])

    def findings(self) -> list[HeldFinding]:
        """Return all findings, sorted by severity and then by number of steps."""
        if self._found is None and self._steps:
            self._follow()
            steps = len(self._steps)
            of_steps = self._history.held_at_the_end(self.last)
            opposed = {
                n for h in of_steps if h.finding.kind is Kind.OPPOSED for n in h.finding.rewards
            }
            if self.purpose or opposed:
                of_steps = [self._answered(held, opposed) for held in of_steps]
            falling, dominant = (
                [HeldFinding(found, ((1, steps),), steps, at_once=True) for found in of_run]
                for of_run in (self._falling(), self._dominant())
            )
            found = [*falling, *of_steps, *dominant]
            self._found = sorted(
                found, key=lambda held: list(Severity).index(held.finding.severity)
            )
        return self._found or []

    def spans(self, held: HeldFinding) -> list[Span]:
        """Return when a finding held, in the numbers of the steps."""
        numbers = self.steps
        return [(numbers[first - 1], numbers[last - 1]) for first, last in held.spans]

    def _follow(self) -> None:
        for place, step in list(self._steps.items())[self._history.steps :]:
            whole = replace(step.diagnosis, scored=self._scored.steps.get(place))
            window, _ = self._history.add(whole, number=step.step)
            self._windows.append(window.by_reward)


_BINS = 24
"""Maximum number of bins. Once a length reaches it, at least half of the bins are in use."""


@dataclass(slots=True)
class LengthBins:
    """Accumulates rewards by length. The bin width is doubled until all lengths fit."""

    width: float = 1.0
    _sums: dict[str, Float[np.ndarray, "two bin"]] = field(default_factory=dict, repr=False)
    """Number of rollouts and sum of their rewards in each bin, by reward."""

    def add(
        self,
        name: str,
        lengths: Float[np.ndarray, " rollout"],
        rewards: Float[np.ndarray, " rollout"],
    ) -> None:
        """Add the rollouts of a step that have both a length and the reward."""
        known = np.isfinite(lengths) & np.isfinite(rewards) & (lengths >= 0)
        if not np.any(known):
            return
        while float(np.max(lengths[known])) >= self.width * _BINS:
            self._widen()
        places = (lengths[known] / self.width).astype(np.int64)
        weights = (np.ones(len(places)), rewards[known])
        added = np.stack([np.bincount(places, each, _BINS) for each in weights])
        self._sums[name] = self._sums.get(name, 0.0) + added

    def table(self, name: str, width: float = 0.0) -> Float[np.ndarray, "three bin"]:
        """Return the middle of each bin, its number of rollouts with the reward, and their mean.

        The bins are at least this wide: the width is doubled until they are. They end with the last
        one that has a rollout with any reward. An empty bin has a mean of NaN.
        """
        wide = LengthBins(self.width, self._sums)
        while wide.width < width:
            wide._widen()
        filled = [np.flatnonzero(counts) for counts, _ in wide._sums.values()]
        end = max((int(places[-1]) + 1 for places in filled if len(places)), default=0)
        counts, sums = wide._sums.get(name, np.zeros((2, _BINS)))[:, :end]
        means = np.where(counts > 0, sums / np.maximum(counts, 1), nan)
        return np.stack([(np.arange(end) + 0.5) * wide.width, counts, means])

    def _widen(self) -> None:
        self.width *= 2
        pairs = {name: table.reshape(2, -1, 2).sum(axis=2) for name, table in self._sums.items()}
        self._sums = {name: np.pad(each, [(0, 0), (0, _BINS // 2)]) for name, each in pairs.items()}
