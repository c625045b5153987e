"""Rewards: what is wanted of a completion, as numbers. Nothing here knows a trainer."""

from gdpo.rewards._scorer import OnError, Scorer, check_distinct, score
from gdpo.rewards.gates import Gate, apply_gates, check_gates, closed_gates, declared_ranges
from gdpo.rewards.named import BUILT_IN
from gdpo.rewards.reward import Example, Reference, Reward
from gdpo.rewards.scores import Failure, Scores, score_one

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
