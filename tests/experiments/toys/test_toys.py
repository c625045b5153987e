"""A toy's expected rewards and gradients are those of what it samples."""

import numpy as np
import pytest

from gdpo.experiments.toys import TOYS
from gdpo.experiments.toys._toys import draw, moments

ROLLOUTS = 200_000
EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


def away_from_the_start(toy):
    """Return natural parameters that a run may reach, the same at each call."""
    return toy.start + np.random.default_rng(7).normal(size=len(toy.choices))


def sampled(toy, eta, seed=0):
    draws = len(toy.choices) + len(toy.rewards)
    uniform = np.random.default_rng(seed).random((ROLLOUTS // 4, 4, draws))
    chosen, rewards = toy.sample(eta, uniform)
    return chosen.reshape(ROLLOUTS, -1), rewards.reshape(ROLLOUTS, -1)


@EVERY_TOY
def test_the_expected_rewards_are_the_means_of_many_rollouts(toy):
    eta = away_from_the_start(toy)
    _, rewards = sampled(toy, eta)
    error = rewards.std(axis=0) / ROLLOUTS**0.5
    assert (np.abs(rewards.mean(axis=0) - toy.expected_rewards(eta)) < 4 * error).all()


@EVERY_TOY
def test_the_gradient_is_that_of_the_expected_rewards(toy):
    eta, step = away_from_the_start(toy), 1e-5
    shifts = step * np.eye(len(eta))
    slopes = [toy.expected_rewards(eta + s) - toy.expected_rewards(eta - s) for s in shifts]
    np.testing.assert_allclose(toy.gradient(eta), np.transpose(slopes) / (2 * step), atol=1e-8)


@EVERY_TOY
def test_reward_times_score_is_the_gradient_on_average(toy):
    eta = away_from_the_start(toy)
    chosen, rewards = sampled(toy, eta)
    score = chosen - moments(eta, toy.graded)[0]
    centred = rewards - toy.expected_rewards(eta)
    products = centred[:, :, None] * score[:, None, :]
    error = products.std(axis=0) / ROLLOUTS**0.5
    assert (np.abs(products.mean(axis=0) - toy.gradient(eta)) < 5 * error).all()


@EVERY_TOY
def test_rewards_stay_in_their_declared_ranges_and_use_them(toy):
    _, rewards = sampled(toy, toy.start)
    for column, measured in zip(rewards.T, toy.measured, strict=True):
        assert measured.low <= column.min() <= column.max() <= measured.high
        if toy.rewards[toy.names.index(measured.name)].choices:
            np.testing.assert_allclose(np.ptp(column), measured.high - measured.low, rtol=1e-3)


@EVERY_TOY
def test_every_toy_says_what_it_is(toy):
    assert all([toy.question, toy.expected, toy.source, toy.failure])
    assert set(toy.constraint) <= set(toy.names)
    assert len(toy.choices) <= toy.width


@EVERY_TOY
def test_the_directions_have_the_angles_that_the_toy_declares(toy):
    for seed in (0, 1):
        directions = toy.directions(np.random.default_rng(seed))
        np.testing.assert_allclose(directions @ directions.T, toy.gram, atol=1e-12)


@pytest.mark.parametrize("eta", [-40.0, -3.0, -0.0101, -0.0099, 0.0, 1e-6, 0.0099, 0.0101, 2.0])
def test_the_moments_of_a_graded_choice_are_the_integrals_over_its_density(eta):
    a = np.linspace(-1, 1, 400_001)
    middles = (a[1:] + a[:-1]) / 2
    density = np.exp(eta * middles - abs(eta))
    density /= density.sum()
    mean = density @ middles
    got = moments(np.array([eta]), np.array([True]))
    np.testing.assert_allclose(got[0], mean, atol=1e-8)
    np.testing.assert_allclose(got[1], density @ (middles - mean) ** 2, atol=1e-8)


@pytest.mark.parametrize("eta", [-900.0, -5.0, -1e-12, 0.0, 0.3, 900.0])
def test_a_graded_choice_is_the_inverse_of_its_distribution_function(eta):
    uniform = np.linspace(0, 1, 11)
    a = draw(np.full(11, eta), uniform, np.full(11, True))
    assert a.min() >= -1
    assert a.max() <= 1
    assert (np.diff(a) >= 0).all()
    if abs(eta) < 100:
        size = max(abs(eta), 1e-9) * (1 if eta >= 0 else -1)
        below = np.expm1(size * (a + 1)) / np.expm1(2 * size)
        np.testing.assert_allclose(below, uniform, atol=1e-6)


def test_the_numbers_that_the_toys_expect_are_those_of_their_settings():
    slopes = TOYS["saturating"].gradient(TOYS["saturating"].start)
    np.testing.assert_allclose(np.diag(slopes), [0.0475, 0.16])
    sparse = TOYS["sparse"].expected_rewards(TOYS["sparse"].start)
    active = 1 - sparse**4 - (1 - sparse) ** 4
    np.testing.assert_allclose(active, [0.0776, 0.875], atol=5e-5)
    assert (active[1] / active[0]) ** 0.5 == pytest.approx(3.35, abs=0.01)
    rate = TOYS["junk"].expected_rewards(TOYS["junk"].start)[0]
    assert rate**4 + (1 - rate) ** 4 == pytest.approx(0.656, abs=5e-4)
    shrunk = 0.9 * np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]) + 0.1 * np.eye(3)
    np.testing.assert_allclose(np.linalg.eigvalsh(shrunk), [0.1, 1, 1.9])
    np.testing.assert_allclose([2 / 1.9**0.5, 2 / 1.9], [1.45, 1.05], atol=0.003)
