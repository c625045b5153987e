"""Defines rewards: functions that score completions without depending on a trainer."""

from gdpo.rewards.gates import Gate, apply_gates
from gdpo.rewards.named import BUILT_IN
from gdpo.rewards.reward import Example, Reference, Reward
from gdpo.rewards.scorer import Scorer, Scores, score

__all__ = [
    "BUILT_IN",
    "Example",
    "Gate",
    "Reference",
    "Reward",
    "Scorer",
    "Scores",
    "apply_gates",
    "score",
]
