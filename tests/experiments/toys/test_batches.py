"""On these batches the advantages come out as on paper."""

import numpy as np
import pytest
from tests.experiments.toys.batches import (
    correlated_batch,
    correlation_with,
    influence,
    junk_batch,
    live_size,
    thinning_batch,
)

from gdpo.advantages import dvao, gdpo, gdpo_decorrelated, grpo, mo_grpo


@pytest.mark.parametrize(("rate", "samples"), [(0.5, 4), (0.5, 8), (0.4, 8), (0.1, 4)])
def test_gdpo_follows_junk_as_much_as_correctness_and_grpo_hardly_does(rate, samples):
    rewards = junk_batch(0, rate=rate, samples=samples)
    active = 1 - rate**samples - (1 - rate) ** samples
    by_gdpo = correlation_with(gdpo(rewards, [1, 1]), rewards)
    expected = np.sqrt([active / (1 + active), 1 / (1 + active)])
    np.testing.assert_allclose(by_gdpo, expected, atol=0.02)
    by_grpo = correlation_with(grpo(rewards, [1, 1]), rewards)
    np.testing.assert_allclose(by_grpo, [active**0.5, 1 - active], atol=0.02)


def test_the_published_figures_of_junk_come_out():
    # .99/.02 for GRPO and DVAO, .71/.69 for GDPO, of a batch that is not described further.
    rewards = junk_batch(0, rate=0.4)
    for estimator, published in ((grpo, [0.99, 0.02]), (dvao, [0.99, 0.02]), (gdpo, [0.71, 0.69])):
        found = correlation_with(estimator(rewards, [1, 1]), rewards)
        np.testing.assert_allclose(found, published, atol=0.025)


@pytest.mark.parametrize("active", [1.0, 0.5, 0.1, 0.02])
def test_the_batch_step_makes_live_advantages_larger_as_groups_die(active):
    rewards = thinning_batch(active)
    assert live_size(gdpo(rewards, [1]), rewards) == pytest.approx(active**-0.5, rel=1e-3)
    assert live_size(grpo(rewards, [1]), rewards) == pytest.approx((7 / 8) ** 0.5)


@pytest.mark.parametrize(
    ("power", "expected", "variance"),
    [(0, [1.9, 1.9, 1], 4.8), (0.5, [1.378, 1.378, 1], 3.0), (1, [1, 1, 1], 2.05)],
)
def test_rewards_that_agree_support_each_other_unless_they_are_decorrelated(
    power, expected, variance
):
    rewards = correlated_batch(0.9, 0)
    a = gdpo_decorrelated(rewards, [1, 1, 1], power=power, shrinkage=1e-6)
    found = influence(a, rewards)
    np.testing.assert_allclose(found / found[2], expected, atol=0.02)
    # The batch step leaves a size of 1: the influence was divided by the root of the variance.
    np.testing.assert_allclose(found, np.divide(expected, variance**0.5), rtol=0.02)


def test_influence_is_the_correlation_matrix_times_the_weights():
    rewards, weights = correlated_batch(0.6, 1, prompts=50, samples=8), np.array([1.0, 2.0, 0.5])
    each = [influence(mo_grpo(rewards[..., [k]], [1]), rewards) for k in range(3)]
    np.testing.assert_allclose(np.diag(each), 1)
    np.testing.assert_allclose(
        influence(mo_grpo(rewards, weights), rewards), np.transpose(each) @ weights
    )
