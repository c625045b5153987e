"""Defines the thresholds of all findings."""

from dataclasses import dataclass
from typing import Any

from gdpo.diagnostics.diagnosis import Kind


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Stores the thresholds of all findings.

    The defaults avoid false alarms on healthy batches, even if some problems are missed.
    research/measurements.md lists the measured false-alarm rates.
    """

    zero_variance: float = 0.9
    """Minimum share of zero-variance groups at which a reward counts as constant."""
    below_resolution: float = 0.1
    """The lost signal is reported if at least this share of groups has values that differ only by
    rounding. A smaller share loses little signal, and a few such groups are normal for a computed
    reward."""
    top: float = 0.95
    """A constant reward counts as being at the top if its mean is at or above this fraction of the
    declared range. The fraction is below 1 because the few groups that still vary lower the mean of
    a learned reward."""
    bottom: float = 0.05
    """A constant reward counts as being at the bottom if its mean is at or below this fraction of
    the declared range."""
    missing: float = 0.9
    """Minimum share of missing values at which a reward counts as mostly missing."""
    window: int = 256
    """Number of groups over which a training run sums the influence. Shares over only a few groups
    are too noisy. With 256 groups of 8 samples, the standard error of a share is about 2 %."""
    few_groups: int = 7
    """Minimum number of groups for the finding `below_resolution` to be a warning."""
    least_varying: int = 4
    """Minimum number of groups in which a reward must vary for a finding about its influence."""
    under_weighted: float = 0.5
    """A reward has less effect than its weight if its influence share is below this fraction of its
    weight share."""
    ignored: float = 0.25
    """A reward is ignored if its influence share is below this fraction of its weight share."""
    reversed: float = 0.05
    """A reward is reversed if its influence share is negative and larger than this."""
    opposed: float = 0.5
    """Minimum absolute value of a negative correlation at which two rewards count as opposed. At
    this value and with equal weights, each reward loses half of its influence to the other."""
    redundant: float = 0.95
    """Minimum correlation at which two rewards count as redundant. At this value, the two rewards
    share 90 % of their variance."""
    agreement: float = 0.5
    """A batch counts as conflicting if its share of rollouts without conflict is at most this
    fraction of the share for unrelated rewards. The share itself is not enough: two unrelated
    rewards of 0 or 1, each earned by half of the rollouts, conflict in half of all rollouts."""
    zero_advantage: float = 0.9
    """Minimum share of zero-advantage groups at which a batch counts as having no signal."""
    signal_rms: float = 3.0
    """Batch normalization amplifies too much if the root mean square of the advantages in the
    groups with signal is at least this large. If a share s of the groups has signal, the root mean
    square is 1 / √s, so s = 1/9 gives 3."""
    tiny_std: float = 0.01
    """If the typical standard deviation within a group is below this fraction of the declared
    range, the variation may be noise."""
    extreme: float = 10.0
    """An advantage is extreme if it is larger than this multiple of the root mean square in the
    groups with signal. A multiple also works for estimators that do not normalize. Without any
    outlier, one failure among 16 samples gives 3.8, and one failure among 64 samples gives 7.9."""
    same: float = 0.999
    """Minimum correlation at which advantages count as equal to GRPO's. At this value, 0.2 % of the
    variance differs."""
    merged: float = 0.5
    """GRPO counts as merging rollouts if its number of distinct advantages per group is at most
    this fraction of the estimator's."""
    standard_errors: float = 3.0
    """Minimum distance, in standard errors, between a correlation or a share of conflicts and the
    value at which there is nothing to report: 0, or the share expected by chance. A distance of 3
    is exceeded by chance in 0.3 % of the batches."""
    constant_turns: float = 0.95
    """Minimum share of zero-variance groups of every reward at which a turn counts as constant. The
    share must hold even if two more groups varied, which takes at least 40 groups. A reward that
    varies in a tenth of 40 groups varies in none of them in 1.5 % of the cases."""
    paid_turns: float = 0.95
    """Minimum share of the turns with a positive value at which a reward counts as paid per turn.
    A reward counts as paid at the end if the share of the earlier turns with a value other than 0
    is at most 1 minus this share."""
    paid_ratio: float = 1.0
    """A reward that is paid per turn is reported if its mean total is at least this multiple of the
    difference between the best and the worst end of a rollout."""
    turn_count: float = 0.5
    """Minimum absolute correlation of a reward's total with the number of turns to be reported.
    Rewards that are unrelated to the number of turns stay far below, and an outcome that is reached
    somewhat more often by longer rollouts does too."""
    turn_count_groups: int = 16
    """Minimum number of groups in which the reward and the number of turns vary."""
    turn_count_influence: float = 0.1
    """Minimum influence share of a reward at the first turn for the same two findings. The
    advantages hardly depend on a reward with a smaller share."""

    def effect(self, weight_share: Any) -> dict[Kind, Any]:
        """Return the influence share below which a reward has each kind of finding, worst first."""
        return {
            Kind.REVERSED: -self.reversed,
            Kind.IGNORED: self.ignored * weight_share,
            Kind.UNDER_WEIGHTED: self.under_weighted * weight_share,
        }
