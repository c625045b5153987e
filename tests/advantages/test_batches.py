"""On these batches the advantages come out as on paper."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gdpo.advantages import dvao, gdpo, gdpo_decorrelated, grpo, mo_grpo


def junk_batch(seed, *, rate=0.5):
    r"""A reward of 0 and 1, and a constant with 0.1 % of jitter.

    With $\pi = 1 - p^G - (1 - p)^G$ the share of groups in which the first one varies, and weights
    of 1, the correlations of A with the normalized rewards are $\sqrt{\pi / (1 + \pi)}$ and
    $1 / \sqrt{1 + \pi}$ for GDPO. For GRPO they are $\sqrt\pi$ and $1 - \pi$, as the jitter shows
    only where the first reward does not vary.
    """
    rng = np.random.default_rng(seed)
    correct, jitter = rng.random((2, 4000, 8))
    return np.stack([correct < rate, 0.5 + 0.001 * jitter], axis=2)


def thinning_batch(active):
    r"""One reward that half of the samples earn in a share of the groups, and all in the others.

    Without its batch step, an advantage has the size $\sqrt{(G - 1) / G}$ in a group that varies,
    however few there are. GDPO's batch step divides by the size over the whole batch: where a share
    $a$ varies, the advantages there are larger by $1 / \sqrt a$, to about one part in the number of
    rollouts.
    """
    rewards = np.ones((1000, 8, 1))
    rewards[: round(active * 1000), ::2] = 0.0
    return rewards


def correlated_batch(correlation, seed):
    r"""Two normal rewards with this correlation, and a third one that is independent.

    With weights of 1 the influence on $\sum_k w_k z_k$ is $C w$: $1 + \rho$, $1 + \rho$ and 1. With
    the weights $C^{-\alpha} w$ it is $C^{1 - \alpha} w$: $(1 + \rho)^{1 - \alpha}$ twice, and 1.
    """
    rng = np.random.default_rng(seed)
    one, other, third = rng.normal(size=(3, 500, 64))
    alike = correlation * one + math.sqrt(1 - correlation**2) * other
    return np.stack([one, alike, third], axis=2)


def influence(advantages, rewards):
    r"""$\mathrm{Cov}(A, z_k)$ over the batch, $z_k$ being the reward normalized in its group."""
    z = _normalized(rewards)
    rollouts = advantages.size - len(advantages)  # a group has one degree of freedom less
    return np.einsum("pg,pgk->k", advantages, z) / rollouts


def correlation_with(advantages, rewards):
    """Correlation of the advantages with each reward normalized in its group, over the batch."""
    z = _normalized(rewards)
    size = np.sqrt((advantages**2).sum() * (z**2).sum(axis=(0, 1)))
    return np.einsum("pg,pgk->k", advantages, z) / size


def live_size(advantages, rewards):
    """Root mean square of the advantages in the groups where a reward varies."""
    live = (rewards != rewards[:, :1]).any(axis=(1, 2))
    return float(np.sqrt((advantages[live] ** 2).mean()))


def _normalized(rewards):
    return np.stack([mo_grpo(rewards[..., [k]], [1]) for k in range(rewards.shape[2])], axis=2)


def test_the_published_figures_of_junk_come_out():
    # .99/.02 for GRPO and DVAO, .71/.69 for GDPO, of a batch that is not described further.
    rewards = junk_batch(0, rate=0.4)
    for estimator, published in ((grpo, [0.99, 0.02]), (dvao, [0.99, 0.02]), (gdpo, [0.71, 0.69])):
        found = correlation_with(estimator(rewards, [1, 1]), rewards)
        assert_allclose(found, published, atol=0.025)


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
    assert_allclose(found / found[2], expected, atol=0.02)
    # The batch step leaves a size of 1: the influence was divided by the root of the variance.
    assert_allclose(found, np.divide(expected, variance**0.5), rtol=0.02)
