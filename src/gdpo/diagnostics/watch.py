"""Tracks which findings occur in the steps of a run, and for how long.

Trainers, `gdpo analyze` and reports use the same rule. `ignored` and `reversed` are computed over
the last 256 groups, and `parted` over the course of the run, so they are reported as soon as they
are found. All other findings are computed from a single batch. A finding in one batch can be due to
chance, but this is unlikely for several batches in a row. A finding about a share of fewer than
seven groups is a note. It becomes a warning after five batches in a row, if the share over the last
256 groups (at least 20) confirms it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from gdpo.diagnostics._findings import Thresholds, confirmed, in_order, influence_findings
from gdpo.diagnostics._parting import Block, Course
from gdpo.diagnostics.diagnosis import Diagnosis, Finding, Kind, RewardDiagnosis, Severity
from gdpo.diagnostics.influence import Influence, Sums, Window, pooled

LASTING = 5
"""Number of consecutive steps in which a single-batch finding must occur to count as certain."""

OVER_STEPS = (Kind.IGNORED, Kind.REVERSED, Kind.PARTED)
"""Kinds of findings that are computed over many groups of several steps: the window of the last 256
groups, or the course of the run."""

Key: TypeAlias = tuple[Kind, tuple[str, ...]]

Span: TypeAlias = tuple[int, int]
"""First and last step of a period in which a finding occurred."""


@dataclass(frozen=True, slots=True)
class HeldFinding:
    """Stores a finding and the steps in which it occurred."""

    finding: Finding
    """The finding, with the values from the last step in which it occurred."""
    spans: tuple[Span, ...]
    """First and last step of each period in which the finding occurred. Steps are counted from 1 in
    the order in which they were added, regardless of their step numbers. `ignored` and `reversed`
    count as occurring in every step of the window over which they were computed."""
    of: int
    """Number of steps in the run."""

    @property
    def steps(self) -> int:
        """Return the number of steps in which the finding occurred."""
        return sum(last - first + 1 for first, last in self.spans)

    @property
    def in_a_row(self) -> int:
        """Return the length, in steps, of the longest period in which the finding occurred."""
        return max(last - first + 1 for first, last in self.spans)

    @property
    def certain(self) -> bool:
        """Return whether the finding is unlikely to be due to chance, even in an unfinished run."""
        return self.finding.kind in OVER_STEPS or self.in_a_row >= LASTING

    @property
    def lasting(self) -> bool:
        """Return whether the finding is certain, or occurred in all steps of a finished run."""
        return self.certain or self.in_a_row == self.of


@dataclass(slots=True)
class _Held:
    finding: Finding
    spans: list[Span] = field(default_factory=list[Span])

    def extend(self, first: int, last: int) -> None:
        if self.spans and first <= self.spans[-1][1] + 1:
            first = min(first, self.spans.pop()[0])
        self.spans.append((first, last))


class FindingHistory:
    """Records in which steps of a run each finding occurred.

    Args:
        thresholds: Thresholds of the findings. Default: `Thresholds()`.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.steps = 0
        self._thresholds = thresholds or Thresholds()
        self._window = Window(self._thresholds.window)
        self._last: Influence | None = None
        self._all: Influence | None = None
        self._held: dict[Key, _Held] = {}
        self._course = Course()

    def add(
        self, influence: Influence, findings: Iterable[Finding], *, number: int | None = None
    ) -> tuple[Influence, tuple[Finding, ...]]:
        """Add the next step.

        Args:
            influence: Influence sums of the step.
            findings: The findings of the step. Those in `OVER_STEPS` are skipped, because they are
                computed over several steps instead.
            number: Number of the step in messages. Default: the number of steps so far.

        Returns:
            The sums over the window of the last groups, and the current findings.
        """
        self.steps += 1
        step = influence.after(self._last)
        self._last, self._all = (
            influence,
            pooled([step] if self._all is None else [self._all, step]),
        )
        window = self._window.add(step)
        over_window = list(influence_findings(window, self._thresholds))
        of_batch = [finding for finding in findings if finding.kind not in OVER_STEPS]
        of_batch = [self._hold_of_batch(finding, window) for finding in of_batch]
        for finding in over_window:
            self._hold(finding, self.steps - len(self._window) + 1)
        self._course.add(step, self.steps if number is None else number)
        parted = list(self._course.findings())
        for finding, steps in parted:
            self._hold(finding, self.steps - steps + 1)
        return window, in_order([*of_batch, *over_window, *(finding for finding, _ in parted)])

    def held(self) -> list[HeldFinding]:
        """Return all findings, ordered by severity and then by the number of steps.

        `ignored` and `reversed` are also computed over all groups of the run, because the window
        can be too short to find them for a reward with a small weight.
        """
        every = () if self._all is None else influence_findings(self._all, self._thresholds)
        over_all = {_key(finding): _Held(finding, [(1, self.steps)]) for finding in every}
        found = [
            HeldFinding(held.finding, tuple(held.spans), self.steps)
            for held in (over_all | self._held).values()
        ]
        return sorted(
            found, key=lambda held: (held.finding.rank[0], -held.steps, held.finding.rank[1])
        )

    def state(self) -> dict[str, Any]:
        """Return the state as dicts, lists, numbers and strings, to be saved in a checkpoint."""
        return {
            "steps": self.steps,
            "window": [_plain(step) for step in self._window],
            "last": None if self._last is None else _plain(self._last),
            "all": None if self._all is None else _plain(self._all),
            "held": [
                {"finding": asdict(held.finding), "spans": list(held.spans)}
                for held in self._held.values()
            ],
            "course": [
                {
                    "first": block.first,
                    "steps": block.steps,
                    "sums": _plain(block.sums),
                    "squares": dict(block.squares),
                }
                for block in self._course.blocks
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state that was returned by `state`."""
        self.steps = state["steps"]
        self._window = Window(self._thresholds.window)
        for step in state["window"]:
            self._window.add(_influence(step))
        self._last, self._all = (
            None if state[which] is None else _influence(state[which]) for which in ("last", "all")
        )
        # Older checkpoints have no course: it starts at the next step.
        self._course.restore(
            [
                Block(block["first"], block["steps"], _influence(block["sums"]), block["squares"])
                for block in state.get("course", ())
            ]
        )
        self._held = {}
        for held in state["held"]:
            plain = held["finding"]
            finding = Finding(
                kind=Kind(plain["kind"]),
                severity=Severity(plain["severity"]),
                rewards=tuple(plain["rewards"]),
                message=plain["message"],
                remedy=plain["remedy"],
                evidence=plain["evidence"],
            )
            spans = [(first, last) for first, last in held["spans"]]
            self._held[_key(finding)] = _Held(finding, spans)

    def _hold_of_batch(self, finding: Finding, window: Influence) -> Finding:
        """Hold a finding of the current batch and return it, possibly as a warning."""
        self._hold(finding, self.steps)
        held = self._held[_key(finding)]
        first, last = held.spans[-1]
        if last - first + 1 >= LASTING:
            held.finding = confirmed(finding, window, self._thresholds)
        return held.finding

    def _hold(self, finding: Finding, first: int) -> None:
        held = self._held.setdefault(_key(finding), _Held(finding))
        held.finding = finding
        held.extend(first, self.steps)


class Watch:
    """Reports each warning of a training run once.

    `ignored` and `reversed` are due as soon as they are found over the last 256 groups. Any other
    warning is due after it has occurred in five consecutive steps.

    Args:
        thresholds: Thresholds of the findings. Default: `Thresholds()`.

    Examples:
        >>> import numpy as np
        >>> from gdpo.diagnostics import diagnose
        >>> watch, random = Watch(), np.random.default_rng(0)
        >>> for step in range(1, 9):
        ...     rewards = random.random((32, 8, 2)) * [100, 1]
        ...     _ = watch.update(diagnose(rewards, None, ["steps", "style"], estimator="grpo"))
        ...     for finding in watch.due:
        ...         print(step, finding.kind.value, *finding.rewards)
        2 ignored style
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.due: list[Finding] = []
        """Warnings that became due in the most recent step."""
        self._history = FindingHistory(thresholds)
        self._reported: set[Key] = set()

    def state(self) -> dict[str, Any]:
        """Return the state as dicts, lists, numbers and strings, to be saved in a checkpoint."""
        reported = [[kind.value, list(rewards)] for kind, rewards in sorted(self._reported)]
        return {"history": self._history.state(), "reported": reported}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state that was returned by `state`. An empty state changes nothing."""
        if state:
            self._history.restore(state["history"])
            # Older checkpoints use the key "told" instead of "reported".
            reported = state.get("reported", state.get("told", ()))
            self._reported = {(Kind(kind), tuple(rewards)) for kind, rewards in reported}

    def update(self, diagnosis: Diagnosis) -> Diagnosis:
        """Add the diagnosis of the next step.

        Returns:
            The same diagnosis, with the influence shares and findings of the window of the last
            groups. A warning that is not certain yet is left out.
        """
        window, findings = self._history.add(diagnosis.influence, diagnosis.findings)
        lasting = {
            _key(held.finding): held.finding
            for held in self._history.held()
            if held.certain and held.finding.severity is Severity.WARNING
        }
        self.due = [finding for key, finding in lasting.items() if key not in self._reported]
        self._reported |= set(lasting)
        kept = tuple(f for f in findings if f.severity is Severity.NOTE or _key(f) in lasting)
        return replace(diagnosis, rewards=_over(diagnosis.rewards, window), findings=kept)


def _key(finding: Finding) -> Key:
    """Return the key that identifies a finding across steps."""
    return finding.kind, finding.rewards


def _plain(step: Influence) -> dict[str, Any]:
    return {
        "names": list(step.names),
        "groups": step.groups,
        "table": step.table.tolist(),
        "products": step.products.tolist(),
        "sampled": step.sampled,
        "alone": None if step.alone is None else step.alone.tolist(),
    }


def _influence(plain: Mapping[str, Any]) -> Influence:
    alone, table = plain["alone"], np.array(plain["table"], np.float64)
    # Older checkpoints lack the last rows. With 0, their groups confirm no finding.
    rows = np.zeros((len(Sums._fields) - len(table), table.shape[1]))
    return Influence(
        names=tuple(plain["names"]),
        groups=plain["groups"],
        table=np.vstack([table, rows]),
        products=np.array(plain["products"], np.float64),
        sampled=plain["sampled"],
        alone=None if alone is None else np.array(alone, np.float64),
    )


def _over(rewards: tuple[RewardDiagnosis, ...], window: Influence) -> tuple[RewardDiagnosis, ...]:
    """Return the rewards of a step, with shares over the window of the last groups."""
    columns = (window.weight_shares, window.shares, window.margins)
    by_name = dict(zip(window.names, zip(*columns, strict=True), strict=True))

    def known(value: float) -> float | None:
        return None if isnan(value) else float(value)

    return tuple(
        replace(
            reward,
            weight_share=known(by_name[reward.name][0]),
            influence_share=known(by_name[reward.name][1]),
            influence_margin=known(by_name[reward.name][2]),
        )
        for reward in rewards
    )
