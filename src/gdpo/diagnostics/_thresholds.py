"""From which number on a batch is worth a finding."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """All thresholds of the findings.

    They are meant to be silent on a healthy batch, not to find every flaw: docs/reference/
    diagnostics.md says how often they cry wolf.
    """

    dead: float = 0.9
    """Share of dead groups from which a reward is said not to vary: it acts in one of ten groups at
    most."""
    few_groups: int = 7
    """With fewer groups, what is said about a share of them is a note and no warning. A reward that
    varies in half of all groups is dead in 6 of 6 by chance in 1.6 %, in 7 of 7 in 0.8 %."""
    below_resolution: float = 0.1
    """Share of groups that differ by no more than rounding from which a loss of signal is named:
    less costs little, and a reward that is computed may well do so in a few."""
    top: float = 0.95
    """Part of its declared range at which the mean of a dead reward counts as the top of it. The
    few groups that still vary keep the mean of a learnt reward a little below 1."""
    bottom: float = 0.05
    """Part of its declared range up to which the mean of a dead reward counts as the bottom."""
    missing: float = 0.9
    """Share of missing values from which a reward is said to be mostly missing: one of ten rollouts
    at most decides it."""
    window: int = 256
    """Groups over which influence is added up in a training: shares of a few groups are noise. The
    standard error of a share is about 2 % with 256 groups of 8."""
    least_groups: int = 64
    """Groups from which it is said that a reward is ignored or reversed."""
    least_live: int = 16
    """Of these, the groups in which the reward has to vary."""
    ignored: float = 0.25
    """Part of the correlation with the advantage that the weights ask for, below which a reward is
    ignored. Under GRPO a reward whose standard deviation is a fifth of the others' has it."""
    reversed: float = 0.05
    """Influence share from which a wrong sign counts: less moves hardly anything."""
    opposed: float = 0.5
    """Negative correlation from which two rewards are opposed. At equal weights each then loses
    half of its influence to the other."""
    redundant: float = 0.95
    """Correlation from which two rewards say the same: 90 % of the variance of one is the other's.
    """
    agreement: float = 0.5
    """Rollouts without conflict, as a part of what unrelated rewards would give, below which a
    batch is in conflict. Half of all rollouts are in conflict if two rewards of 0 and 1 at a rate
    of one half are unrelated: their share alone says nothing."""
    silent: float = 0.9
    """Share of silent groups from which a batch has no signal: nine of ten rollouts are generated
    for nothing."""
    live_rms: float = 3.0
    """Size of the advantages in the groups that have signal, from which the gain is too high. It is
    1 where all groups have signal, and 1 / √share where few do: 3 is reached at a ninth."""
    tiny_spread: float = 0.01
    """Typical spread in a group, as a part of the declared range, below which it may be noise."""
    extreme: float = 10.0
    """Size of an advantage that is extreme, in root mean squares of the groups that have signal, so
    that estimators which do not normalize are measured alike. One failure among 16 samples gives
    3.8 and one among 64 gives 7.9, which are in the nature of the formula."""
    same: float = 0.999
    """Correlation with GRPO's advantages from which they are the same: 0.2 % of the variance
    differs."""
    merged: float = 0.5
    """Different advantages of GRPO in a group, as a part of those of the estimator, up to which
    GRPO is said to merge: half of the distinctions is lost."""
    standard_errors: float = 3.0
    """How many standard errors a correlation or an influence must be away from what would be
    harmless. At 3, a batch with nothing in it shows a given one by chance in 0.3 %."""
