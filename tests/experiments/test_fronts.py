"""The trade-off between two rewards: which variants are on the front, and its hypervolume."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.experiments.test_analysis import run

from gdpo.errors import ConfigError
from gdpo.experiments.analysis import analyse
from gdpo.experiments.fronts import fronts, hypervolume, read_front
from gdpo.experiments.reading import Experiment, Measured

X, Y = Measured("x", 0.0, 1.0, 1.0), Measured("y", 0.0, 2.0, 1.0)
BOTH = ("x", "y")


def compared(ends, *, unlike=frozenset(), seeds=3):
    """Return the results of runs that end at `x` plus a seed's noise, and `y`."""
    runs = [
        run(label, s, x=[x + 0.01 * (s - 1)] * 100, y=[y] * 100)
        for label, (x, y) in ends.items()
        for s in range(seeds)
    ]
    return analyse(
        Experiment(
            "t", Path("r"), tuple(ends), tuple(range(seeds)), (X, Y), 100, tuple(runs), 0.8, unlike
        )
    )


ENDS = {
    "grpo w=1": (0.2, 1.0),
    "grpo w=2": (0.5, 0.5),
    "grpo w=3": (0.1, 0.4),
    "gdpo w=1": (0.3, 1.0),
    "gdpo w=2": (0.6, 0.5),
    "gdpo w=3": (0.2, 0.4),
}


def test_the_hypervolume_equals_the_share_of_a_fine_grid_that_is_dominated():
    points = np.random.default_rng(1).random((6, 2))
    axis = (np.arange(1000) + 0.5) / 1000
    below = (axis[:, None, None] <= points[:, 0]) & (axis[None, :, None] <= points[:, 1])
    assert hypervolume(points) == pytest.approx(below.any(axis=2).mean(), abs=0.003)


def test_a_dominated_point_and_a_repeated_point_add_nothing():
    points = np.array([[1.0, 0.5], [0.5, 1.0]])
    assert hypervolume(np.array([*points, [0.4, 0.4], [1.0, 0.5]])) == hypervolume(points) == 0.75


def test_each_estimator_has_its_own_front():
    found = fronts(compared(ENDS), BOTH)
    assert [front.estimator for front in found] == ["grpo", "gdpo"]
    assert [[p.on_front for p in front.points] for front in found] == [[True, True, False]] * 2


def test_the_hypervolume_is_scaled_by_the_ranges_and_paired_by_seed():
    grpo, gdpo = fronts(compared(ENDS), BOTH)
    # 0.2 x 0.5 + 0.3 x 0.25, and each seed moves x by 0.01: t(2) x 0.005 / sqrt(3)
    assert grpo.hypervolume.value == pytest.approx(0.175)
    assert gdpo.difference.value == pytest.approx(0.05)
    assert grpo.hypervolume.high - 0.175 == pytest.approx(4.3027 * 0.005 / np.sqrt(3), rel=1e-3)
    assert grpo.difference is None
    assert grpo.seeds == 3


def test_equal_means_are_both_on_the_front():
    [front] = fronts(compared({"gdpo a=1": (0.5, 1.0), "gdpo a=2": (0.5, 1.0)}), BOTH)
    assert [p.on_front for p in front.points] == [True, True]


def test_a_reward_with_several_definitions_has_no_front():
    comparison = compared(ENDS, unlike=frozenset({("gdpo w=1", "y")}))
    with pytest.raises(ConfigError, match="gate or options of y differ"):
        fronts(comparison, BOTH)


@pytest.mark.parametrize("text", ["x", "x,x", "x,y,z", ","])
def test_a_front_needs_two_rewards(text):
    with pytest.raises(ConfigError, match="name two rewards"):
        read_front(text)


def test_an_unknown_reward_is_named_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"no reward 'z'.*x and y"):
        fronts(compared(ENDS), ("x", "z"))


def test_a_run_that_has_not_ended_is_left_out_with_its_seed():
    comparison = compared(ENDS)
    runs = [
        replace(each, state="running") if (each.label, each.seed) == ("grpo w=2", 2) else each
        for each in comparison.experiment.runs
    ]
    open_run = replace(comparison.experiment, runs=tuple(runs))
    grpo, gdpo = fronts(analyse(open_run), BOTH)
    assert (grpo.seeds, gdpo.seeds) == (2, 3)
    assert grpo.points[1].first.value == pytest.approx(0.495)
    assert gdpo.difference.value == pytest.approx(0.05)
