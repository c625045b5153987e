"""Defines the result of `diagnose`, with statistics, findings and their printed form."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import nan
from textwrap import wrap
from typing import Any, NamedTuple, TypeAlias

from gdpo._files import plain
from gdpo._naming import did_you_mean
from gdpo._text import Setting, advice, capitalized, one_line
from gdpo.diagnostics.influence import Influence, NoInterval
from gdpo.errors import ConfigError


class Severity(StrEnum):
    """Lists the severities of findings, worst first."""

    WARNING = "warning"
    """Training does not follow the reward weights."""
    NOTE = "note"
    """For information only: nothing is wrong."""


class Kind(StrEnum):
    """Lists the kinds of findings, worst first."""

    NO_SIGNAL = "no_signal"
    """In nearly all groups, all advantages are exactly 0."""
    NEVER_APPLIES = "never_applies"
    """A reward is missing from every rollout."""
    FALLS = "falls"
    """The mean of a reward falls over the run."""
    REVERSED = "reversed"
    """The update pushes a reward in the direction opposite to the sign of its weight."""
    OUT_OF_REACH = "out_of_reach"
    """A reward is constant at the bottom of its range."""
    IGNORED = "ignored"
    """The influence share of a reward is below a quarter of its weight share."""
    DOMINANT = "dominant"
    """A reward has far more influence than its weight, and another one less."""
    OPPOSED = "opposed"
    """Two rewards pull in opposite directions."""
    BELOW_RESOLUTION = "below_resolution"
    """A reward varies within groups by no more than the rounding error of its type."""
    CONSTANT = "constant"
    """A reward does not vary within groups."""
    REDUNDANT = "redundant"
    """Two rewards measure nearly the same thing, which therefore counts twice."""
    ONE_GROUP = "one_group"
    """Batch normalization is applied to a single group."""
    MOSTLY_MISSING = "mostly_missing"
    """A reward is missing from nearly every rollout."""
    SATURATED = "saturated"
    """A reward is constant at the top of its range."""


class Cause(StrEnum):
    """Lists the reasons why a reward has less influence than its weight."""

    MISSING = "missing"
    """The reward is missing from many rollouts."""
    SPARSE = "sparse"
    """The reward varies in few groups."""
    OPPOSED = "opposed"
    """Other rewards pull against it."""
    RANGE = "range"
    """The reward varies less within a group than other rewards, relative to its weight."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Stores a problem or fact that was found in a batch, and its remedy."""

    kind: Kind
    severity: Severity
    rewards: tuple[str, ...]
    """The rewards that the finding is about. Empty: the whole batch. Across steps, `kind` and
    `rewards` identify a finding, because its numbers change."""
    message: str
    """One or two sentences with numbers, without the final period."""
    remedy: str
    """What the user can do about it, or what follows from it, without what to set."""
    evidence: Mapping[str, float]
    """The numbers in the message, unrounded."""
    causes: tuple[Cause, ...] = ()
    """Why a reward has less influence than its weight, the main cause first."""
    setting: Setting | None = None
    """What to set, as the end of the remedy says."""

    def advice(self, *, options: bool = False) -> str:
        """Return the remedy with the argument to set, or with `options`, the option."""
        return advice({self.remedy: self.setting}, options=options)

    @property
    def line(self) -> str:
        """Return message and remedy on one line that is safe in a log."""
        return one_line(f"{self.message}. {capitalized(self.advice())}")

    @property
    def rank(self) -> tuple[int, int, float]:
        """Return a sort key: the positions of severity and kind, then the influence share.

        0 is the worst position. The share is relative to the weight share.
        """
        share = self.evidence.get("influence_share", 0.0)
        relative = share / (self.evidence.get("weight_share") or 1.0)
        return list(Severity).index(self.severity), list(Kind).index(self.kind), relative


_SMALL, _EXACT = 0.02, 5e-4
"""Shares below `_SMALL` are printed as upper bounds. Margins below `_EXACT` are not printed."""


def percent(share: float | None) -> str:
    """Return a share as a percentage. Only exactly 0 and exactly 1 are printed as 0 % and 100 %.

    None and NaN become –.

    >>> percent(0.5), percent(0.004), percent(0.00029), percent(0.0), percent(0.9996), percent(1.0)
    ('50 %', '0.4 %', '0.029 %', '0 %', '99.9 %', '100 %')
    >>> percent(None), percent(float("nan"))
    ('–', '–')
    """
    if share is None or share != share:
        return "–"
    hundredths = 100 * share
    if 0 < hundredths < 1:
        return f"{hundredths:.2g} %"
    if 99 < hundredths < 100:
        return f"{min(hundredths, 99.9):.1f} %"
    return f"{hundredths:.0f} %"


