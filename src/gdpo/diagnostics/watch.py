"""Tracks which findings occur in the steps of a run, and for how long.

A finding from sums over groups is noticed in a block of groups (see `looks`). It is then measured
on the next 64 groups, because selection biases the numbers of the block. If these groups do not
show it, there is no finding. `never_applies` is computed over the whole run. All other findings
come from a single batch. In one batch, they may be due to chance, but hardly in several in a row.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isnan
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gdpo._text import Setting
from gdpo.diagnostics.diagnosis import (
    Cause,
    Diagnosis,
    Finding,
    Kind,
    Range,
    RewardDiagnosis,
    Severity,
)
from gdpo.diagnostics.findings import Thresholds
from gdpo.diagnostics.influence import Influence, Sums, Window, pooled
from gdpo.diagnostics.looks import (
    CONSTANT,
    LEAST_GROUPS,
    OF_INFLUENCE,
    OF_SUMS,
    Look,
    Noticed,
    as_measured,
    described,
    ended,
    findings_at_once,
    holds,
    learned_rewards,
    noticed,
    severity_of,
)

logger = logging.getLogger(__name__)

LASTING = 5
"""Number of consecutive steps in which a single-batch finding must occur to count as certain."""

OF_GROUPS = (*OF_SUMS, Kind.NEVER_APPLIES, Kind.FALLS, Kind.DOMINANT)
"""Kinds of findings about all groups of a run, or about a block of them."""

Key: TypeAlias = tuple[Kind, tuple[str, ...]]

Span: TypeAlias = tuple[int, int]
"""First and last step of a period in which a finding occurred."""


@dataclass(frozen=True, slots=True)
class HeldFinding:
    """Stores a finding and the steps in which it occurred."""

    finding: Finding
    """The finding, with the values from the last step in which it occurred."""
    spans: tuple[Span, ...]
    """First and last step of each period in which the finding occurred, counted from 1 in the order
    in which they were added. A finding that rests on sums lasts from the block in which it was
    noticed until the last groups contradict it."""
    of: int
    """Number of steps in the run."""
    at_once: bool = False
    """Whether only a check of the finished run shows the finding."""
    past: bool = False
    """Whether the finished run shows the finding only in earlier steps. It is then a note."""

    @property
    def steps(self) -> int:
        """Return the number of steps in which the finding occurred."""
        return sum(last - first + 1 for first, last in self.spans)

    @property
    def in_a_row(self) -> int:
        """Return the largest number of consecutive steps in which the finding occurred."""
        return max(last - first + 1 for first, last in self.spans)

    @property
    def certain(self) -> bool:
        """Return whether the finding is hardly due to chance, even in an unfinished run."""
        if self.finding.kind in OF_GROUPS:
            return not self.at_once
        return self.in_a_row >= LASTING

    @property
    def lasting(self) -> bool:
        """Return whether the finding is certain, or a finished run shows it."""
        return self.certain or self.at_once or self.in_a_row == self.of


class Last(NamedTuple):
    """Stores the last quarter of the steps of a finished run, and more up to 64 groups."""

    influence: Influence
    steps: int
    first: int
    """Number of the first of these steps."""


@dataclass(slots=True)
class Looks:
    """Cuts a run into blocks of doubling size, and returns each block once, when it is full."""

    full: int = 0
    """Number of full blocks of the smallest size."""
    waiting: list[tuple[Influence, int]] = field(default_factory=list)
    """The blocks without their pair, with their steps, the largest first."""
    begun: Influence | None = None
    """Sums of the smallest block that is not yet full."""
    steps: int = 0

    def add(self, step: Influence) -> Iterator[tuple[Influence, Look, int]]:
        """Add the next step, and yield each block that it fills, with its test and its steps."""
        self.begun = pooled([self.begun, step])
        self.steps += 1
        if self.begun.groups < LEAST_GROUPS:
            return
        block, steps = self.begun, self.steps
        self.begun, self.steps, self.full = None, 0, self.full + 1
        m, i = 0, self.full
        yield block, Look.at(m, i), steps
        while i % 2 == 0:
            first, before = self.waiting.pop()
            block, steps, m, i = pooled([first, block]), before + steps, m + 1, i // 2
            yield block, Look.at(m, i), steps
        self.waiting.append((block, steps))


@dataclass(slots=True)
class _Recorded:
    finding: Finding
    spans: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class _Measuring:
    noticed: Noticed
    first: int
    """First step of the block in which it was noticed."""
    since: int | None = None
    """Number of the step after that block, if the steps have numbers."""
    influence: Influence | None = None


class FindingHistory:
    """Records in which steps of a run each finding occurred."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.steps = 0
        self._thresholds = thresholds or Thresholds()
        self._window = Window(self._thresholds.window)
        self._last = Window(min(LEAST_GROUPS, self._thresholds.window))
        self._recent: Influence | None = None
        """Sums over the last 64 groups, in which a learned reward shows first."""
        self._all: Influence | None = None
        self._held: dict[Key, _Recorded] = {}
        self._looks = Looks()
        self._measuring: dict[tuple[str, ...], _Measuring] = {}
        self.ranges: dict[str, Range] = {}
        """Declared range of each reward, or else that of its values."""

    def add(
        self, step: Diagnosis, *, number: int | None = None
    ) -> tuple[Influence, tuple[Finding, ...]]:
        """Add the next step, and return the sums over the last groups and the current findings.

        `number` names the step in messages. Default: the number of steps so far.
        """
        self.steps += 1
        influence = step.influence
        self._all = pooled([self._all, influence])
        self._widen(step.ranges)
        window, self._recent = self._window.add(influence), self._last.add(influence)
        of_batch = [finding for finding in step.findings if finding.kind not in OF_GROUPS]
        for finding in of_batch:
            self._hold(finding, self.steps)
        self._measure(influence, number)
        self._notice(influence)
        thresholds, in_force = self._thresholds, list[Finding]()
        lacking = np.any(self._all.sums.applies == 0)  # which is cheaper than to try every kind
        for found in noticed(self._all, Look(), self.ranges, thresholds) if lacking else ():
            if found.sure and found.kind is Kind.NEVER_APPLIES:
                in_force.append(described(found, self._all, self.ranges, thresholds))
                self._hold(in_force[-1], 1)
        learned = set(self._learned(self._recent))
        for finding in [held.finding for held in self._held.values()]:
            if finding.kind is not Kind.SATURATED and learned.intersection(finding.rewards):
                continue
            if finding.kind in OF_SUMS and holds(finding, window, thresholds):
                self._hold(finding, self.steps)
                in_force.append(finding)
        return window, tuple(sorted([*of_batch, *in_force], key=attrgetter("rank")))

    def held(self) -> list[HeldFinding]:
        """Return all findings of the run so far, ordered by severity, then by number of steps."""
        held = self._held.values()
        found = [HeldFinding(each.finding, tuple(each.spans), self.steps) for each in held]
        return sorted(found, key=_order)

    def held_at_the_end(self, last: Last) -> list[HeldFinding]:
        """Return the findings of a finished run: those of all its groups, and of the last quarter.

        A finding of all groups that the last quarter rules out gives way to that of the quarter.
        What only earlier steps showed is a note.
        """
        assert self._all is not None, "a step was added"
        before = self.steps - last.steps
        hidden = {key for key in self._held if key[0] is Kind.BELOW_RESOLUTION}
        hidden |= {(kind, (name,)) for kind in OF_INFLUENCE for name in self._learned(self._recent)}
        numbers = (self.ranges, self._thresholds)
        late = findings_at_once(last.influence, *numbers, hidden=hidden, since=last.first)
        found = [(before + 1, f) for f in late] + [
            (1, f)
            for f in findings_at_once(self._all, *numbers, hidden=hidden)
            if not ended(f, last.influence, self._thresholds)
        ]
        notes_first = sorted(found, key=lambda each: each[1].severity is Severity.WARNING)
        now = {f.rewards: (first, f) for first, f in notes_first}
        shown = [
            HeldFinding(
                f, ((first, self.steps),), self.steps, at_once=(f.kind, f.rewards) not in self._held
            )
            for first, f in now.values()
        ]
        for held in self.held():
            found, until = held.finding, held.spans[-1][1]
            of_groups, again = found.kind in OF_GROUPS, now.get(found.rewards)
            if of_groups and again and not _is_apart(held, again[1], self.steps):
                continue
            if of_groups or until <= before:
                fact = replace(found, severity=Severity.NOTE, remedy="", setting=None)
                held = replace(held, finding=fact, past=True)
            shown.append(held)
        return sorted(shown, key=_order)

    def learned(self) -> tuple[str, ...]:
        """Return the rewards at their good end, over all groups or over the last 64 groups."""
        found = (*self._learned(self._all), *self._learned(self._recent))
        return tuple(dict.fromkeys(found))

    def state(self) -> dict[str, Any]:
        """Return the state in JSON types, to be saved in a checkpoint."""
        kept = {
            "steps": self.steps,
            "window": list(self._window.steps),
            "all": self._all,
            "held": list(self._held.values()),
            "looks": self._looks,
            "measuring": list(self._measuring.values()),
            "ranges": self.ranges,
        }
        return json.loads(json.dumps(kept, default=_plain))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state that was returned by `state`."""
        self.steps = state["steps"]
        self._window.steps.clear()
        self._last.steps.clear()
        for step in map(_influence, state["window"]):
            self._window.add(step)
            self._recent = self._last.add(step)
        self._all = _known(state["all"])
        self._held = {}
        for held in state["held"]:
            finding = _finding(held["finding"])
            self._held[(finding.kind, finding.rewards)] = _Recorded(
                finding, [(a, b) for a, b in held["spans"]]
            )
        looks = state["looks"]
        waiting = [(_influence(block), steps) for block, steps in looks["waiting"]]
        self._looks = Looks(looks["full"], waiting, _known(looks["begun"]), looks["steps"])
        self._measuring = {}
        for each in state["measuring"]:
            kind, rewards, *_ = each["noticed"]
            self._measuring[tuple(rewards)] = _Measuring(
                Noticed(Kind(kind), tuple(rewards)),
                each["first"],
                each["since"],
                _known(each["influence"]),
            )
        self.ranges = {name: Range(*known) for name, known in state["ranges"].items()}

    def _learned(self, influence: Influence | None) -> tuple[str, ...]:
        if influence is None:
            return ()
        return learned_rewards(influence, self.ranges, self._thresholds)

    def _widen(self, ranges: Mapping[str, Range]) -> None:
        for name, now in ranges.items():
            before = self.ranges.get(name)
            if now.declared or before is None:
                self.ranges[name] = now
            elif not before.declared:
                low, high = min(before.low, now.low), max(before.high, now.high)
                self.ranges[name] = Range(low, high, declared=False)

    def _notice(self, step: Influence) -> None:
        """Test the blocks that the step completes, and start to measure the faults they show."""
        for block, look, steps in self._looks.add(step):
            for found in noticed(block, look, self.ranges, self._thresholds):
                if not found.sure or found.kind is Kind.NEVER_APPLIES:
                    continue
                # What was reported is not measured again, unless it has become worse.
                severity = Severity.WARNING
                if found.kind in OF_INFLUENCE:
                    severity = severity_of(found.kind, block, found.rewards[0], self._thresholds)
                place = _place(found.kind, severity)
                held = [each.finding for each in self._of(found.rewards)]
                known = [_place(each.kind, each.severity) for each in held]
                if found.rewards in self._measuring or (known and place >= min(known)):
                    continue
                # A reward that was learned within a long block has a small share in it.
                learned = {*found.rewards}.intersection(self._learned(self._recent))
                if learned and (known or found.kind in OF_INFLUENCE):
                    continue
                self._measuring[found.rewards] = _Measuring(found, self.steps - steps + 1)

    def _measure(self, step: Influence, number: int | None) -> None:
        """Measure what was noticed on this step too, and hold the findings with enough groups."""
        for rewards, measuring in list(self._measuring.items()):
            if measuring.influence is None:
                measuring.since = number
            measuring.influence = influence = pooled([measuring.influence, step])
            if influence.groups < LEAST_GROUPS:
                continue
            del self._measuring[rewards]
            if measuring.noticed.kind in OF_INFLUENCE and rewards[0] in self._learned(influence):
                continue
            shown = as_measured(measuring.noticed, influence, self._thresholds)
            if shown is None:
                continue
            found = described(
                shown, influence, self.ranges, self._thresholds, since=measuring.since
            )
            lost = self._held.get((Kind.BELOW_RESOLUTION, found.rewards))
            if found.kind in CONSTANT and lost is not None:
                lost.finding = replace(lost.finding, severity=Severity.WARNING)
                continue
            self._hold_instead(found, measuring.first)

    def _hold_instead(self, found: Finding, first: int) -> None:
        for lesser in self._of(found.rewards):
            if _is_apart(lesser, found, self.steps - 1):
                continue
            del self._held[lesser.finding.kind, found.rewards]
            if lesser.finding.severity is Severity.WARNING:
                first = min(first, lesser.spans[0][0])
        self._hold(found, first)

    def _of(self, rewards: tuple[str, ...]) -> list[_Recorded]:
        held = self._held.items()
        return [each for (kind, of), each in held if kind in OF_SUMS and of == rewards]

    def _hold(self, finding: Finding, first: int) -> None:
        held = self._held.setdefault((finding.kind, finding.rewards), _Recorded(finding))
        # What a measurement made a warning is no note again in the next small batch.
        severity = min(held.finding.severity, finding.severity, key=list(Severity).index)
        held.finding = replace(finding, severity=severity)
        if held.spans and first <= held.spans[-1][1] + 1:
            first = min(first, held.spans.pop()[0])
        held.spans.append((first, self.steps))


_FORM = 3
"""Version of a saved state. Increase it with every change of the state or of the kinds."""


class Watch:
    """Reports each warning of a training run once.

    A warning from sums over groups, such as an ignored reward, is due 64 groups after it was
    noticed, and any other after five consecutive steps.

    Examples:
        >>> import numpy as np
        >>> from gdpo.diagnostics import diagnose
        >>> watch, random = Watch(), np.random.default_rng(0)
        >>> for step in range(1, 9):
        ...     rewards = random.random((32, 8, 2)) * [100, 1]
        ...     _ = watch.update(diagnose(rewards, None, ["steps", "style"], estimator="grpo"))
        ...     for finding in watch.due:
        ...         print(step, finding.kind.value, *finding.rewards)
        4 ignored style
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.due: list[Finding] = []
        """Warnings that became due in the most recent step."""
        self._history = FindingHistory(thresholds)
        self._reported: set[Key] = set()

    def state(self) -> dict[str, Any]:
        """Return the state in JSON types, to be saved in a checkpoint."""
        reported = [[kind.value, list(rewards)] for kind, rewards in sorted(self._reported)]
        return {"form": _FORM, "history": self._history.state(), "reported": reported}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned. An empty state changes nothing.

        The state of another version is ignored: shares and findings then start again.
        """
        if state and state.get("form") != _FORM:
            logger.warning(
                "the checkpoint is from another version of gdpo: influence shares and findings "
                "count the steps from here on. The training itself continues unchanged"
            )
        elif state:
            self._history.restore(state["history"])
            self._reported = {(Kind(k), tuple(rewards)) for k, rewards in state["reported"]}

    def update(self, diagnosis: Diagnosis) -> Diagnosis:
        """Add the diagnosis of the next step.

        Returns:
            The same diagnosis, with shares and findings over the last groups, without uncertain
            warnings.
        """
        window, findings = self._history.add(diagnosis)
        lasting = {
            (held.finding.kind, held.finding.rewards): held.finding
            for held in self._history.held()
            if held.certain and held.finding.severity is Severity.WARNING
        }
        self.due = [finding for key, finding in lasting.items() if key not in self._reported]
        self._reported |= set(lasting)
        kept = tuple(
            f for f in findings if f.severity is Severity.NOTE or (f.kind, f.rewards) in lasting
        )
        of_window = window.by_reward
        rewards: list[RewardDiagnosis] = []
        for reward in diagnosis.rewards:
            weight, share, margin = (None if isnan(x) else x for x in of_window[reward.name])
            shares = {"weight_share": weight, "influence_share": share, "influence_margin": margin}
            rewards.append(replace(reward, **shares))
        unknown = window.no_interval
        return replace(diagnosis, rewards=tuple(rewards), findings=kept, no_interval=unknown)


def _is_apart(part: _Recorded | HeldFinding, whole: Finding, last: int) -> bool:
    same_sort = (part.finding.kind in OF_INFLUENCE) == (whole.kind in OF_INFLUENCE)
    ended = part.spans[-1][1] < last
    return ended and not same_sort and part.finding.severity is Severity.WARNING


def _place(kind: Kind, severity: Severity) -> tuple[int, int]:
    """Return the position of a finding about sums, the worst first."""
    return OF_SUMS.index(kind), list(Severity).index(severity)


def _order(held: HeldFinding) -> tuple[int, int, int, float]:
    severity, kind, share = held.finding.rank
    return severity, -held.steps, kind, share


def _plain(value: Any) -> Any:
    """Return an array as a list, and a dataclass as a dict: JSON has types for these."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _known(plain: Mapping[str, Any] | None) -> Influence | None:
    return None if plain is None else _influence(plain)


def _influence(plain: Mapping[str, Any]) -> Influence:
    sums, products = (np.array(plain[name], np.float64) for name in ("sums", "products"))
    return Influence(tuple(plain["names"]), plain["groups"], Sums(*sums), products)


def _finding(plain: Mapping[str, Any]) -> Finding:
    known: dict[str, Any] = {
        "kind": Kind(plain["kind"]),
        "severity": Severity(plain["severity"]),
        "rewards": tuple(plain["rewards"]),
        "causes": tuple(map(Cause, plain["causes"])),
        "setting": plain.get("setting") and Setting(plain["setting"]),
    }
    return Finding(**{**plain, **known})
