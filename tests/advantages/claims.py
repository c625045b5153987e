"""What each estimator claims, the options it is tested with, and its oracle."""

import numpy as np
from tests.oracles import estimators as by_hand

from gdpo.advantages import ESTIMATORS, gdpo, gdpo_decorrelated
from gdpo.testing import Claims


def tokens(rewards):
    """Return a count per rollout that depends on its rewards and not on its position."""
    return {"token_counts": 1 + np.floor(8 * np.abs(np.nan_to_num(rewards[..., 0]))) % 50}


ORACLES = {name: getattr(by_hand, name) for name in ESTIMATORS}

SUBJECTS = {
    name: (ESTIMATORS[name], oracle, oracle.claims, oracle.options)
    for name, oracle in ORACLES.items()
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


def options_of(name, rewards):
    """Return the options of a subject for these rewards."""
    options = SUBJECTS[name][3]
    return options(rewards) if callable(options) else options
