"""Rewards: what is wanted of a completion, as numbers. Nothing here knows a trainer."""

from gdpo.rewards._gating import Gate, apply_gates, check_gates, closed_gates, declared_ranges
from gdpo.rewards._reward import Example, Reference, Reward
from gdpo.rewards._scorer import OnError, Scorer, check_distinct, score
from gdpo.rewards._scores import Failure, Scores, score_one
from gdpo.rewards.named import BUILT_IN

__all__ = [
    "BUILT_IN",
    "Example",
    "Failure",
    "Gate",
    "OnError",
    "Reference",
    "Reward",
    "Scorer",
    "Scores",
    "apply_gates",
    "check_distinct",
    "check_gates",
    "closed_gates",
    "declared_ranges",
    "score",
    "score_one",
]
