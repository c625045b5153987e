"""A run is decided by its seed alone, and learns what it is rewarded for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gdpo.advantages import ESTIMATORS
from gdpo.errors import ConfigError
from gdpo.experiments.toys import TOYS, alignment, run_toy
from gdpo.experiments.toys._run import Adam, policy_gradient, rule_for

# By module:attribute these are users' own estimators.
HERE = "tests.experiments.toys.test_run"


def nothing(rewards, weights):
    return np.zeros(rewards.shape[:2])


def the_first_reward_as_it_is(rewards, weights):
    return rewards[..., 0].copy()


def first_steps(result, level, name):
    """By seed: the first step at which the reward is at the level; infinite: at none."""
    reached = result.curves[name] >= level
    return np.where(reached.any(axis=1), reached.argmax(axis=1), np.inf)


@pytest.mark.parametrize("name", ["escape", "junk", "saturating", "opposed"])
def test_a_seed_does_not_know_which_others_run(name):
    toy = replace(TOYS[name], steps=40)
    together = run_toy(toy, "gdpo", seeds=[3, 0, 7])
    for row, seed in enumerate(together.seeds):
        alone = run_toy(toy, "gdpo", seeds=[seed])
        for reward in toy.names:
            np.testing.assert_array_equal(alone.curves[reward][0], together.curves[reward][row])


def test_a_seed_gives_the_same_curve_again_and_another_one_another():
    toy = replace(TOYS["sparse"], steps=20)
    curves = [run_toy(toy, "grpo", seeds=seeds).curves["dense"] for seeds in ([1], [1], [2])]
    np.testing.assert_array_equal(curves[0], curves[1])
    assert (curves[0][0, 1:] != curves[2][0, 1:]).all()


def test_a_curve_begins_at_the_start_of_the_policy():
    for toy in TOYS.values():
        result = run_toy(replace(toy, steps=1), "gdpo", seeds=[0, 1])
        begun = np.array([result.curves[name][:, 0] for name in toy.names])
        np.testing.assert_allclose(begun.T, [toy.expected_rewards(toy.start)] * 2)


def test_without_advantages_nothing_moves():
    result = run_toy(replace(TOYS["sparse"], steps=20), f"{HERE}:nothing", seeds=[0])
    assert all(np.ptp(curve) == 0 for curve in result.curves.values())


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_runs_on_every_toy(name, toy):
    result = run_toy(replace(toy, steps=3), name, seeds=[0])
    assert all(np.isfinite(curve).all() for curve in result.curves.values())


def test_adam_is_the_one_of_torch():
    gradients = np.random.default_rng(0).normal(size=(30, 2, 5))
    parameters = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([parameters], lr=0.02, maximize=True)
    ours, adam = np.zeros((2, 5)), Adam(0.02, (2, 5))
    for gradient in gradients:
        parameters.grad = torch.tensor(gradient)
        theirs.step()
        ours += adam.ascend(gradient)
    np.testing.assert_allclose(ours, parameters.detach().numpy(), rtol=1e-10)


def test_raw_rewards_as_advantages_give_the_gradient_of_their_expected_value():
    # They are not 0 on average, so that the score's mean has to be.
    toy = replace(TOYS["escape"], prompts=50_000)
    rule = rule_for(toy, f"{HERE}:the_first_reward_as_it_is")
    eta = toy.start + np.array([3.0, 0.5])
    push = policy_gradient(toy, eta[None], [rule], [np.random.default_rng(0)])
    # Five standard errors of 200,000 rollouts.
    np.testing.assert_allclose(push[0], toy.gradient(eta)[0], atol=0.003)


def test_the_multiplier_of_a_constraint_starts_at_1_and_then_moves():
    toy = replace(TOYS["duplicated"], steps=10)
    free, held = (
        run_toy(toy, name, seeds=[0]).curves["single"][0]
        for name in ("mo_grpo", "constrained_grpo")
    )
    np.testing.assert_array_equal(free[:2], held[:2])
    assert (free[3:] != held[3:]).all()


def test_a_constant_factor_of_the_advantages_changes_no_run():
    toy = replace(TOYS["escape"], steps=60)
    curves = [run_toy(toy, name, seeds=[0, 1]).curves["format"] for name in ("rloo", "grpo_no_std")]
    np.testing.assert_allclose(*curves, rtol=1e-5)


def test_options_reach_the_estimator():
    toy = replace(TOYS["junk"], steps=40)
    plain = run_toy(toy, "mo_grpo", seeds=range(4)).curves["correctness"]
    floor = {"noise_floor": {"junk": 0.05}}
    quiet = run_toy(toy, "mo_grpo", seeds=range(4), options=floor).curves["correctness"]
    assert (quiet[:, -1] > plain[:, -1]).all()


def test_a_misspelt_estimator_is_an_error():
    with pytest.raises(ConfigError, match="did you mean 'gdpo'"):
        run_toy(TOYS["junk"], "gpdo", seeds=[0])


@pytest.mark.slow
def test_the_escape_toy_separates_a_raw_sum_from_rewards_scaled_by_the_batch():
    raw, scaled = (
        first_steps(run_toy(TOYS["escape"], name, seeds=range(8)), 0.8, "format")
        for name in ("grpo_no_std", "per_reward_batch_std")
    )
    assert np.isfinite(scaled).all()
    assert np.isinf(raw).sum() >= 2
    assert np.median(raw) > 1.5 * np.median(scaled)
    assert (scaled < raw).all()


def test_on_opposed_rewards_the_weight_decides_once_they_are_normalized_and_else_the_unit():
    toy = replace(TOYS["opposed"], steps=40)
    last = {
        name: run_toy(toy, name, seeds=range(2)).curves["heavier"][:, -1]
        for name in ("gdpo", "mo_grpo", "per_reward_batch_std", "grpo", "grpo_no_std", "dvao")
    }
    for name in ("gdpo", "mo_grpo", "per_reward_batch_std"):
        assert (last[name] > 0.95).all()
    for name in ("grpo", "grpo_no_std", "dvao"):
        assert (last[name] < 0.05).all()


def test_equally_weighted_opposed_rewards_leave_gdpo_where_it_is():
    heavier, larger = TOYS["opposed"].rewards
    equal = replace(larger, measured=replace(larger.measured, weight=1.0))
    toy = replace(TOYS["opposed"], rewards=(heavier, equal), steps=10)
    curve = run_toy(toy, "gdpo", seeds=[0]).curves["heavier"]
    np.testing.assert_array_equal(curve, 0.5)


def test_jitter_slows_what_normalizes_it_and_not_a_raw_sum():
    toy = TOYS["junk"]
    alone = replace(toy, rewards=toy.rewards[:1])

    def end(toy, name):
        return run_toy(toy, name, seeds=range(5)).curves["correctness"][:, -1].mean()

    assert end(toy, "gdpo") < end(alone, "gdpo") - 0.05
    assert end(toy, "grpo_no_std") == pytest.approx(end(alone, "grpo_no_std"), abs=0.02)


def test_without_a_std_the_update_points_along_the_gradient_of_the_weighted_sum():
    for name in ("duplicated", "saturating", "opposed"):
        toy = replace(TOYS[name], prompts=2000)
        along = alignment(toy, "grpo_no_std", batches=10).weighted_sum
        assert along == pytest.approx(1, abs=0.01)


def test_a_reward_given_twice_has_twice_the_influence_unless_it_is_decorrelated():
    ratios, toy = {}, replace(TOYS["duplicated"], prompts=2000)
    for name in ("mo_grpo", "per_reward_batch_std", "gdpo_decorrelated"):
        copied, single = alignment(toy, name, batches=10).pull
        ratios[name] = copied / single
    # Three standard errors of 80,000 rollouts.
    assert ratios["mo_grpo"] == pytest.approx(2, abs=0.08)
    assert ratios["per_reward_batch_std"] == pytest.approx(2, abs=0.08)
    assert ratios["gdpo_decorrelated"] == pytest.approx(2 / 1.9**0.5, abs=0.08)


def test_dara_lifts_the_sparse_reward_by_the_root_of_the_ratio_of_active_groups():
    def lift(toy, batches):
        names = ("dara_symmetric", "mo_grpo")
        pulls = [alignment(toy, name, batches=batches).pull for name in names]
        return pulls[0][0] / pulls[0][1] / (pulls[1][0] / pulls[1][1])

    assert lift(replace(TOYS["sparse"], prompts=4000), 5) == pytest.approx(3.35, abs=0.1)
    # The fewer groups, the more often many of them vary where the boost is small.
    assert lift(TOYS["sparse"], 200) == pytest.approx(3.0, abs=0.15)


def test_of_ten_rewards_the_large_one_has_ten_times_the_influence_in_a_raw_sum_only():
    toy = replace(TOYS["ten_rewards"], prompts=2000)
    raw, normalized = (alignment(toy, name, batches=10).pull for name in ("grpo_no_std", "mo_grpo"))
    assert raw[0] / raw[1:].mean() == pytest.approx(10, rel=0.1)
    assert normalized[0] / normalized[1:].mean() == pytest.approx(1, rel=0.1)


def test_the_gradient_of_the_sum_depends_on_units_and_that_of_the_sum_in_ranges_does_not():
    by_weight = alignment(TOYS["opposed"], "gdpo", batches=5)
    assert by_weight.weighted_sum == pytest.approx(-1)
    assert by_weight.in_ranges == pytest.approx(1)
    assert by_weight.rewards == {"heavier": pytest.approx(1), "larger": pytest.approx(-1)}


def test_an_estimator_that_does_nothing_points_nowhere():
    nowhere = alignment(TOYS["sparse"], f"{HERE}:nothing", batches=2)
    assert np.isnan([nowhere.weighted_sum, nowhere.in_ranges, *nowhere.rewards.values()]).all()
