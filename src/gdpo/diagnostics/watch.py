"""Follows findings over the steps of a run: which of them hold, and for how long.

Trainers, `gdpo analyze` and reports use the same rule. `ignored` and `reversed` are computed over
the last 256 groups, so they hold as soon as they are found. The other findings concern a single
batch. One batch can be bad luck, several in a row are not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from gdpo.diagnostics._findings import Thresholds, in_order, influence_findings
from gdpo.diagnostics.diagnosis import Diagnosis, Finding, Kind, RewardDiagnosis, Severity
from gdpo.diagnostics.influence import Influence, Window, pooled

LASTING = 5
"""Number of steps in a row for which a finding of single batches must hold."""

OVER_WINDOW = (Kind.IGNORED, Kind.REVERSED)
"""Findings that are computed over the last groups together."""

Key: TypeAlias = tuple[Kind, tuple[str, ...]]

Span: TypeAlias = tuple[int, int]
"""First and last step."""


@dataclass(frozen=True, slots=True)
class HeldFinding:
    """Stores a finding and the steps in which it held."""

    finding: Finding
    """The finding as of the last step in which it held."""
    spans: tuple[Span, ...]
    """First and last step of each period, as positions counted from 1, not step numbers. A finding
    over the last groups holds from the first of these groups on."""
    of: int
    """Number of steps of the run."""

    @property
    def steps(self) -> int:
        """Return the number of steps in which it held."""
        return sum(last - first + 1 for first, last in self.spans)

    @property
    def in_a_row(self) -> int:
        """Return the longest period in which it held, in steps."""
        return max(last - first + 1 for first, last in self.spans)

    @property
    def certain(self) -> bool:
        """Return whether it is more than bad luck, even in a run that continues (see `LASTING`)."""
        return self.finding.kind in OVER_WINDOW or self.in_a_row >= LASTING

    @property
    def lasting(self) -> bool:
        """Return whether it is more than bad luck in a finished run (a short run: in all steps)."""
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
    """Records which findings held over the steps of a run.

    Args:
        thresholds: Thresholds of the findings. None: `Thresholds()`.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.steps = 0
        self._thresholds = thresholds or Thresholds()
        self._window = Window(self._thresholds.window)
        self._last: Influence | None = None
        self._all: Influence | None = None
        self._held: dict[Key, _Held] = {}

    def add(
        self, influence: Influence, findings: Iterable[Finding]
    ) -> tuple[Influence, tuple[Finding, ...]]:
        """Add the next step.

        Args:
            influence: The sums of the step.
            findings: The findings of the step. Its `ignored` and `reversed` are not used.

        Returns:
            The sums over the last groups, and the current findings.
        """
        self.steps += 1
        step = influence.after(self._last)
        self._last, self._all = (
            influence,
            pooled([step] if self._all is None else [self._all, step]),
        )
        window = self._window.add(step)
        over_window = list(influence_findings(window, self._thresholds))
        of_batch = [finding for finding in findings if finding.kind not in OVER_WINDOW]
        for finding in of_batch:
            self._hold(finding, self.steps)
        for finding in over_window:
            self._hold(finding, self.steps - len(self._window) + 1)
        return window, in_order([*of_batch, *over_window])

    def held(self) -> list[HeldFinding]:
        """Return all findings, ordered by severity and by the number of steps.

        Rewards that are ignored over all groups of the run are included, even if the last groups
        are too few to show it. This concerns rewards with a small weight.
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
        """Return the state as lists, numbers and strings, for a checkpoint."""
        return {
            "steps": self.steps,
            "window": [_plain(step) for step in self._window],
            "last": None if self._last is None else _plain(self._last),
            "all": None if self._all is None else _plain(self._all),
            "held": [
                {"finding": asdict(held.finding), "spans": list(held.spans)}
                for held in self._held.values()
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state` returned."""
        self.steps = state["steps"]
        self._window = Window(self._thresholds.window)
        for step in state["window"]:
            self._window.add(_influence(step))
        self._last, self._all = (
            None if state[which] is None else _influence(state[which]) for which in ("last", "all")
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

    def _hold(self, finding: Finding, first: int) -> None:
        held = self._held.setdefault(_key(finding), _Held(finding))
        held.finding = finding
        held.extend(first, self.steps)


class Watch:
    """Reports each warning of a training run once.

    `ignored` and `reversed` are due as soon as they are found over the last groups. Any other
    warning is due after five steps in a row.

    Args:
        thresholds: Thresholds of the findings. None: `Thresholds()`.

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
        """Warnings that became due in the last step."""
        self._history = FindingHistory(thresholds)
        self._reported: set[Key] = set()

    def state(self) -> dict[str, Any]:
        """Return the state as lists, numbers and strings, for a checkpoint."""
        reported = [[kind.value, list(rewards)] for kind, rewards in sorted(self._reported)]
        return {"history": self._history.state(), "reported": reported}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state` returned. An empty state changes nothing."""
        if state:
            self._history.restore(state["history"])
            # Checkpoints that were written before the key was renamed have "told".
            reported = state.get("reported", state.get("told", ()))
            self._reported = {(Kind(kind), tuple(rewards)) for kind, rewards in reported}

    def update(self, diagnosis: Diagnosis) -> Diagnosis:
        """Add the diagnosis of the next step.

        Returns:
            The diagnosis with influence shares and findings over the last groups.
        """
        window, findings = self._history.add(diagnosis.influence, diagnosis.findings)
        lasting = {
            _key(held.finding): held.finding
            for held in self._history.held()
            if held.certain and held.finding.severity is Severity.WARNING
        }
        self.due = [finding for key, finding in lasting.items() if key not in self._reported]
        self._reported |= set(lasting)
        return replace(diagnosis, rewards=_over(diagnosis.rewards, window), findings=findings)


def _key(finding: Finding) -> Key:
    """Return what identifies the finding over several steps."""
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
    alone = plain["alone"]
    return Influence(
        names=tuple(plain["names"]),
        groups=plain["groups"],
        table=np.array(plain["table"], np.float64),
        products=np.array(plain["products"], np.float64),
        sampled=plain["sampled"],
        alone=None if alone is None else np.array(alone, np.float64),
    )


def _over(rewards: tuple[RewardDiagnosis, ...], window: Influence) -> tuple[RewardDiagnosis, ...]:
    """Return the rewards of a step, with shares over the last groups."""
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
