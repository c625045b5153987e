"""Decides in one line what a run calls for: a change, nothing, or more data.

Checks that could not run are listed too, with what to do.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from math import isnan, nan
from typing import Any

import numpy as np

from gdpo._text import capitalized, counted, quoted, typed
from gdpo.analysis.run import RewardOverall, RunAnalysis
from gdpo.diagnostics import Finding, Thresholds
from gdpo.diagnostics.diagnosis import Cause, Kind, Severity, interval, percent
from gdpo.diagnostics.findings import DOMINANT, TABLE
from gdpo.diagnostics.influence import NoInterval
from gdpo.diagnostics.looks import OF_INFLUENCE, Noticed, ended
from gdpo.diagnostics.readings import EARNED_ALONE, Meaning, Reading
from gdpo.diagnostics.watch import LEAST_GROUPS
from gdpo.rollouts.readers import ReadReport
from gdpo.rollouts.readers.names import listed
from gdpo.rollouts.readers.report import can_be_named

REPLAYED = (*OF_INFLUENCE, Kind.FALLS, Kind.DOMINANT)
"""Kinds of findings for which the settings of each reading are replayed."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Stores a check that could not run."""

    check: str
    """What was not checked."""
    reason: str
    """What is missing, without a capital letter or a period."""
    remedy: str
    """What to do, so that the check can run."""

    def __str__(self) -> str:
        return f"{self.check}: {self.reason} ({self.remedy})"


