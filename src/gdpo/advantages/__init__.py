"""Provides estimators: functions that compute one advantage per rollout from several rewards.

Each is a file in `gdpo.advantages.estimators`, whose docstring states their contract.
`gdpo.testing.check_estimator` tests your own estimator against it.
"""

from gdpo._left import absent
from gdpo.advantages._rule import AdvantageRule
from gdpo.advantages._stateful import DualAscent, RunningScale
from gdpo.advantages._turns import (
    TURN_ESTIMATORS,
    TurnAdvantages,
    TurnCounts,
    TurnEstimator,
    TurnRewards,
    turn_broadcast,
    turn_gdpo,
)
from gdpo.advantages._types import Advantages, Rewards, Weights
from gdpo.advantages.estimators import ESTIMATORS, Estimator
from gdpo.advantages.registry import resolve_estimator

__all__ = [
    "ESTIMATORS",
    "TURN_ESTIMATORS",
    "AdvantageRule",
    "Advantages",
    "DualAscent",
    "Estimator",
    "Rewards",
    "RunningScale",
    "TurnAdvantages",
    "TurnCounts",
    "TurnEstimator",
    "TurnRewards",
    "Weights",
    "resolve_estimator",
    "turn_broadcast",
    "turn_gdpo",
]


def __getattr__(name: str) -> Estimator:
    """Return an estimator by name, so that `from gdpo.advantages import grpo` works for each."""
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    raise absent(__name__, name)
