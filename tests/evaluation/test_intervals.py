"""Intervals of means over problems, and their coverage."""

from math import isnan, nan

import numpy as np
import pytest

from gdpo.lab.evaluation._intervals import difference, share


def test_one_sample_per_problem_gives_wilsons_interval():
    estimate = share([1.0] * 40 + [0.0] * 60)
    # Wilson's formula for 40 of 100, by hand; the spread of a sample is one hundredth wider.
    assert (estimate.low, estimate.high) == pytest.approx((0.3094, 0.4980), abs=1e-3)
    assert (estimate.mean, estimate.problems) == (0.4, 100)


@pytest.mark.parametrize("values", [[0.0] * 20, [1.0] * 20, [0.5]])
def test_problems_that_are_all_equal_have_an_interval(values):
    estimate = share(values)
    assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1
    assert estimate.high - estimate.low > 0.15


def test_a_measure_in_another_range_is_scaled():
    wide, narrow = share([3.0, -3.0, 3.0, 0.0], low=-3, high=3), share([1.0, 0.0, 1.0, 0.5])
    for a, b in ((wide.mean, narrow.mean), (wide.low, narrow.low), (wide.high, narrow.high)):
        assert a == pytest.approx(6 * b - 3)


def test_problems_without_a_value_are_excluded():
    assert share([1.0, nan, 0.0, nan]) == share([1.0, 0.0])
    assert isnan(share([nan]).mean)
    assert share([]).problems == 0


@pytest.mark.parametrize(("samples", "p"), [(1, 0.1), (1, 0.5), (8, 0.3)])
def test_95_of_100_intervals_contain_the_true_mean(samples, p):
    """2,000 evaluations of 100 problems each, of different difficulty."""
    random = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        difficulty = random.beta(4 * p, 4 * (1 - p), 100)
        estimate = share((random.binomial(samples, difficulty) / samples).tolist())
        held += estimate.low <= p <= estimate.high
    assert 0.93 < held / 2000 < 0.975


def test_a_difference_is_between_problems():
    ours, theirs = [1.0, 1.0, 0.0, 1.0] * 10, [1.0, 0.0, 0.0, 1.0] * 10
    estimate = difference(ours, theirs)
    assert estimate.mean == 0.25
    assert 0 < estimate.low < 0.25 < estimate.high < 0.5
    assert difference(ours, [nan] * 40).problems == 0
    assert isnan(difference([1.0] * 5, [0.0] * 5).low)


def test_a_difference_over_few_problems_has_students_interval():
    """t with 2 degrees of freedom is 4.303, where a normal one is 1.960."""
    estimate = difference([0.1, 0.2, 0.3], [0.0] * 3)
    assert estimate.high - estimate.mean == pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert estimate.mean - estimate.low == pytest.approx(estimate.high - estimate.mean)


def test_rounding_is_not_a_difference_between_problems():
    assert 0.3 - 0.2 != 0.4 - 0.3
    assert isnan(difference([0.3, 0.4], [0.2, 0.3]).low)
