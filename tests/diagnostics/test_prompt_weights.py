"""A diagnosis with weights of each prompt."""

import numpy as np
import pytest

from gdpo.diagnostics import diagnose

REWARDS = np.random.default_rng(0).random((8, 6, 2))
NAMES = ["a", "b"]


def test_the_same_weights_for_each_prompt_give_the_same_diagnosis():
    plain = diagnose(REWARDS, [1.0, -0.5], NAMES, estimator="gdpo")
    own = diagnose(REWARDS, np.tile([1.0, -0.5], (8, 1)), NAMES, estimator="gdpo")
    for one, other in zip(plain.rewards, own.rewards, strict=True):
        assert other.weight == one.weight
        assert other.weight_share == pytest.approx(one.weight_share)
        assert other.influence_share == pytest.approx(one.influence_share)
    assert own.conflict == plain.conflict


def test_a_weight_share_is_the_mean_over_prompts_and_nan_does_not_apply():
    weights = np.array([[1.0, 3.0], [2.0, np.nan]] * 4)
    found = diagnose(REWARDS, weights, NAMES, estimator="gdpo")
    assert [r.weight_share for r in found.rewards] == [0.625, 0.375]
    assert [r.weight for r in found.rewards] == [1.5, 3.0]
    assert [r.groups for r in found.rewards] == [8, 4]
    assert found.rewards[1].missing == 0.5
