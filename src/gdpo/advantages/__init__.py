"""Provides estimators: functions that compute one advantage per rollout from several rewards.

All estimators share a contract:

- NaN means that a reward does not apply to a rollout. Missing values are excluded from every
  statistic. A rollout without any reward gets the advantage 0.
- A reward that does not vary within a group contributes exactly 0 to that group. If no reward
  varies in any group, all advantages are exactly 0.
- An infinite reward raises a `DataError`.
- If groups differ in size, the smaller groups must be padded with NaN. A group with a single sample
  contributes 0.

Use `gdpo.testing.check_estimator` to test your own estimator against this contract.
"""

from gdpo.advantages._agreement import corr_grpo, gd2po_hard, gd2po_snr, gdpo_decorrelated
from gdpo.advantages._decoupled import gdpo, gdpo_leave_one_out, per_reward_batch_std
from gdpo.advantages._emphasis import sa_mrpo, saw
from gdpo.advantages._rule import AdvantageRule
from gdpo.advantages._running import RunningScale
from gdpo.advantages._sum_first import grpo, grpo_batch_norm, grpo_batch_std, grpo_no_std, rloo
from gdpo.advantages._turns import (
    TURN_ESTIMATORS,
    TurnAdvantages,
    TurnCounts,
    TurnEstimator,
    TurnRewards,
    turn_broadcast,
    turn_gdpo,
)
from gdpo.advantages.arrays import Advantages, Rewards, Weights
from gdpo.advantages.registry import ESTIMATORS, Estimator, resolve_estimator

__all__ = [
    "ESTIMATORS",
    "TURN_ESTIMATORS",
    "AdvantageRule",
    "Advantages",
    "Estimator",
    "Rewards",
    "RunningScale",
    "TurnAdvantages",
    "TurnCounts",
    "TurnEstimator",
    "TurnRewards",
    "Weights",
    "corr_grpo",
    "gd2po_hard",
    "gd2po_snr",
    "gdpo",
    "gdpo_decorrelated",
    "gdpo_leave_one_out",
    "grpo",
    "grpo_batch_norm",
    "grpo_batch_std",
    "grpo_no_std",
    "per_reward_batch_std",
    "resolve_estimator",
    "rloo",
    "sa_mrpo",
    "saw",
    "turn_broadcast",
    "turn_gdpo",
]
