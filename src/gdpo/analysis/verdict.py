"""Decides in one line what a run calls for: a change, nothing, or more data.

Checks that could not run are listed too, with what to do.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import isnan, nan
from typing import Any

import numpy as np

from gdpo._text import capitalized, counted
from gdpo.analysis.run import RewardOverall, RunAnalysis
from gdpo.diagnostics import Finding, Thresholds
from gdpo.diagnostics.diagnosis import Cause, Kind, Remedy, Severity, interval, percent
from gdpo.diagnostics.effect import ENOUGH, Noticed, best_remedy, ended
from gdpo.diagnostics.findings import TABLE
from gdpo.diagnostics.influence import NoInterval
from gdpo.diagnostics.watch import LEAST_GROUPS
from gdpo.rollouts.readers import ReadReport
from gdpo.rollouts.readers.names import listed
from gdpo.rollouts.readers.report import can_be_named

_BELOW = (Kind.REVERSED, Kind.OUT_OF_REACH, Kind.IGNORED)
"""Kinds of findings for which settings are replayed."""


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

    TRAIN = "train"
    """Train with another setting, which was replayed."""
    CHANGE = "change"
    """Change the rewards, the data or an option, whose effect no replay shows."""
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
    replayed: int = 0
    """Number of settings that were replayed on these groups."""
    remedy: Remedy | None = None
    more: int = 0
    trained: int = 0
    learned: tuple[str, ...] = ()
    """Rewards that need no influence any more."""
    unchecked: tuple[Unchecked, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict[str, str])
    """What was inferred about the files, as options of `command`."""
    command: str = ""
    """Command that analyzes the files with `assumed` as options."""
    denied: bool = False
    """Whether a total contradicts the weights, so that `command` needs those of the run."""
    unnamed: tuple[str, ...] = ()
    """Rewards that no option can name, because their names contain commas, for example."""
    no_interval: NoInterval | None = None
    """Why the shares have no interval."""

    @property
    def sentence(self) -> str:
        """Return the verdict as a sentence without a final period."""
        match self.action:
            case Action.TRAIN:
                assert self.remedy is not None, "a setting was replayed"
                setting = f"the estimator {self.remedy.estimator}"
                if self.remedy.estimator == "gdpo":
                    setting += ' (in TRL: multi_objective_aggregation="normalize_then_sum")'
                if self.remedy.factor > 1:
                    raised = f"{self.remedy.factor} times the weight of {_names(self.rewards)}"
                    setting += f" and {raised}"
                text = f"train with {setting}: {self._shares()}"
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
        unchecked = {"unchecked"}  # the run has them
        kept = {name: value for name, value in asdict(self).items() if name not in unchecked}
        return {**kept, "sentence": self.sentence}

    @property
    def _over(self) -> str:
        if self.from_step is None:
            return ""
        return f" over {self.of_groups:,} groups from step {self.from_step:,}"

    def _shares(self) -> str:
        own = interval(self.influence_share, self.influence_margin)
        text = (
            f"{_names(self.rewards)} has {own} of the influence for {percent(self.weight_share)} "
            f"of the weight{self._over}"
        )
        if self.remedy is None:
            return text
        same = self.remedy.groups == self.of_groups
        where = "the same groups" if same else f"{self.remedy.groups:,} of the groups"
        share = interval(self.remedy.share, self.remedy.margin)
        return f"{text}. With this setting, it would have {share} on {where}"

    def _change(self) -> str:
        assert self.kind is not None, "a warning calls for the change"
        if self.kind in _BELOW:
            cause = self.causes[0] if self.causes else Cause.SPARSE
            what = _BY_CAUSE[cause].format(names=_names(self.rewards))
            enough = ", and no replayed setting helps enough" if self.replayed else ""
            return f"{what}: {self._shares()}{enough}"
        return TABLE[self.kind].verdict.format(names=_names(self.rewards))

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
        if self.assumed:
            what = "the weights" if set(self.assumed) == {"--weights"} else "these columns"
            if self.unnamed:
                return f"{what} were guessed. Rename {listed(self.unnamed)}: no option names it"
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
                f"{few} to tell whether {_names(self.rewards)} {each} {_ENOUGH}. Record more groups"
            )
        first = self.unchecked[0]
        return f"{first.reason}. {capitalized(first.remedy)}"

    def _nothing(self) -> str:
        if self.trained < 2:
            return "there is no second reward that could outweigh the first"
        if not self.learned:
            each = f"each of the {self.trained} rewards"
            return f"{each} has at least {_ENOUGH}{self._over}"
        learned = f"{_names(self.learned)} {'is' if len(self.learned) == 1 else 'are'} learned"
        if len(self.learned) == self.trained:
            return learned
        return f"{learned}, and each other reward has at least {_ENOUGH}{self._over}"


_ENOUGH = "a quarter of its weight share, or 5 % of the influence"
"""What a reward has at least if no warning says that it is ignored."""


_BY_CAUSE = {
    Cause.MISSING: "check why {names} is missing from many rollouts",
    Cause.SPARSE: "warm-start the policy on {names}, or use easier prompts or larger groups",
    Cause.OPPOSED: "set the weights by priority, or gate the other rewards on {names}",
    Cause.RANGE: "increase the weight of {names}",
}


def _unchecked(
    run: RunAnalysis, rewards: Sequence[RewardOverall], *, report: ReadReport, groups: int
) -> Iterator[Unchecked]:
    """Yield the checks that could not run, but matter for the trained rewards."""
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
        for held in run.findings()
        if at_unknown_place(held.finding)
    }
    if places:
        yield _unknown_range(places, of_sum=bool(run.turns()))


def _unknown_range(places: Mapping[str, float], *, of_sum: bool) -> Unchecked:
    """Return what to add for rewards that are constant, in one option.

    `places` are NaN without a declared range. `of_sum`: the range is that of the sum over turns.
    """
    names, ranges, they, are = _names(places), "the range", "it", "is"
    if len(places) > 1:
        ranges, they, are = "the ranges", "they", "are"
    wrong = not any(map(isnan, places.values()))
    state = f"{'wrong' if wrong else 'unknown'}, so {they} may be learned or out of reach"
    pairs = shlex.quote(",".join(f"{name}=LOWEST:HIGHEST" for name in places))
    total = " (of the sum over the turns)" if of_sum else ""
    return Unchecked(
        f"whether {names} {are} learned",
        f"{ranges} of {names} {are} {state}",
        f"add --range {pairs}{total}",
    )


def at_unknown_place(finding: Finding) -> bool:
    """Return whether a reward is constant outside its range, or has no range."""
    place = finding.evidence.get("saturation", nan)
    return finding.kind is Kind.CONSTANT and not 0 <= place <= 1


def verdict_of(run: RunAnalysis, report: ReadReport, *, weighted: Collection[str] = ()) -> Verdict:
    """Return what a run calls for, with the checks that could not run.

    `weighted` are the rewards whose weights the caller gives.
    """
    rewards = [reward for reward in run.rewards() if reward.weight_share > 0]
    learned, whole = run.learned(), run.influence(set(run.steps))
    unchecked = tuple(_unchecked(run, rewards, report=report, groups=whole.groups))
    base = Verdict(
        Action.NOTHING,
        run.run,
        whole.groups,
        trained=len(rewards),
        learned=learned,
        unchecked=unchecked,
        no_interval=whole.no_interval,
    )
    assumed, denied = report.assumed(run.run, weighted), not weighted and report.denied(run.run)
    mixed = run.run in report.mixed_runs
    if not (mixed or report.scalar_only) and (assumed or denied):
        unweighted = {"--weights": ",".join(f"{name}=NUMBER" for name in run.names)}
        options = assumed | (unweighted if denied else {})
        command = report.command(options, report.paths_of(run.run))
        unnamed = tuple(name for name in run.names if not can_be_named(name))
        known = {"assumed": assumed, "command": command, "unnamed": unnamed, "denied": denied}
        return replace(base, action=Action.UNKNOWN, **known)
    warnings = [
        held.finding
        for held in run.findings()
        if held.lasting and held.finding.severity is Severity.WARNING
    ]
    # Of a reward that is constant at an unknown place, nothing is known.
    known = [finding for finding in warnings if not at_unknown_place(finding)]
    if known and not mixed:
        return replace(_about(min(known, key=lambda f: f.rank), base), more=len(warnings) - 1)
    if unchecked:
        return replace(base, action=Action.UNKNOWN)
    below, last = set(_unclear(rewards, learned)), (run.last.influence, Thresholds())
    if base.no_interval is not None and len(rewards) > 1:
        below = {reward.name for reward in rewards} - {*learned}
    elif below and all(ended(Noticed(Kind.IGNORED, (name,)), *last) for name in below):
        return replace(base, of_groups=last[0].groups, from_step=run.last.first)
    if below:
        unclear = tuple(reward.name for reward in rewards if reward.name in below)
        return replace(base, action=Action.UNKNOWN, rewards=unclear)
    return base


def _about(finding: Finding, base: Verdict) -> Verdict:
    found = finding.evidence
    verdict = replace(base, action=Action.CHANGE, kind=finding.kind, rewards=finding.rewards)
    if finding.kind not in _BELOW:
        return verdict
    start = found.get("from_step")
    verdict = replace(
        verdict,
        causes=finding.causes,
        weight_share=found.get("weight_share", nan),
        influence_share=found.get("influence_share", nan),
        influence_margin=found.get("influence_margin", nan),
        of_groups=round(found["groups"]),
        from_step=None if start is None else round(start),
        replayed=len(finding.remedies),
    )
    limit = ENOUGH * verdict.weight_share
    best = best_remedy(finding.remedies, verdict.influence_share, verdict.influence_margin, limit)
    return verdict if best is None else replace(verdict, action=Action.TRAIN, remedy=best)


def _unclear(rewards: Sequence[RewardOverall], learned: Sequence[str]) -> list[str]:
    limits = Thresholds()
    return [
        reward.name
        for reward in rewards
        if reward.name not in learned
        and not reward.influence_share
        >= min(limits.ignored * reward.weight_share, limits.least_share)
    ]


def _names(names: Iterable[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
