"""The result of `diagnose`: what each reward does in a batch, and what the batch does with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import isfinite, nan
from textwrap import wrap
from typing import Any, TypeAlias

from gdpo.diagnostics.influence import Influence


class Severity(StrEnum):
    """How much it matters, worst first."""

    WARNING = "warning"
    """Training does not do what the weights ask for."""
    NOTE = "note"
    """Good to know; nothing is wrong."""


class Kind(StrEnum):
    """What was found, worst first."""

    NO_SIGNAL = "no_signal"
    """Nearly all groups have advantages of exactly 0."""
    NEVER_APPLIES = "never_applies"
    """A reward is missing on every rollout."""
    REVERSED = "reversed"
    """A reward is pushed against its weight."""
    OUT_OF_REACH = "out_of_reach"
    """A reward does not vary, at the bottom of its range."""
    IGNORED = "ignored"
    """The advantage hardly follows a reward, though its weight asks for that."""
    OPPOSED = "opposed"
    """Two rewards ask for opposite things."""
    CONFLICT = "conflict"
    """Most rollouts are pulled both ways, and not by one pair of rewards alone."""
    BELOW_RESOLUTION = "below_resolution"
    """A reward differs in its groups by less than its floating-point type tells from rounding."""
    CONSTANT = "constant"
    """A reward does not vary."""
    TINY_STD = "tiny_std"
    """A reward varies by a tiny part of its range, and counts in full."""
    REDUNDANT = "redundant"
    """Two rewards say the same: it counts twice."""
    GAIN = "gain"
    """Few groups have signal, and their advantages are scaled up for it."""
    EXTREME = "extreme"
    """One rollout has a huge advantage."""
    ONE_GROUP = "one_group"
    """The batch step has a single group to look at."""
    MOSTLY_MISSING = "mostly_missing"
    """A reward is missing on nearly every rollout."""
    SATURATED = "saturated"
    """A reward does not vary, at the top of its range."""
    SAME_AS_GRPO = "same_as_grpo"
    """The estimator gives what GRPO gives, up to size."""
    MERGED = "merged"
    """GRPO would give one advantage to rollouts that the estimator tells apart."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found in a batch, and what to do about it."""

    kind: Kind
    severity: Severity
    rewards: tuple[str, ...]
    """The rewards that it is about; empty: the batch as a whole. With the kind, they say which
    finding it is: on another step the numbers differ, and who dominates an ignored reward."""
    message: str
    """What was found, as a sentence with its numbers."""
    remedy: str
    """What to do."""
    evidence: Mapping[str, float]
    """The numbers of the message, unrounded."""

    @property
    def rank(self) -> tuple[int, int]:
        """Places of its severity and of its kind, worst first."""
        return list(Severity).index(self.severity), list(Kind).index(self.kind)


_SMALL, _EXACT = 0.02, 5e-4
"""Shares that are given as an upper bound, and margins that are left out."""


def percent(share: float) -> str:
    """A share in percent; what is neither nothing nor everything is not rounded to it.

    >>> percent(0.5), percent(0.004), percent(0.00029), percent(0.0), percent(0.9996), percent(1.0)
    ('50 %', '0.4 %', '0.029 %', '0 %', '99.9 %', '100 %')
    """
    hundredths = 100 * share
    if 0 < hundredths < 1:
        return f"{hundredths:.2g} %"
    if 99 < hundredths < 100:
        return f"{min(hundredths, 99.9):.1f} %"
    return f"{hundredths:.0f} %"


def times(ratio: float) -> str:
    """A ratio for a sentence.

    >>> times(8.3), times(1.62), times(1234.0), times(123456.0)
    ('8 times', '1.6 times', '1234 times', '1.2e+05 times')
    """
    digits = f"{ratio:.1f}" if ratio < 3 else f"{ratio:.0f}" if ratio < 1e4 else f"{ratio:.1e}"
    return f"{digits} times"


