"""The trade-off between two rewards: which variants are on the front."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.experiments.test_analysis import run

from gdpo.errors import ConfigError
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.fronts import read_front, trade_off
from gdpo.lab.experiments.reading import Experiment, Measured

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


def on_front(ends):
    found = trade_off(compared(ends), BOTH)
    return [found.on_front(point) for point in found.points]


def test_each_estimator_has_its_own_front():
    assert on_front(ENDS) == [True, True, False] * 2


def test_equal_means_are_both_on_the_front():
    assert on_front({"gdpo a=1": (0.5, 1.0), "gdpo a=2": (0.5, 1.0)}) == [True, True]


def test_a_point_is_the_mean_of_the_seeds_with_its_interval():
    point = trade_off(compared(ENDS), BOTH).points[0]
    # Each seed moves x by 0.01: t(2) x 0.01 / sqrt(3)
    assert point.first.value == pytest.approx(0.2)
    assert point.first.high - 0.2 == pytest.approx(4.3027 * 0.01 / np.sqrt(3), rel=1e-3)
    assert (point.label, point.estimator) == ("grpo w=1", "grpo")


def test_a_reward_with_several_definitions_has_no_front():
    comparison = compared(ENDS, unlike=frozenset({("gdpo w=1", "y")}))
    with pytest.raises(ConfigError, match="gate or options of y differ"):
        trade_off(comparison, BOTH)


@pytest.mark.parametrize("text", ["x", "x,x", "x,y,z", ","])
def test_a_front_needs_two_rewards(text):
    with pytest.raises(ConfigError, match="name two rewards"):
        read_front(text)


def test_an_unknown_reward_is_named_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"no reward 'z'.*x and y"):
        trade_off(compared(ENDS), ("x", "z"))


def test_a_run_that_has_not_ended_is_left_out():
    comparison = compared(ENDS)
    runs = [
        replace(each, state="running") if (each.label, each.seed) == ("grpo w=2", 2) else each
        for each in comparison.experiment.runs
    ]
    open_run = replace(comparison.experiment, runs=tuple(runs))
    found = trade_off(analyse(open_run), BOTH)
    assert found.points[1].first.value == pytest.approx(0.495)
    assert found.points[4].first.value == pytest.approx(0.6)
