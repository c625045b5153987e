"""Recorded rollouts in their groups."""

from dataclasses import replace

import numpy as np
from tests.refusals import data_error
from tests.rollouts import built

from gdpo.rollouts import reward_arrays

NAN = np.nan


def rollout(step, group, sample, a, b, advantage=0.5, weights=(1.0, 2.0)):
    weights = dict(zip("ab", weights, strict=True))
    rewards = {"a": a, "b": b}
    return built.rollout(step, group, sample, rewards, weights=weights, advantage=advantage)


def test_a_group_is_a_step_and_a_group_number():
    arrays = reward_arrays(
        [
            rollout(1, 0, 0, 1.0, None),
            rollout(1, 1, 0, 2.0, 0.0, advantage=-1.0),
            rollout(1, 0, 1, 3.0, 1.0),
            rollout(2, 0, 0, 4.0, 1.0),
        ]
    )
    assert arrays.names == ("a", "b")
    assert arrays.weights == (1.0, 2.0)
    np.testing.assert_array_equal(
        arrays.rewards, [[[1, NAN], [3, 1]], [[2, 0], [NAN, NAN]], [[4, 1], [NAN, NAN]]]
    )
    np.testing.assert_array_equal(arrays.advantages, [[0.5, 0.5], [-1, 0], [0.5, 0]])


def test_weights_may_differ_between_groups_but_not_within_one():
    rollouts = [rollout(1, 0, 0, 1, 1), rollout(2, 0, 0, 1, 1, weights=(1.0, NAN))]
    np.testing.assert_array_equal(reward_arrays(rollouts).weights, [[1, 2], [1, NAN]])
    with data_error(r"step 1, group 0: the weights differ"):
        reward_arrays([rollouts[0], rollout(1, 0, 1, 1, 1, weights=(1.0, 1.0))])


def test_rollouts_of_different_recipes_do_not_mix():
    other = replace(rollout(2, 0, 0, 1, 1), rewards={"a": 1.0, "c": 1.0})
    with data_error(r"step 2 .*step 1"):
        reward_arrays([rollout(1, 0, 0, 1, 1), other])


def test_no_rollouts_are_an_error():
    with data_error("rollouts is empty"):
        reward_arrays([])
