"""What a batch says about its groups."""

import numpy as np
import torch
from numpy.testing import assert_allclose

from gdpo.diagnostics import group_std, zero_advantage_groups, zero_variance_groups

NAN = np.nan
REWARDS = np.array(
    [
        [[1.0, 5.0], [0.0, 5.0]],
        [[1.0, NAN], [1.0, NAN]],
        [[3.0, 2.0], [0.0, NAN]],
        [[0.1, 0.0], [0.1, 4.0]],
    ]
)


def test_zero_variance_groups_are_counted_among_groups_that_the_reward_applies_to():
    assert_allclose(zero_variance_groups(REWARDS), [2 / 4, 2 / 3])


def test_the_group_std_is_the_mean_over_groups_and_not_over_the_batch():
    root = np.sqrt(0.5)
    assert_allclose(group_std(REWARDS), [(root + 3 * root) / 4, 4 * root / 3])


def test_a_reward_that_applies_nowhere_has_neither():
    nowhere = np.full((2, 3, 1), NAN)
    assert np.isnan(zero_variance_groups(nowhere)).all()
    assert np.isnan(group_std(nowhere)).all()


def test_torch_gives_the_same():
    tensor = torch.tensor(REWARDS, dtype=torch.float32)
    assert_allclose(zero_variance_groups(tensor), zero_variance_groups(REWARDS), rtol=1e-6)
    assert_allclose(group_std(tensor), group_std(REWARDS), rtol=1e-6)


def test_a_zero_advantage_group_has_only_advantages_of_exactly_zero():
    advantages = np.array([[0.0, 0.0], [0.0, 1e-30], [1.0, -1.0], [0.0, 0.0]])
    assert zero_advantage_groups(advantages) == 0.5
