"""Rewards: what is wanted of a completion, as numbers. Nothing here knows a trainer."""

from gdpo.rewards._reward import Example, Reference, Reward
from gdpo.rewards._scorer import Failure, Scores, check_distinct, score, score_one

__all__ = [
    "Example",
    "Failure",
    "Reference",
    "Reward",
    "Scores",
    "check_distinct",
    "score",
    "score_one",
]