def times(ratio: float) -> str:
    """Return a ratio as text that fits into a sentence.

    >>> times(8.3), times(1.62), times(1234.0), times(123456.0)
    ('8 times', '1.6 times', '1234 times', '1.2e+05 times')
    """
    digits = f"{ratio:.1f}" if ratio < 3 else f"{ratio:.0f}" if ratio < 1e4 else f"{ratio:.1e}"
    return f"{digits} times"


def interval(share: float, margin: float) -> str:
    """Return a share ± its margin (NaN: unknown), or an upper bound if the interval contains 0.

    >>> interval(0.4812, 0.031), interval(-0.12, 0.03), interval(0.0025, 0.02), interval(1.0, 0.0)
    ('48 % ± 3', '-12 % ± 3', 'under 2 %', '100 %')
    >>> interval(0.4812, float("nan")), interval(0.005, 0.08), interval(float("nan"), 0.1)
    ('48 %', 'under 8 %', '–')
    >>> interval(-0.03, 0.05), interval(0.85, 1.22)
    ('under 8 %', 'unclear')
    """
    if share != share:
        return "–"
    if margin == margin and (abs(share) < _SMALL or margin > abs(share)):
        highest = abs(share) + margin
        return f"under {100 * max(_SMALL, highest):.0f} %" if highest < 1 else "unclear"
    sign = "-" if share < 0 else ""
    if margin != margin or margin < _EXACT:
        return f"{sign}{percent(abs(share))}"
    digits = 0 if margin >= 0.01 else 1
    return f"{sign}{100 * abs(share):.{digits}f} % ± {100 * margin:.{digits}f}"


class Range(NamedTuple):
    """Stores the range of a reward. NaN: unknown."""

    low: float = nan
    high: float = nan
    declared: bool = True
    """False: it is the range of the values so far."""

    def place(self, value: float, weight: float | int) -> float | None:
        """Return the place of a value in the range. 1: the end that the weight favors."""
        width = self.high - self.low
        if not width > 0:
            return None
        place = (value - self.low) / width
        return place if weight > 0 else 1 - place


Matrix: TypeAlias = tuple[tuple[float, ...], ...]
"""Matrix with one row and one column per reward."""

DETAILS = ("brief", "full")
"""Allowed values of `detail` in `Diagnosis.metrics`."""

