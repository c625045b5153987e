"""Dual ascent: multipliers follow the violations."""

import numpy as np
import pytest
import torch
from tests.refusals import config_error, data_error

from gdpo.advantages import DualAscent

NAN = float("nan")


def batch(*means):
    return np.broadcast_to(np.array(means), (2, 4, len(means)))


def test_a_violated_constraint_gains_weight_and_a_met_one_loses_it():
    duals = DualAscent(targets=[NAN, 0.9, 0.5], step_size=0.5, start=1.0)
    duals.update(batch(0.0, 0.1, 1.0))
    np.testing.assert_allclose(duals.multipliers, [NAN, 1.4, 0.75])


def test_multipliers_stay_between_zero_and_their_maximum():
    duals = DualAscent(targets=[1.0, -1.0], step_size=100.0, start=1.0, maximum=3.0)
    duals.update(batch(0.0, 0.0))
    assert duals.multipliers == [3.0, 0.0]


def test_a_reward_that_applies_nowhere_leaves_its_multiplier_alone():
    duals = DualAscent(targets=[1.0], start=2.0)
    duals.update(batch(NAN))
    assert duals.multipliers == [2.0]


def test_tensors_and_whole_numbers_are_rewards_too():
    duals = DualAscent(targets=[1.0], step_size=1.0)
    duals.update(torch.zeros((2, 4, 1)))
    duals.update(np.ones((2, 4, 1), dtype=np.int64))
    assert duals.multipliers == [1.0]


def test_the_state_of_other_constraints_is_refused():
    saved = DualAscent(targets=[NAN, 0.9]).state()
    with config_error("different constraints"):
        DualAscent(targets=[0.9, NAN]).restore(saved)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": [NAN]}, "targets"),
        ({"targets": [1.0], "step_size": 0}, "step_size"),
        ({"targets": [1.0], "maximum": -1}, "maximum"),
        ({"targets": [1.0], "start": 99}, "start"),
    ],
)
def test_numbers_out_of_range_are_errors(options, message):
    with config_error(message):
        DualAscent(**options)


def test_another_number_of_rewards_is_an_error():
    with data_error(r"3 rewards.*1 target"):
        DualAscent(targets=[1.0]).update(batch(0.0, 0.0, 0.0))
