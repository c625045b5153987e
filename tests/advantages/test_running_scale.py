"""The running scale, which replaces batch normalization for groups that arrive one at a time."""

from math import inf, nan, sqrt

import array_api_strict
import numpy as np
import pytest
import torch
from tests.refusals import config_error, data_error

from gdpo.advantages import RunningScale, gdpo

WEIGHTS = [1.0, 0.5, 2.0]
CONSTANT = np.ones((1, 6, 3))


def scored(prompts=16, *, seed=0):
    return np.random.default_rng(seed).integers(0, 4, (prompts, 6, 3)) * 0.5


def after(rewards, *, half_life=128, weights=WEIGHTS):
    """Return the scale after groups that arrive one at a time."""
    scale = RunningScale(half_life)
    for group in rewards:
        scale.update(group[None], weights)
    return scale


def test_a_batch_that_arrives_at_once_gets_the_advantages_of_gdpo_up_to_the_divisor_of_its_std():
    rewards = scored()
    rewards[2, 1, 0] = rewards[5, :, 1] = nan
    rewards[7, 3] = nan  # a rollout without any reward
    scale = RunningScale()
    scale.update(rewards, WEIGHTS)
    count = rewards.shape[0] * rewards.shape[1] - 1
    np.testing.assert_allclose(
        gdpo(rewards, WEIGHTS, scale=scale.value) * sqrt((count - 1) / count),
        gdpo(rewards, WEIGHTS),
        rtol=1e-12,
        atol=1e-12,
    )


def test_groups_of_unequal_size_count_by_their_rollouts_as_in_a_batch():
    rewards = scored(4)
    rewards[1, 2:] = nan
    scale = RunningScale()
    scale.update(rewards, WEIGHTS)
    sums = gdpo(rewards, WEIGHTS, scale=1.0)[~np.isnan(rewards[..., 0])]
    assert scale.value == pytest.approx(sqrt(np.mean(sums**2)), rel=1e-12)


def test_a_group_counts_half_as_much_after_the_half_life():
    rewards, half_life = scored(9), 4
    squares = (gdpo(rewards, WEIGHTS, scale=1.0) ** 2).mean(axis=1)
    weights = 0.5 ** (np.arange(9)[::-1] / half_life)
    wanted = sqrt(np.average(squares, weights=weights))
    scale = after(rewards, half_life=half_life)
    assert scale.value == pytest.approx(wanted, rel=1e-12)
    assert scale.rollouts == pytest.approx(6 * weights.sum(), rel=1e-12)


def test_groups_that_arrive_together_age_the_earlier_ones_as_if_they_came_one_by_one():
    together, one_by_one = RunningScale(4), after(scored(9), half_life=4)
    together.update(scored(9)[:3], WEIGHTS)
    together.update(scored(9)[3:], WEIGHTS)
    assert together.rollouts == pytest.approx(one_by_one.rollouts, rel=1e-12)
    mirrored = RunningScale(4)
    mirrored.update(scored(9)[:3][::-1], WEIGHTS)
    mirrored.update(scored(9)[3:][::-1, ::-1], WEIGHTS)
    assert mirrored.value == pytest.approx(together.value, rel=1e-12)


def test_zero_advantage_groups_do_not_count():
    with_constant = np.concatenate([CONSTANT, scored(3), 7 * CONSTANT, scored(2, seed=1)])
    others = np.concatenate([scored(3), scored(2, seed=1)])
    assert after(with_constant).state() == after(others).state()
    together = RunningScale()
    together.update(with_constant, WEIGHTS)
    assert together.value == pytest.approx(after(others, half_life=1e9).value, rel=1e-6)


def test_without_any_advantage_so_far_the_advantages_are_exactly_0():
    scale = after(CONSTANT)
    assert scale.value == scale.including(np.full((1, 6, 3), nan), WEIGHTS) == 0
    assert not gdpo(CONSTANT, WEIGHTS, scale=scale.value).any()


def test_looking_ahead_gives_the_next_value_and_changes_nothing():
    scale = after(scored(3))
    before, ahead = scale.state(), scale.including(scored(1, seed=1), WEIGHTS)
    assert scale.state() == before
    scale.update(scored(1, seed=1), WEIGHTS)
    assert scale.value == ahead != before["scale"]


def test_an_infinite_reward_is_an_error_and_changes_nothing():
    scale, broken = after(scored(3)), scored(1)
    broken[0, 2, 1] = inf
    before = scale.state()
    with data_error("reward 1 is inf"):
        scale.update(broken, WEIGHTS)
    with data_error("shape"):
        scale.update(np.zeros((0, 6, 3)), WEIGHTS)
    assert scale.state() == before


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.astype(np.float32),
        lambda x: torch.tensor(x, dtype=torch.float32),
        lambda x: torch.tensor(x, dtype=torch.float64),
        lambda x: array_api_strict.asarray(x, dtype=array_api_strict.float32),
    ],
)
def test_every_library_and_precision_gives_the_same_scale(convert):
    rewards = scored(2000)[:, :, :2] + 1000.0  # large enough for torch to compute itself
    scale, wanted = RunningScale(), RunningScale()
    scale.update(convert(rewards), [1.0, 0.5])
    wanted.update(rewards, [1.0, 0.5])
    assert scale.value == pytest.approx(wanted.value, rel=1e-5)
    advantages = gdpo(convert(rewards[:4]), [1.0, 0.5], scale=scale.value)
    assert type(advantages) is type(convert(rewards))
    assert advantages.dtype == convert(rewards).dtype


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_the_scale_neither_overflows_nor_vanishes(size):
    weights = [size * w for w in WEIGHTS]
    scale = after(scored(3), weights=weights)
    assert scale.value == pytest.approx(size * after(scored(3)).value, rel=1e-9)


def test_a_noise_floor_applies_to_the_scale_as_well():
    scale = RunningScale(noise_floor=[5.0, 5.0, 5.0])
    scale.update(scored(), WEIGHTS)
    a = gdpo(scored(), WEIGHTS, noise_floor=[5.0, 5.0, 5.0], scale=scale.value)
    assert np.mean(a**2) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(
    "state", [{"multipliers": [1.0]}, {"scale": nan, "rollouts": 1}, {"scale": "2", "rollouts": 1}]
)
def test_another_state_is_refused_and_changes_nothing(state):
    scale = after(scored(3))
    before = scale.state()
    with config_error("running scale"):
        scale.restore(state)
    assert scale.state() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": -1.0}, "scale .*-1"),
        ({"scale": nan}, "scale .*nan"),
        ({"scale": inf}, "scale .*inf"),
        ({"scale": True}, "scale .*True"),
        ({"scale": 1.0, "token_counts": np.ones((1, 6))}, "token_counts"),
    ],
)
def test_what_cannot_be_a_scale_is_an_error(options, message):
    with config_error(message):
        gdpo(scored(1), WEIGHTS, **options)


@pytest.mark.parametrize("half_life", [0, inf])
def test_what_cannot_be_a_half_life_is_an_error(half_life):
    with config_error("half_life"):
        RunningScale(half_life)
