"""A toy's gradients are those of what it samples, and estimators differ on it as its text says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.toys._run import Adam, mean_update, policy_gradient, rule_for, run_toy
from benchmarks.toys._suite import suite, table
from benchmarks.toys._toys import TOYS, draw, moments
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from tests.refusals import config_error

from gdpo.advantages import ESTIMATORS
from gdpo.lab.experiments.reading import Label

ROLLOUTS = 100_000
EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
HERE = "tests.experiments.test_toys"
SHORT = replace(TOYS["opposed"], steps=30)


def nothing(rewards, weights):
    return np.zeros(rewards.shape[:2])


def the_first_reward_as_it_is(rewards, weights):
    return rewards[..., 0].copy()


def away_from_the_start(toy):
    """Return natural parameters that a run may reach, the same at each call."""
    return toy.start + default_rng(7).normal(size=len(toy.choices))


def sampled(toy, eta):
    draws = len(toy.choices) + len(toy.rewards)
    uniform = default_rng(0).random((ROLLOUTS // 4, 4, draws))
    chosen, rewards = toy.sample(eta, uniform)
    return chosen.reshape(ROLLOUTS, -1), rewards.reshape(ROLLOUTS, -1)


# The toys


@EVERY_TOY
def test_the_expected_rewards_and_their_gradient_are_the_means_of_many_rollouts(toy):
    eta = away_from_the_start(toy)
    chosen, rewards = sampled(toy, eta)
    error = rewards.std(axis=0) / ROLLOUTS**0.5
    assert (np.abs(rewards.mean(axis=0) - toy.expected_rewards(eta)) < 4 * error).all()
    score = chosen - moments(eta, toy.graded)[0]
    products = (rewards - toy.expected_rewards(eta))[:, :, None] * score[:, None, :]
    error = products.std(axis=0) / ROLLOUTS**0.5
    assert (np.abs(products.mean(axis=0) - toy.gradient(eta)) < 5 * error).all()


@EVERY_TOY
def test_the_gradient_is_the_slope_of_the_expected_rewards(toy):
    eta, step = away_from_the_start(toy), 1e-5
    shifts = step * np.eye(len(eta))
    slopes = [toy.expected_rewards(eta + s) - toy.expected_rewards(eta - s) for s in shifts]
    assert_allclose(toy.gradient(eta), np.transpose(slopes) / (2 * step), atol=1e-8)


@EVERY_TOY
def test_rewards_use_their_declared_ranges_and_directions_have_the_declared_angles(toy):
    _, rewards = sampled(toy, toy.start)
    for column, reward in zip(rewards.T, toy.rewards, strict=True):
        low, high = reward.measured.low, reward.measured.high
        assert low <= column.min() <= column.max() <= high
        if reward.choices:
            assert_allclose(np.ptp(column), high - low, rtol=1e-3)
    directions = toy.directions(default_rng(1))
    assert_allclose(directions @ directions.T, toy.gram, atol=1e-12)


@pytest.mark.parametrize("eta", [-40.0, -0.0101, -0.0099, 0.0, 1e-6, 0.0099, 0.0101, 2.0])
def test_the_moments_of_a_graded_choice_are_the_integrals_over_its_density(eta):
    a = np.linspace(-1, 1, 400_001)
    middles = (a[1:] + a[:-1]) / 2
    density = np.exp(eta * middles - abs(eta))
    density /= density.sum()
    mean = density @ middles
    got = moments(np.array([eta]), np.array([True]))
    assert_allclose(got[0], mean, atol=1e-8)
    assert_allclose(got[1], density @ (middles - mean) ** 2, atol=1e-8)


@pytest.mark.parametrize("eta", [-900.0, -5.0, -1e-12, 0.0, 0.3, 900.0])
def test_a_graded_choice_is_the_inverse_of_its_distribution_function(eta):
    uniform = np.linspace(0, 1, 11)
    a = draw(np.full(11, eta), uniform, np.full(11, True))
    assert -1 <= a.min() <= a.max() <= 1
    assert (np.diff(a) >= 0).all()
    if abs(eta) < 100:
        size = max(abs(eta), 1e-9) * (1 if eta >= 0 else -1)
        below = np.expm1(size * (a + 1)) / np.expm1(2 * size)
        assert_allclose(below, uniform, atol=1e-6)


# A run


@pytest.mark.parametrize("name", ["escape", "saturating"])
def test_a_seed_does_not_know_which_others_run_and_begins_at_the_start(name):
    toy = replace(TOYS[name], steps=40)
    together = run_toy(toy, "gdpo", seeds=[3, 0])
    for row, seed in enumerate([3, 0]):
        alone = run_toy(toy, "gdpo", seeds=[seed])
        for reward, start in zip(toy.names, toy.expected_rewards(toy.start), strict=True):
            assert_array_equal(alone[reward][0], together[reward][row])
            assert alone[reward][0, 0] == pytest.approx(start)
    assert (together[toy.names[0]][0, 1:] != together[toy.names[0]][1, 1:]).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_runs_on_every_toy(name):
    for toy in TOYS.values():
        curves = run_toy(replace(toy, steps=3), name, seeds=[0])
        assert all(np.isfinite(curve).all() for curve in curves.values())


def test_adam_is_the_one_of_torch():
    gradients = default_rng(0).normal(size=(30, 2, 5))
    parameters = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([parameters], lr=0.02, maximize=True)
    ours, adam = np.zeros((2, 5)), Adam(0.02, (2, 5))
    for gradient in gradients:
        parameters.grad = torch.tensor(gradient)
        theirs.step()
        ours += adam.ascend(gradient)
    assert_allclose(ours, parameters.detach().numpy(), rtol=1e-10)


def test_raw_rewards_as_advantages_give_the_gradient_of_their_expected_value():
    # They are not 0 on average, so that the score's mean has to be.
    toy = replace(TOYS["escape"], prompts=50_000)
    rule = rule_for(toy, f"{HERE}:the_first_reward_as_it_is")
    eta = toy.start + np.array([3.0, 0.5])
    push = policy_gradient(toy, eta[None], [rule], [default_rng(0)])
    # Five standard errors of 200,000 rollouts.
    assert_allclose(push[0], toy.gradient(eta)[0], atol=0.003)


def test_without_advantages_nothing_moves_and_a_constant_factor_changes_no_run():
    still = run_toy(replace(TOYS["sparse"], steps=20), f"{HERE}:nothing", seeds=[0])
    assert all(np.ptp(curve) == 0 for curve in still.values())
    toy = replace(TOYS["escape"], steps=60)
    curves = [run_toy(toy, name, seeds=[0, 1])["format"] for name in ("rloo", "grpo_no_std")]
    assert_allclose(*curves, rtol=1e-5)


def test_the_multiplier_of_a_constraint_starts_at_1_and_then_moves():
    toy = replace(TOYS["duplicated"], steps=10)
    free, held = (
        run_toy(toy, name, seeds=[0])["single"][0] for name in ("mo_grpo", "constrained_grpo")
    )
    assert_array_equal(free[:2], held[:2])
    assert (free[3:] != held[3:]).all()


# The mean update


@pytest.mark.parametrize(
    ("toy", "name", "ratio", "margin"),
    [  # a reward that is given twice has twice the influence, unless it is decorrelated
        ("duplicated", "mo_grpo", 2, 0.08),
        ("duplicated", "per_reward_batch_std", 2, 0.08),
        ("duplicated", "gdpo_decorrelated", 2 / 1.9**0.5, 0.08),
        ("ten_rewards", "grpo_no_std", 10, 1),
        ("ten_rewards", "mo_grpo", 1, 0.1),
    ],
)
def test_the_first_reward_pulls_as_much_more_as_the_formula_says(toy, name, ratio, margin):
    pull = mean_update(replace(TOYS[toy], prompts=2000), name, batches=10)
    assert pull[0] / pull[1:].mean() == pytest.approx(ratio, abs=margin)


# The suite


def test_an_experiment_has_a_run_per_label_and_seed_with_the_curves_of_the_toy():
    labels = ["grpo", Label("ours", "gdpo")]
    one, two = (suite(labels, [4, 2], [SHORT], jobs=jobs)["opposed"] for jobs in (1, 2))
    assert (one.name, one.labels, one.seeds, one.total_steps) == ("opposed", (*labels,), (4, 2), 30)
    assert [(run.label, run.seed, run.steps) for run in one.runs] == [
        (label, seed, 30) for label in labels for seed in (4, 2)
    ]
    alone = run_toy(SHORT, "gdpo", seeds=[4, 2])
    for experiment in (one, two):
        assert_array_equal(experiment.curves("ours", "heavier"), alone["heavier"])
    assert "| `ours` |" in table(one)


def test_a_misspelt_estimator_is_found_before_anything_starts():
    with config_error("did you mean 'gdpo'"):
        suite(["grpo", "gpdo"], [0])


def test_the_table_counts_the_seeds_that_never_had_a_reward():
    rows = [[0.0] * wait + [1.0] * (30 - wait) for wait in (30, 10, 24, 20)]
    experiment = suite(["gdpo"], range(4), [SHORT], jobs=1)["opposed"]
    made = [
        replace(run, means={"heavier": np.array(row), "larger": np.zeros(30)})
        for run, row in zip(experiment.runs, rows, strict=True)
    ]
    lines = table(replace(experiment, runs=tuple(made))).splitlines()
    assert lines[0] == "| opposed | heavier | larger |"
    assert lines[2] == "| `gdpo` | 24 [14 to >30], 1 never | never |"