def interval(share: float, margin: float) -> str:
    """Return a share with the half-width of its interval; what is nearly 0 is an upper bound.

    >>> interval(0.4812, 0.031), interval(-0.12, 0.03), interval(0.0025, 0.02), interval(1.0, 0.0)
    ('48 % ± 3', '−12 % ± 3', 'under 2 %', '100 %')

    Without a margin (NaN) there is nothing to compute it from.

    >>> interval(0.4812, float("nan")), interval(0.005, 0.08), interval(float("nan"), 0.1)
    ('48 %', 'under 8 %', '–')
    """
    if share != share:
        return "–"
    if abs(share) < _SMALL and margin == margin:
        return f"under {max(100 * _SMALL, 100 * (abs(share) + margin)):.0f} %"
    sign = "−" if share < 0 else ""
    if margin != margin or margin < _EXACT:
        return f"{sign}{percent(abs(share))}"
    digits = 0 if margin >= 0.01 else 1
    return f"{sign}{100 * abs(share):.{digits}f} % ± {100 * margin:.{digits}f}"


Matrix: TypeAlias = tuple[tuple[float, ...], ...]
"""Rows of one number per reward."""

_LOGGED_OF_REWARDS = (
    "mean",
    "group_std",
    "zero_variance_groups",
    "missing",
    "saturation",
    "influence",
    "influence_share",
)
_LOGGED_OF_BATCH = (
    "conflict",
    "zero_advantage_groups",
    "batch_gain",
    "signal_rms",
    "largest",
    "distinct",
    "distinct_grpo",
    "same_as_grpo",
)