class Action(StrEnum):
    """Lists what a run calls for, the most urgent first."""

    CHECK = "check"
    """Check a reward function before any training."""
    TRAIN = "train"
    """Train with another setting, which was replayed."""
    CHANGE = "change"
    """Decide about the rewards or the data, which no replay can do."""
    UNKNOWN = "unknown"
    """Nothing can be said without more data."""
    NOTHING = "nothing"
    """No change is needed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Stores what a run calls for. NaN, None and empty: does not apply."""

    action: Action
    run: str
    groups: int
    kind: Kind | None = None
    rewards: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    weight_share: float = nan
    influence_share: float = nan
    influence_margin: float = nan
    of_groups: int = 0
    """Number of groups over which the influence share was measured."""
    from_step: int | None = None
    """First of the steps with these groups, or with those on which `NOTHING` rests. None: the whole
    run."""
    readings: tuple[Reading, ...] = ()
    """What the weights may mean, each with its setting. Those that call for no change are not
    `needed`."""
    more: int = 0
    trained: int = 0
    small: int = 0
    """Number of trained rewards with less than a tenth of the largest weight."""
    learned: tuple[str, ...] = ()
    """Rewards that need no influence any more."""
    unchecked: tuple[Unchecked, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    """What was inferred about the files, as options of `command`."""
    command: str = ""
    """Command that analyzes the files with `assumed` as options."""
    denied: bool = False
    """Whether a total contradicts the weights, so that `command` needs those of the run."""
    unnamed: tuple[str, ...] = ()
    """Rewards that no option can name, because their names contain commas, for example."""
    apart: tuple[str, ...] = ()
    """Columns that were inferred, but are not in all files of the run."""
    no_interval: NoInterval | None = None
    """Why the shares have no interval."""
    satisfied: bool = False
    """Whether what the weights mean explains every warning."""

    @property
    def sentence(self) -> str:
        """Return the verdict as a sentence without a final period."""
        match self.action:
            case Action.CHECK:
                text = f"check the function of {quoted(self.rewards)} first: {self._broken()}"
            case Action.TRAIN:
                text = self._train()
            case Action.CHANGE:
                text = self._change()
            case Action.UNKNOWN:
                text = f"unknown: {self.unknown}"
            case Action.NOTHING:
                text = f"nothing to do: {self._nothing()}"
        if self.more:
            text += f" ({counted(self.more, 'more warning')})"
        return text

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        kept = asdict(self)
        del kept["unchecked"]  # the run has them
        readings = [
            {**asdict(each), "condition": each.condition, "setting": each.setting}
            for each in self.readings
        ]
        return {**kept, "readings": readings, "sentence": self.sentence}

    @property
    def _over(self) -> str:
        if self.from_step is None:
            return ""
        return f" over {self.of_groups:,} groups from step {self.from_step:,}"

    def _broken(self) -> str:
        if self.kind is Kind.NEVER_APPLIES:
            return "it is missing from every rollout"
        if self.kind is Kind.OPPOSED:
            return "their correlation is -1, as after an error of sign"
        return f"it has not varied in any of {self.of_groups:,} groups, from the first step on"

    def _shares(self, before: str = "") -> str:
        own = interval(self.influence_share, self.influence_margin)
        has = f"{own} of the influence for {percent(self.weight_share)} of the weight"
        return f"{quoted(self.rewards)} {before}has {has}{self._over}"

    def _train(self) -> str:
        what = self._shares("falls, and " if self.kind is Kind.FALLS else "")
        if [each.meaning for each in self.readings] == [Meaning.WEIGHTS]:
            return f"use {self.readings[0].advice}: {what}{_IN_TRL}"
        each = ". ".join(capitalized(str(reading)) for reading in self.readings)
        several = len(self.readings) > 1
        ask = ". For one verdict, add --weights or --sizes-are-weights" if several else ""
        return f"{what}. {each}{_IN_TRL}{ask}"

    def _change(self) -> str:
        assert self.kind is not None, "a warning calls for the change"
        text = TABLE[self.kind].verdict
        if self.kind in (*OF_INFLUENCE, Kind.OUT_OF_REACH):
            text = _BY_CAUSE[self.causes[0] if self.causes else Cause.SPARSE]
        what = text.format(names=quoted(self.rewards))
        return f"{what}. {self._shares()}" if self.kind in OF_INFLUENCE else what

    @property
    def unknown(self) -> str:
        """Return why nothing can be said, and what to do. Empty if there is a conclusion."""
        if self.action is not Action.UNKNOWN:
            return ""
        if self.denied:
            return (
                "the total contradicts the weights of the rewards; for a verdict, replace each "
                f"NUMBER with the weight of the run: {self.command}"
            )
        if self.apart:
            return (
                f"{listed(self.apart)} were guessed, and are not in all files of the run. Rename "
                "them, or analyze the files separately"
            )
        if self.assumed:
            what = "the weights" if set(self.assumed) == {"--weights"} else "these columns"
            if self.unnamed:
                names = listed(self.unnamed)
                return f"{what} were guessed. Rename {names}: an option cannot contain such a name"
            return f"{what} were guessed; for a verdict: {self.command}"
        if self.no_interval is NoInterval.UNRELATED:
            return (
                f"{self.no_interval}. Check that the advantages, the rewards and the weights "
                "belong to the same rollouts"
            )
        if self.rewards:
            few = f"{self.groups:,} groups are too few"
            few = f"{self.no_interval}, too few" if self.no_interval else few
            each = "has" if len(self.rewards) == 1 else "each have"
            return (
                f"{few} to tell whether {quoted(self.rewards)} {each} {_ENOUGH}. Record more groups"
            )
        first = self.unchecked[0]
        return f"{first.reason}. {capitalized(first.remedy)}"

    def _nothing(self) -> str:
        if self.satisfied and self.rewards:
            return f"no setting should raise {quoted(self.rewards)}: {EARNED_ALONE}"
        if self.satisfied:
            return "what the weights mean explains the influence of each reward"
        if not self.trained:
            return "the mean weight of each reward is 0"
        if self.trained < 2:
            return "there is no second reward that could outweigh the first"
        if not self.learned:
            larger = "larger " if self.small else ""
            each = f"each of the {counted(self.trained - self.small, f'{larger}reward')}"
            return f"{each} has at least {_ENOUGH}{self._over}"
        learned = f"{quoted(self.learned)} {'is' if len(self.learned) == 1 else 'are'} learned"
        if len(self.learned) == self.trained:
            return learned
        return f"{learned}, and each other reward has at least {_ENOUGH}{self._over}"


_ENOUGH = "a quarter of its weight share, or 5 % of the influence"
"""What a reward has at least if no warning says that it is ignored."""


_BY_CAUSE = {
    Cause.MISSING: "check why {names} is missing from many rollouts",
    Cause.SPARSE: "samples that earn {names} are rare, and no setting of the weights changes that",
    Cause.OPPOSED: "decide how much {names} matters: the other rewards pull against it",
    Cause.RANGE: "decide how much {names} matters",
}

_IN_TRL = '. gdpo is multi_objective_aggregation="normalize_then_sum" in TRL'

_BROKEN = (Kind.NEVER_APPLIES, Kind.CONSTANT, Kind.OUT_OF_REACH)
"""Kinds of findings that may come from an error in a reward function."""

_EXACT, _DEGREES = -0.995, 9.0
"""Correlation at or below which two rewards are the same number with opposite signs, and its least
degrees of freedom: then it is three standard errors below 0."""


def _unchecked(
    run: RunAnalysis, rewards: Sequence[RewardOverall], *, report: ReadReport
) -> Iterator[Unchecked]:
    """Yield the checks that could not run, but matter for the trained rewards."""
    groups = run.influence.groups
    if run.run in report.mixed_runs:
        yield Unchecked(
            "effect of each reward",
            "groups formed by --columns group_size contain several prompts",
            "remove group_size, so that equal prompts form a group, or correct the number",
        )
    if report.scalar_only:
        yield Unchecked(
            "effect of each reward",
            "the files contain only a scalar reward",
            "pass --rescore, or files that contain the separate rewards",
        )
    elif len(rewards) > 1 and groups < LEAST_GROUPS:
        record = f"record at least {LEAST_GROUPS} groups"
        if "trl" in report.formats and min(np.diff(run.steps), default=1) != 1:
            record += ". TRL writes rollouts only at logging steps: set logging_steps=1"
        few = f"{counted(groups, 'group')} {'is' if groups == 1 else 'are'} too few to tell"
        yield Unchecked("effect of each reward", few, record)
    places = {
        held.finding.rewards[0]: held.finding.evidence.get("saturation", nan)
        for held in run.findings
        if at_unknown_place(held.finding)
    }
    if places:
        yield _unknown_range(places, of_sum=bool(run.turns))


def _unknown_range(places: Mapping[str, float], *, of_sum: bool) -> Unchecked:
    """Return what to add for rewards that are constant, in one option.

    `places` are NaN without a declared range. `of_sum`: the range is that of the sum over turns.
    """
    names, ranges, they, are = quoted(places), "the range", "it", "is"
    if len(places) > 1:
        ranges, they, are = "the ranges", "they", "are"
    wrong = not any(map(isnan, places.values()))
    state = f"{'wrong' if wrong else 'unknown'}, so {they} may be learned or out of reach"
    option = typed({"--range": ",".join(f"{name}=LOWEST:HIGHEST" for name in places)})
    total = " (of the sum over the turns)" if of_sum else ""
    return Unchecked(
        f"whether {names} {are} learned",
        f"{ranges} of {names} {are} {state}",
        f"add {option}{total}",
    )


def at_unknown_place(finding: Finding) -> bool:
    """Return whether a reward is constant outside its range, or has no range."""
    place = finding.evidence.get("saturation", nan)
    return finding.kind is Kind.CONSTANT and not 0 <= place <= 1


def verdict_of(
    run: RunAnalysis,
    report: ReadReport,
    *,
    weighted: Collection[str] = (),
    primary: str | None = None,
) -> Verdict:
    """Return what a run calls for, with the checks that could not run.

    `weighted` are the rewards whose weights the caller gives. A fall of `primary` comes before that
    of others.
    """
    rewards = [reward for reward in run.rewards if reward.weight_share > 0]
    learned, whole = run.learned, run.influence
    # Nothing is due to a reward with a much smaller weight.
    least = Thresholds().nudge * max((reward.weight_share for reward in rewards), default=0.0)
    larger = [reward for reward in rewards if not reward.weight_share < least]
    unchecked = tuple(_unchecked(run, rewards, report=report))
    base = Verdict(
        Action.NOTHING,
        run.run,
        whole.groups,
        trained=len(rewards),
        small=len(rewards) - len(larger),
        learned=learned,
        unchecked=unchecked,
        no_interval=whole.no_interval,
    )
    assumed, denied = report.assumed(run.run, weighted), not weighted and report.denied(run.run)
    mixed = run.run in report.mixed_runs
    _, apart = report.columns([file for file in report.files if file.run == run.run])
    if not (mixed or report.scalar_only) and (assumed or denied or apart):
        unweighted = {"--weights": ",".join(f"{name}=NUMBER" for name in run.names)}
        return replace(
            base,
            action=Action.UNKNOWN,
            assumed=assumed,
            command=report.command(assumed | (unweighted if denied else {}), run.run),
            unnamed=tuple(name for name in run.names if not can_be_named(name)),
            apart=tuple(apart),
            denied=denied,
        )
    warned = _of_warnings(run, base, primary) if rewards else base
    if warned is not None and not mixed:
        return warned
    if unchecked:
        return replace(base, action=Action.UNKNOWN)
    if run.purpose is Meaning.SIZES and base.no_interval is None:
        return replace(base, satisfied=True)
    below, last = set(_unclear(larger, learned)), run.last.influence
    if base.no_interval is NoInterval.UNRELATED or (base.no_interval and len(rewards) > 1):
        below = {reward.name for reward in rewards} - {*learned}
    elif below and all(ended(Noticed(Kind.IGNORED, (name,)), last, Thresholds()) for name in below):
        return replace(base, of_groups=last.groups, from_step=run.last.first)
    if below:
        unclear = tuple(reward.name for reward in rewards if reward.name in below)
        return replace(base, action=Action.UNKNOWN, rewards=unclear)
    return base


def _of_warnings(run: RunAnalysis, base: Verdict, primary: str | None) -> Verdict | None:
    """Return the verdict on the warnings of a run. None: it has none that says anything."""
    found = [held.finding for held in run.findings if held.lasting and not held.past]
    warnings = [finding for finding in found if finding.severity is Severity.WARNING]
    base = replace(base, more=max(len(warnings) - 1, 0))
    if broken := _broken(run, warnings):
        return replace(base, action=Action.CHECK, **broken)
    # Of a reward that is constant at an unknown place, nothing is known.
    known = [finding for finding in warnings if not at_unknown_place(finding)]
    known.sort(key=lambda f: (f.kind is not Kind.FALLS or f.rewards != (primary,), f.rank))
    opposed = {name for f in known if f.kind is Kind.OPPOSED for name in f.rewards}
    notes = [f for f in found if f.kind is Kind.IGNORED and f not in known]
    for finding in (*known, *notes):
        about = _about(finding, run, base, opposed)
        # A note only calls for a setting that helps.
        if about is not None and (finding in known or about.action is Action.TRAIN):
            return about
    small = {name for reading in run.readings for name in reading.small}
    kept = tuple(sorted({name for f in known for name in f.rewards} & small))
    return replace(base, more=0, satisfied=True, rewards=kept) if known else None


def _broken(run: RunAnalysis, warnings: Sequence[Finding]) -> dict[str, Any]:
    """Return the first sign that a reward function is wrong, as fields of a verdict, or nothing."""
    groups = {r.name: r.groups for r in run.rewards if r.zero_variance_groups == r.groups}
    for found in warnings:
        name = found.rewards[0] if found.rewards else ""
        if found.kind in _BROKEN and name in groups:
            return {"kind": found.kind, "rewards": (name,), "of_groups": groups[name]}
    whole = run.influence
    signs = dict(zip(whole.names, np.sign(whole.sums.weight).tolist(), strict=True))
    for one, other in combinations(signs, 2):
        same = signs[one] * signs[other] > 0
        if same and run.correlation(one, other, least=_DEGREES) <= _EXACT:
            return {"kind": Kind.OPPOSED, "rewards": (one, other)}
    return {}


def _about(
    finding: Finding, run: RunAnalysis, base: Verdict, opposed: Collection[str]
) -> Verdict | None:
    """Return the verdict on a finding. None: the purpose of the weights allows for it.

    No setting is named for the rewards in `opposed`: where two rewards excluded each other,
    trainings with it gained nothing. A reward that is pushed against its weight may have had
    another weight, so it has no setting either, unless it is small.
    """
    verdict = replace(base, action=Action.CHANGE, kind=finding.kind, rewards=finding.rewards)
    if finding.kind not in REPLAYED:
        return verdict
    numbers = finding.evidence
    name, start = finding.rewards[0], numbers.get("from_step")
    weight, share, margin = run.influence.by_reward[name]
    verdict = replace(
        verdict,
        causes=finding.causes,
        weight_share=numbers.get("weight_share", weight),
        influence_share=numbers.get("influence_share", share),
        influence_margin=numbers.get("influence_margin", margin),
        of_groups=round(numbers.get("groups", base.groups)),
        from_step=None if start is None else round(start),
    )
    found = run.readings
    if (name in opposed or finding.kind is Kind.REVERSED) and not any(
        name in reading.small for reading in found
    ):
        return verdict
    every = [
        _beside(each, name, run) if name in each.small else _applied(each, verdict)
        for each in found
    ]
    readings = tuple(each for each in every if each is not None)
    if any(each.needed for each in readings):
        return replace(verdict, action=Action.TRAIN, readings=readings)
    return None if readings and None not in every and finding.kind is not Kind.FALLS else verdict


def _beside(reading: Reading, name: str, run: RunAnalysis) -> Reading:
    """Return a reading, with whether its setting is needed beside a small dense reward.

    It is if it clearly raises a reward that is not small. The small one itself is not raised: a
    policy could earn it by giving up the others.
    """
    now = run.influence.by_reward
    raised = {
        each
        for each, (share, margin) in reading.shares.items()
        if share - margin > now[each][1] + now[each][2]
    }
    lifts = reading.needed and bool(raised - {*reading.small})
    too_far = name in raised and reading.meaning is Meaning.WEIGHTS
    return replace(reading, needed=lifts and not too_far)


def _applied(reading: Reading, verdict: Verdict) -> Reading | None:
    """Return the reading, with whether the reward needs its setting. None: the setting is no help.

    A reward needs it if it falls, if its share is below a quarter of the weight share of the
    reading and the interval below half, or if it dominates and the interval lies above 1.5 times
    that weight share. The setting helps if the interval of the new share lies beyond the present
    share, and for too small a share, if the new one reaches half of the weight share, or twice the
    present share and the end of its interval.
    """
    (name,), share, margin = verdict.rewards, verdict.influence_share, verdict.influence_margin
    if not reading.needed:
        return reading
    due = abs(reading.weights[name]) / (sum(map(abs, reading.weights.values())) or 1.0)
    new = reading.shares.get(name, (nan, nan))
    off = 0.0 if isnan(margin) else margin
    if verdict.kind is Kind.DOMINANT:
        calm, helps = share - off <= DOMINANT * due, new[0] + new[1] < share
    else:
        least = Thresholds().ignored * due
        calm = verdict.kind is not Kind.FALLS and (share >= least or share + off >= 2 * least)
        reached = new[0] >= min(due / 2, max(2 * share, share + margin))
        helps = (verdict.kind is Kind.FALLS or reached) and new[0] - new[1] > share
    if calm:
        return replace(reading, needed=False)
    return reading if helps else None


def _unclear(rewards: Sequence[RewardOverall], learned: Sequence[str]) -> list[str]:
    limits = Thresholds()
    return [
        reward.name
        for reward in rewards
        if reward.name not in learned
        and not reward.influence_share
        >= min(limits.ignored * reward.weight_share, limits.least_share)
    ]
