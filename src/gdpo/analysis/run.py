"""Collects the results of a run: rewards over time, overall and by length, and findings."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan, sqrt
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from gdpo._shapes import Float
from gdpo._text import quoted
from gdpo.analysis.replay import VIEWED, equal_to
from gdpo.analysis.steps import StepAnalysis
from gdpo.analysis.trend import Series, end_means, known_mean, trend
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
from gdpo.rollouts.table import RewardArrays, RolloutTable

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


@dataclass(slots=True)
class RunSteps:
    """Collects the steps of a run."""

    run: str
    steps: list[StepAnalysis] = field(default_factory=list)
    """The steps without their rewards, in the order of addition."""
    scored: ScoredSteps = field(default_factory=ScoredSteps, repr=False)
    equal_to: set[str] | None = None
    """Compared estimators that give the recorded advantages. None: no recorded advantages."""
    lengths: LengthBins = field(default_factory=LengthBins)
    """Rewards by completion length."""
    latest: RolloutTable | None = None
    """The step that was added last, without its turns."""

    def add(self, step: StepAnalysis, batch: RewardArrays | None = None) -> None:
        """Add the next step. Without `batch`, its rollouts are not looked at."""
        if step.diagnosis.scored is not None:
            self.scored.add(step.diagnosis.scored)
        self.steps.append(replace(step, diagnosis=replace(step.diagnosis, scored=None)))
        if batch is None:
            return
        if step.recorded:
            self.equal_to = equal_to(batch, VIEWED if self.equal_to is None else self.equal_to)
        self.latest = replace(batch.table, turns=None)
        for name, rewards in zip(batch.names, batch.table.rewards.T, strict=True):
            self.lengths.add(name, batch.table.num_tokens, rewards)


@dataclass(frozen=True, slots=True)
class RunAnalysis:
    """Stores the results of one run."""

    run: str
    purpose: Meaning | None
    """What the user says about the meaning of the weights, if anything."""
    rollouts: int
    left_out: int
    recorded: int
    """Number of steps with recorded advantages."""
    weightings: Counter[str]
    """Number of steps for each source of the weights."""
    equal_to: set[str] | None
    """Compared estimators that give the recorded advantages. None: no recorded advantages."""
    lengths: LengthBins
    """Rewards by completion length."""
    latest: RolloutTable | None
    """The step that was read last, without its turns. None: steps were added without `batch`."""
    estimators: tuple[str, ...]
    """Estimators that computed the advantages of the other steps, sorted."""
    steps: list[int]
    """Step numbers, in order."""
    rewards: list[RewardOverall]
    """The results for every reward."""
    over_time: Mapping[str, Mapping[str, Series]]
    """Values of `OVER_TIME`, `OVER_WINDOW` and `with_length` at every step, by reward."""
    batch_gain: Series
    """Factor of GDPO's batch normalization at every step. NaN: nothing varies."""
    num_tokens: Series
    """Mean token count at every step. NaN: unknown."""
    truncated: Series
    """Share of truncated completions at every step. NaN: unknown."""
    influence: Influence
    """The influence, pooled over all steps."""
    last: Last
    """The last quarter of the steps, and more up to 64 groups."""
    learned: tuple[str, ...]
    """The rewards at the good end of their range."""
    ranges: Mapping[str, Range]
    """Declared range of each reward, or else that of its values."""
    readings: tuple[Reading, ...]
    """What the weights may mean, with the influence that each setting would give."""
    turns: tuple[TurnDiagnosis, ...]
    """The results for every turn."""
    _pairs: Mapping[tuple[str, ...], _Pairs] = field(repr=False)
    findings: Sequence[HeldFinding] = ()
    """All findings, sorted by severity and then by number of steps."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rewards of all steps."""
        return tuple(self.over_time)

    @property
    def weights_from(self) -> str:
        """Source of the weights, or several sources, each with its number of steps."""
        if len(self.weightings) < 2:
            return "".join(self.weightings)
        of = len(self.steps)
        known = self.weightings.most_common()
        return "; ".join(f"{how} in {count:,} of {of:,} steps" for how, count in known)

    def weight_changes(self) -> dict[str, tuple[float, float]]:
        """Return the first and last weight of each reward whose weight changes."""
        found: dict[str, tuple[float, float]] = {}
        for name, values in self.over_time.items():
            known = values["weight"][~np.isnan(values["weight"])]
            if len(known) and np.any(known != known[0]):
                found[name] = float(known[0]), float(known[-1])
        return found

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

    def spans(self, held: HeldFinding) -> list[Span]:
        """Return when a finding held, in the numbers of the steps."""
        return [(self.steps[first - 1], self.steps[last - 1]) for first, last in held.spans]


