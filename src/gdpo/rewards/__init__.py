"""Rewards: what is wanted of a completion, as numbers. Nothing here knows a trainer."""

from gdpo.rewards._gating import Gate, apply_gates, check_gates, closed_gates, declared_ranges
from gdpo.rewards._reward import Example, Reference, Reward
from gdpo.rewards._scorer import OnError, Scorer, check_distinct, score
from gdpo.rewards._scores import Failure, Scores, score_one

BUILT_IN = {
    "token_limit": "gdpo.rewards.length:token_limit",
    "soft_overlong": "gdpo.rewards.length:soft_overlong",
    "token_range": "gdpo.rewards.length:token_range",
    "maths_answer": "gdpo.rewards.maths:maths_answer",
    "pass_rate": "gdpo.rewards.code:pass_rate",
    "pass_all": "gdpo.rewards.code:pass_all",
    "no_bug": "gdpo.rewards.code:no_bug",
}
"""Rewards that need no task, by the name that recipes call them: where each lies."""

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
