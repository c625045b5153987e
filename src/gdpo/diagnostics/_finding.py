"""What a finding is: something in a batch that a person should know, with the numbers behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


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
    TINY_SPREAD = "tiny_spread"
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