_BRIEF = ("zero_variance_groups", "influence_share")
_LOGGED_OF_REWARDS = ("mean", "missing", "saturation", "influence")
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
    """Stores the statistics of one reward in a batch. `None` means that a value is unknown."""

    name: str
    weight: float
    low: float | None
    """Declared minimum, in the unit of the reward."""
    high: float | None
    """Declared maximum, in the unit of the reward."""
    mean: float | None
    """Mean over the rollouts that the reward applies to."""
    missing: float
    """Share of missing values in the batch."""
    groups: int
    """Number of groups that the reward applies to."""
    zero_variance_groups: float | None
    """Share of these groups in which the reward does not vary."""
    group_std: float | None
    """Sample standard deviation within a group, averaged over these groups."""
    varying_std: float | None
    """Median of the sample standard deviations of the groups in which the reward varies."""
    saturation: float | None
    """Position of the mean in the declared range, where 0 is the bottom and 1 is the top."""
    weight_share: float | None
    """|w_k| / Σ|w|. For several steps, this share is averaged over their groups."""
    influence: float | None
    """Mean of A z_k over the rollouts: how fast the update raises the reward, in units of its
    standard deviation within a group. Negative: the update lowers the reward."""
    influence_share: float | None
    """Influence / Σ|influence|, times the sign of the weight, with the sum over nonzero weights.
    Negative: the update opposes the weight. None: no reward has any influence."""
    influence_margin: float | None
    """Half-width of the 95 % confidence interval of `influence_share`. None: it has none."""
    below_resolution: float | None
    """Share of the groups with this reward whose values differ by no more than the rounding error
    of their type. Such values count as equal."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Stores the rewards and weights of a step, from which remedies are replayed."""

    names: tuple[str, ...]
    rewards: Any
    """`[prompt, sample, reward]`."""
    weights: Any
    """`[reward]` or `[prompt, reward]`."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Stores the statistics and findings for one batch. `None` means that a value is unknown."""

    estimator: str | None
    """Name of the estimator that computed the advantages."""
    prompts: int
    samples: int
    """Samples per prompt, including padding."""
    rollouts: int
    """Number of rollouts that have at least one reward."""
    rewards: tuple[RewardDiagnosis, ...]
    correlation: Matrix
    """Correlation between the z-scores of each pair of rewards, over the groups in which both
    vary. NaN: there is no such group."""
    degrees: Matrix
    """Degrees of freedom of each correlation: the samples minus one, summed over these groups."""
    conflict: float | None
    """Share of rollouts in which one w_k z_k is positive and another is negative."""
    chance_conflict: float | None
    """The same share, if the rewards were unrelated."""
    zero_advantage_groups: float
    """Share of groups whose advantages are all exactly 0."""
    batch_gain: float | None
    """Factor of GDPO's batch normalization: 1 / standard deviation of Σ w_k z_k over the batch."""
    signal_rms: float | None
    """Root mean square of the advantages, without zero-advantage groups."""
    largest: float
    """Largest absolute advantage."""
    distinct: float | None
    """Average number of distinct advantages in a group, without zero-advantage groups."""
    distinct_grpo: float | None
    """The same number for GRPO's advantages."""
    same_as_grpo: float | None
    """Correlation with GRPO's advantages, over the rollouts that have a reward."""
    influence: Influence = field(compare=False, repr=False)
    """The sums from which the influence shares are computed. They can be pooled over steps."""
    no_interval: NoInterval | None = None
    """Why the influence shares have no interval. None: they have one."""
    precision: str = "float64"
    """Floating-point type of the rewards."""
    scored: Scored | None = field(default=None, compare=False, repr=False)
    """The rewards and weights of the batch, from which remedies are replayed."""
    ranges: Mapping[str, Range] = field(default_factory=dict, compare=False, repr=False)
    """The declared range of each reward, or else that of its values in the batch."""
    findings: tuple[Finding, ...] = ()
    """The findings, worst first."""

    def metrics(self, *, detail: str = "brief") -> dict[str, float]:
        """Return a flat dict for loggers. Unknown values are omitted.

        Keys: `rewards/<reward>/zero_variance_groups`, `rewards/<reward>/influence_share` and
        `diagnostics/warnings`, the number of warnings among the findings.

        Args:
            detail: `"full"` adds `rewards/<reward>/group_std`, `diagnostics/<reward>/<number>`,
                `diagnostics/<number>` and `diagnostics/findings`, the number of all findings.

        Raises:
            ConfigError: If `detail` is neither `"brief"` nor `"full"`.
        """
        check_detail(detail, "detail")
        warnings = sum(finding.severity is Severity.WARNING for finding in self.findings)
        metrics = {**self._of_rewards("rewards", _BRIEF), "diagnostics/warnings": warnings}
        if detail == "full":
            of_batch = {f"diagnostics/{field}": getattr(self, field) for field in _LOGGED_OF_BATCH}
            metrics |= self._of_rewards("rewards", ["group_std"])
            metrics |= self._of_rewards("diagnostics", _LOGGED_OF_REWARDS)
            metrics |= {**of_batch, "diagnostics/findings": len(self.findings)}
        return {key: float(value) for key, value in metrics.items() if value is not None}

    def _of_rewards(self, prefix: str, fields: Sequence[str]) -> dict[str, Any]:
        return {
            f"{prefix}/{reward.name}/{field}": getattr(reward, field)
            for reward in self.rewards
            for field in fields
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as dicts, lists, numbers and strings for JSON. NaN becomes None."""
        unused = ("influence", "scored", "ranges")
        kept = {k: v for k, v in asdict(self).items() if k not in unused}
        return plain(kept)

    def summary(self) -> str:
        """Return text for a terminal: a table of rewards, two lines about the batch, and findings.

        Findings beyond about 20 lines are only counted, except for the worst two.
        """
        headings = ("reward", "weight", "mean", "std", "zero-variance", "weight share")
        head = [
            f"{self.estimator or 'advantages'} on {self.prompts} x {self.samples} rollouts "
            "(prompts x samples)",
            *aligned([(*headings, "influence share"), *map(_cells, self.rewards)]),
            *_batch(self),
        ]
        return "\n".join([*head, *finding_lines(self.findings, LINES - len(head))])

    __str__ = summary


def check_detail(detail: Any, field: str) -> None:
    """Raise a ConfigError unless the value of the field is one of `DETAILS`."""
    if not isinstance(detail, str) or detail not in DETAILS:
        raise ConfigError(f"{field}={detail!r}: {did_you_mean(str(detail), DETAILS)}")


LINES, _WIDTH = 20, 100
"""Target number of lines of a summary, and maximum number of characters per line."""

MARKS = {Severity.WARNING: "!", Severity.NOTE: "-"}


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as aligned lines: names left-aligned, numbers right-aligned."""
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
    return (
        reward.name,
        f"{reward.weight:g}",
        *means,
        percent(reward.zero_variance_groups),
        percent(reward.weight_share),
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
    if d.no_interval is not None:
        yield f"no interval: {d.no_interval}"
    if d.signal_rms is not None and d.distinct is not None and d.distinct_grpo is not None:
        yield (
            f"advantages: rms {d.signal_rms:.3g} in groups with signal, largest {d.largest:.3g}; "
            f"{d.distinct:.3g} different values per group (grpo: {d.distinct_grpo:.3g})"
        )


def finding_lines(findings: Sequence[Finding], room: int) -> Iterator[str]:
    """Yield the lines of as many findings as fit, but at least of two."""
    if not findings:
        yield "no findings"
        return
    for index, finding in enumerate(findings):
        message = f"{MARKS[finding.severity]} {one_line(finding.message)}"
        remedy = f"→ {one_line(finding.advice())}"
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
