"""Arrays in, arrays out: how a batch of several rewards becomes one advantage per rollout."""

from gdpo.advantages._estimators import gdpo, grpo, grpo_no_std
from gdpo.advantages._registry import (
    ESTIMATORS,
    Estimator,
    check_advantages,
    resolve_estimator,
    weights_by_name,
)
from gdpo.advantages.arrays import Advantages, Rewards, Weights, check_finite

__all__ = [
    "ESTIMATORS",
    "Advantages",
    "Estimator",
    "Rewards",
    "Weights",
    "check_advantages",
    "check_finite",
    "gdpo",
    "grpo",
    "grpo_no_std",
    "resolve_estimator",
    "weights_by_name",
]