def run_of(collected: RunSteps, purpose: Meaning | None = None) -> RunAnalysis:
    """Return the results of a run of at least one step.

    The steps are sorted by number, because each file may start at the first step.
    """
    steps, history = sorted(collected.steps, key=attrgetter("step")), FindingHistory()
    windows = [history.add(step.diagnosis, number=step.step)[0].by_reward for step in steps]
    over_time = _over_time(steps, windows)
    turns = [step.turns for step in steps if step.turns is not None]
    influences = [step.diagnosis.influence for step in steps]
    whole, numbers = pooled(influences), [step.step for step in steps]
    groups = np.cumsum([influence.groups for influence in reversed(influences)])
    least = int(np.searchsorted(groups, LEAST_GROUPS)) + 1
    count = min(len(steps), max(least, -(-len(steps) // 4)))
    kept = collected.scored.steps
    # No list of weights says what each prompt has.
    per_prompt = any(np.ndim(step.weights) > 1 for step in kept)
    readings = () if per_prompt else readings_of(whole, history.ranges, purpose)
    run = RunAnalysis(
        run=collected.run,
        purpose=purpose,
        rollouts=sum(step.rollouts for step in steps),
        left_out=sum(step.left_out for step in steps),
        recorded=sum(step.recorded for step in steps),
        weightings=Counter(step.weights_from for step in steps),
        equal_to=collected.equal_to,
        lengths=collected.lengths,
        latest=collected.latest,
        estimators=tuple(sorted({str(s.diagnosis.estimator) for s in steps if not s.recorded})),
        steps=numbers,
        rewards=list(_overall(steps, over_time, whole)),
        over_time=over_time,
        batch_gain=np.array([step.diagnosis.batch_gain for step in steps], np.float64),
        num_tokens=np.array([step.num_tokens for step in steps]),
        truncated=np.array([step.cut for step in steps]),
        influence=whole,
        last=Last(pooled(influences[-count:]), count, numbers[-count]),
        learned=history.learned(),
        ranges=history.ranges,
        readings=tuple(replayed(reading, kept) for reading in readings),
        turns=pooled_turns(turns).turns if turns else (),
        _pairs=_related(steps),
    )
    return replace(run, findings=_findings(run, history))


def _over_time(
    steps: Sequence[StepAnalysis], windows: Sequence[Mapping[str, tuple[float, float, float]]]
) -> dict[str, dict[str, Series]]:
    columns = (*OVER_TIME, *OVER_WINDOW, "with_length")
    names = dict.fromkeys(reward.name for step in steps for reward in step.diagnosis.rewards)
    found = {name: {each: np.full(len(steps), nan) for each in columns} for name in names}
    for place, (step, window) in enumerate(zip(steps, windows, strict=True)):
        for name, row in window.items():
            for each, value in zip(OVER_WINDOW, row, strict=True):
                found[name][each][place] = value
        for reward, length in zip(step.diagnosis.rewards, step.with_length, strict=True):
            of = found[reward.name]
            for each in OVER_TIME:
                of[each][place] = getattr(reward, each)
            # Padding of smaller groups is NaN in the array, but not a rollout.
            there = round((1 - reward.missing) * step.diagnosis.prompts * step.diagnosis.samples)
            of["missing"][place] = 1 - there / step.rollouts
            of["with_length"][place] = length
    return found


def _related(steps: Sequence[StepAnalysis]) -> dict[tuple[str, ...], _Pairs]:
    found: dict[tuple[str, ...], _Pairs] = {}
    for step in steps:
        names = tuple(reward.name for reward in step.diagnosis.rewards)
        related, degrees = np.array(step.diagnosis.correlation), np.array(step.diagnosis.degrees)
        # NaN where the degrees are 0.
        sums = np.nan_to_num(related) * degrees
        found[names] = found.get(names, 0.0) + np.stack([sums, degrees])
    return found


def _overall(
    steps: Sequence[StepAnalysis], over_time: Mapping[str, Mapping[str, Series]], whole: Influence
) -> Iterator[RewardOverall]:
    rollouts, rows = np.array([step.rollouts for step in steps]), whole.by_reward
    for name, of in over_time.items():
        k = whole.names.index(name)
        known = np.rint((1 - of["missing"]) * rollouts)
        by_step = np.nan_to_num(np.stack([known, known * of["mean"]], axis=-1))
        there, total = np.sum(by_step, axis=0).tolist()
        first, last = end_means(of["mean"])
        change, change_margin = trend(of["mean"])
        yield RewardOverall(
            name=name,
            steps=int(np.sum(~np.isnan(known))),
            mean=total / there if there else nan,
            first=first,
            last=last,
            change=change,
            change_margin=change_margin,
            missing=1 - there / int(np.sum(rollouts)),
            groups=int(whole.sums.applies[k]),
            zero_variance_groups=int(whole.sums.applies[k] - whole.sums.live[k]),
            with_length=known_mean(of["with_length"]),
            **dict(zip(OVER_WINDOW, rows[name], strict=True)),
        )


def _findings(run: RunAnalysis, history: FindingHistory) -> list[HeldFinding]:
    of_steps, steps = history.held_at_the_end(run.last), len(run.steps)
    opposed = {n for h in of_steps if h.finding.kind is Kind.OPPOSED for n in h.finding.rewards}
    if run.purpose or opposed:
        of_steps = [_answered(held, run.readings, opposed) for held in of_steps]
    falling, dominant = (
        [HeldFinding(found, ((1, steps),), steps, at_once=True) for found in of_run]
        for of_run in (_falling(run), _dominant(run))
    )
    found = [*falling, *of_steps, *dominant]
    return sorted(found, key=lambda held: held.finding.rank[0])


def _falling(run: RunAnalysis) -> Iterator[Finding]:
    """Yield the trained rewards whose mean falls over the run, as parts of their known range.

    Up is the direction of the weight. The interval is that of the trend, or that of drawing the
    groups, if it is narrower: the standard deviation of a group mean is at most half of the
    range. If a small dense reward falls, this is a note: a length penalty may fall while
    correctness rises.
    """
    least, up, down = Thresholds().falls, list[str](), list[tuple[RewardOverall, float]]()
    for reward in run.rewards:
        low, high, _ = run.ranges.get(reward.name, Range())
        if not (high > low and reward.weight_share > 0):
            continue
        sign = np.sign(known_mean(run.over_time[reward.name]["weight"]))
        rise = sign * reward.change / (high - low)
        drawn = NORMAL_95 * sqrt(1.5 / max(reward.groups, 1))
        margin = min(reward.change_margin / (high - low), drawn)
        if rise - margin > least:
            up.append(reward.name)
        if -rise - margin > least:
            down.append((reward, margin * (high - low)))
    small = {name for reading in run.readings[:1] for name in reading.small}
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


def _dominant(run: RunAnalysis) -> Iterator[Finding]:
    """Yield the rewards with far more influence than their weight, if another has far less."""
    whole, learned = run.influence, run.learned
    dense = {name for reading in run.readings[:1] for name in reading.dense}
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


def _answered(
    held: HeldFinding, readings: Sequence[Reading], opposed: Collection[str]
) -> HeldFinding:
    """Return a finding with the settings that the verdict may name for its reward."""
    if held.finding.causes[:1] != (Cause.RANGE,) or not readings:
        return held
    name, remedy = held.finding.rewards[0], "; ".join(map(str, readings))
    if name in opposed:
        remedy = "decide how much it matters: another reward pulls against it"
    elif name in readings[0].small:
        remedy = f"no setting should raise it: {EARNED_ALONE}"
    return replace(held, finding=replace(held.finding, remedy=remedy))
