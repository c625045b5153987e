"""What each estimator claims, the options it is tested with, and its oracle."""

from dataclasses import replace

import numpy as np
from tests.oracles import estimators as by_hand

from gdpo.advantages import ESTIMATORS, gdpo, gdpo_decorrelated
from gdpo.testing import Claims


def per_reward(**values):
    """Return options with the same number for every reward."""
    return lambda rewards: {name: [v] * rewards.shape[-1] for name, v in values.items()}


def first_is_constrained(rewards):
    return {"multipliers": [2.0, *[np.nan] * (rewards.shape[-1] - 1)]}


def tokens(rewards):
    """Return a count per rollout that depends on its rewards and not on its position."""
    return {"token_counts": 1 + np.floor(8 * np.abs(np.nan_to_num(rewards[..., 0]))) % 50}


NO_OPTIONS = {}

CLAIMS = {
    "grpo": (Claims("all", local=True), NO_OPTIONS),
    "grpo_no_std": (Claims("kept", local=True), NO_OPTIONS),
    "rloo": (Claims("kept", local=True), NO_OPTIONS),
    "grpo_batch_std": (Claims("all"), NO_OPTIONS),
    "grpo_batch_norm": (Claims("all"), NO_OPTIONS),
    "mo_grpo": (Claims("each", local=True), NO_OPTIONS),
    "gdpo": (Claims("each"), NO_OPTIONS),
    "gdpo_leave_one_out": (Claims("mixed", zero_variance_groups=False), NO_OPTIONS),
    "per_reward_batch_std": (Claims("each"), NO_OPTIONS),
    "dvao": (Claims("all", local=True), NO_OPTIONS),
    "sa_mrpo": (Claims("mixed", shift=False), per_reward(low=-10.0, high=10.0)),
    "saw": (Claims("mixed", shift=False), per_reward(low=-10.0)),
    "dara_symmetric": (Claims("each"), NO_OPTIONS),
    "dara_asymmetric": (Claims("each", zero_variance_groups=False), NO_OPTIONS),
    "corr_grpo": (Claims("mixed", local=True), NO_OPTIONS),
    "gd2po_hard": (Claims("each", zero_variance_groups=False), NO_OPTIONS),
    "gd2po_snr": (Claims("each", zero_variance_groups=False), NO_OPTIONS),
    "gdpo_decorrelated": (Claims("each"), NO_OPTIONS),
    "rvpo": (
        Claims("each", zero_variance_groups=False, constant_rewards=False, signed=False),
        NO_OPTIONS,
    ),
    "constrained_grpo": (Claims("each", local=True), first_is_constrained),
}

POOLED = {"grpo_batch_std", "per_reward_batch_std", "sa_mrpo", "saw", "gdpo_decorrelated"}
POOLED |= {"dara_symmetric", "dara_asymmetric"}

CLAIMS = {
    name: (replace(claims, prompt_weights=True, pooled=name in POOLED), options)
    for name, (claims, options) in CLAIMS.items()
}

SUBJECTS = {
    name: (ESTIMATORS[name], getattr(by_hand, name), claims, options)
    for name, (claims, options) in CLAIMS.items()
}
"""Estimator, oracle, claims and options by name."""

SUBJECTS |= {
    "gdpo, token weights": (
        gdpo,
        by_hand.gdpo_token_weighted,
        Claims("mixed", shift=False, zero_variance_groups=False, prompt_weights=True),
        tokens,
    ),
    "gdpo_decorrelated, power 1": (
        gdpo_decorrelated,
        by_hand.gdpo_decorrelated,
        Claims("each", prompt_weights=True, pooled=True),
        {"power": 1},
    ),
}
