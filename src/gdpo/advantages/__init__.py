"""Estimators: functions that compute one advantage per rollout from a batch of several rewards.

All estimators share a contract:

- NaN means that a reward does not apply to a rollout. It is left out of every statistic. A rollout
  without any reward gets 0.
- A reward that does not vary in a group contributes exactly 0 there. A batch without signal gives
  exactly 0 everywhere.
- An infinite reward is a `DataError`.
- Groups of unequal size are padded with NaN. A group of one contributes 0.

`gdpo.testing.check_estimator` tests this contract, also for an estimator of your own.
"""

from gdpo.advantages._agreement import corr_grpo, gd2po_hard, gd2po_snr, gdpo_decorrelated
from gdpo.advantages._decoupled import gdpo, gdpo_leave_one_out, per_reward_batch_std
from gdpo.advantages._emphasis import sa_mrpo, saw
from gdpo.advantages._rule import AdvantageRule
from gdpo.advantages._sum_first import grpo, grpo_batch_norm, grpo_batch_std, grpo_no_std, rloo
from gdpo.advantages.arrays import Advantages, Rewards, Weights
from gdpo.advantages.registry import ESTIMATORS, Estimator, resolve_estimator

__all__ = [
    "ESTIMATORS",
    "AdvantageRule",
    "Advantages",
    "Estimator",
    "Rewards",
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
]