@dataclass(frozen=True, slots=True)
class RewardDiagnosis:
    """One reward in a batch. `None`: there is nothing to compute it from."""

    name: str
    weight: float
    low: float | None
    """Declared lowest value, in the unit of the reward."""
    high: float | None
    """Declared highest value."""
    mean: float | None
    """Over the rollouts that it applies to."""
    missing: float
    """Share of the batch's values that are missing."""
    groups: int
    """Groups that it applies to."""
    zero_variance_groups: float | None
    """Share of them in which it does not vary."""
    group_std: float | None
    """Sample standard deviation in a group, mean over the groups that it applies to."""
    varying_std: float | None
    """The same, median over the groups in which it varies: the typical spread."""
    saturation: float | None
    """Where the mean lies in the declared range: 0 at the bottom, 1 at the top."""
    weight_share: float | None
    """|w_k| / Σ|w|; over several steps the mean over their groups."""
    influence: float | None
    """Mean of A z_k over the rollouts of the batch: how fast the update raises the reward, in units
    of its standard deviation in a group. Its sign is the direction in which it is pushed."""
    influence_share: float | None
    """Influence / Σ|influence| over the rewards that have a weight; negative: against the weight.
    None: no reward has any influence."""
    influence_margin: float | None
    """Half of the 95 % interval of `influence_share`; None: fewer than two groups."""
    below_resolution: float | None
    """Share of the groups that it applies to whose values differ, but by no more than rounding in
    the type that they came in: they count as equal."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A batch of rewards, and what an estimator made of it. `None`: nothing to compute it from."""

    estimator: str | None
    """Name of what made the advantages; None: unknown."""
    prompts: int
    samples: int
    """Per prompt, with padding."""
    rollouts: int
    """Those that have a reward."""
    rewards: tuple[RewardDiagnosis, ...]
    correlation: Matrix
    """Of z-scores, over the groups in which both rewards vary; NaN where there is none."""
    degrees: Matrix
    """Degrees of freedom of each correlation: samples less one, summed over these groups."""
    conflict: float | None
    """Share of rollouts in which one w_k z_k is above 0 and another below."""
    chance_conflict: float | None
    """The share to expect if the rewards of a group had nothing to do with each other."""
    zero_advantage_groups: float
    """Share of groups whose advantages are all exactly 0."""
    batch_gain: float | None
    """1 / standard deviation of Σ w_k z_k over the batch: what GDPO's batch step multiplies with.
    """
    signal_rms: float | None
    """Root mean square of the advantages in the groups that are not zero-advantage groups."""
    largest: float
    """Largest size of an advantage."""
    distinct: float | None
    """Different advantages in a group, mean over the groups that are not zero-advantage groups."""
    distinct_grpo: float | None
    """The same under GRPO, in the same groups."""
    same_as_grpo: float | None
    """Correlation of the advantages with GRPO's, over the rollouts that have a reward."""
    influence: Influence = field(compare=False, repr=False)
    """The sums behind the influence shares, to be added up over steps."""
    precision: str = "float64"
    """Floating-point type that the rewards came in."""
    findings: tuple[Finding, ...] = ()
    """Worst first."""

    def metrics(self) -> dict[str, float]:
        """Flat, for loggers: `diagnostics/<reward>/<number>` and `diagnostics/<number>`.

        `diagnostics/findings` counts all findings, `diagnostics/warnings` those that matter. What
        is not known is left out.
        """
        of_rewards = {
            f"diagnostics/{reward.name}/{field}": getattr(reward, field)
            for reward in self.rewards
            for field in _LOGGED_OF_REWARDS
        }
        of_batch = {f"diagnostics/{field}": getattr(self, field) for field in _LOGGED_OF_BATCH}
        warnings = sum(finding.severity is Severity.WARNING for finding in self.findings)
        counts = {
            "diagnostics/findings": float(len(self.findings)),
            "diagnostics/warnings": float(warnings),
        }
        every = of_rewards | of_batch | counts
        return {key: float(value) for key, value in every.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and text, ready for JSON; NaN becomes None."""
        return _plain({k: v for k, v in asdict(self).items() if k != "influence"})

    def summary(self) -> str:
        """The rewards as a table, the batch in two lines, and the findings, for a terminal.

        The worst findings come first. Those that do not fit into about 20 lines are counted; the
        first two are always shown.
        """
        headings = ("reward", "weight", "mean", "std", "zero-variance", "weight share")
        head = [
            f"{self.estimator or 'advantages'} on {self.prompts} x {self.samples} rollouts "
            "(prompts x samples)",
            *_table([(*headings, "influence share"), *map(_cells, self.rewards)]),
            *_batch(self),
        ]
        return "\n".join([*head, *_findings(self.findings, _LINES - len(head))])

    def __str__(self) -> str:
        return self.summary()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    return value if not isinstance(value, float) or isfinite(value) else None


_LINES, _WIDTH = 20, 100
"""What fits on a screen beside something else, and characters of a line."""

_MARKS = {Severity.WARNING: "!", Severity.NOTE: "-"}


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other: names to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(reward: RewardDiagnosis) -> tuple[str, ...]:
    influence = (reward.influence_share, reward.influence_margin)
    means = (
        "–" if value is None else f"{value:.3g}" for value in (reward.mean, reward.varying_std)
    )
    shares = (
        "–" if value is None else percent(value)
        for value in (reward.zero_variance_groups, reward.weight_share)
    )
    return (
        reward.name,
        f"{reward.weight:g}",
        *means,
        *shares,
        interval(*(nan if value is None else value for value in influence)),
    )


def _batch(d: Diagnosis) -> Iterator[str]:
    groups = f"zero-advantage groups: {percent(d.zero_advantage_groups)}"
    if d.conflict is None or d.chance_conflict is None:
        yield groups
    else:
        yield (
            f"{groups}; rollouts with conflicting rewards: {percent(d.conflict)} "
            f"({percent(d.chance_conflict)} by chance)"
        )
    if d.signal_rms is not None and d.distinct is not None and d.distinct_grpo is not None:
        yield (
            f"advantages: rms {d.signal_rms:.3g} in groups with signal, largest {d.largest:.3g}; "
            f"{d.distinct:.3g} different values per group (grpo: {d.distinct_grpo:.3g})"
        )


def _findings(findings: Sequence[Finding], room: int) -> Iterator[str]:
    if not findings:
        yield "no findings"
        return
    for index, finding in enumerate(findings):
        message = f"{_MARKS[finding.severity]} {finding.message}"
        remedy = f"→ {finding.remedy}"
        lines = [
            *wrap(message, _WIDTH, subsequent_indent="  "),
            *wrap(remedy, _WIDTH, initial_indent="  ", subsequent_indent="    "),
        ]
        last = index == len(findings) - 1
        if index >= 2 and len(lines) + (not last) > room:
            yield f"... and {len(findings) - index} more in .findings"
            return
        room -= len(lines)
        yield from lines
