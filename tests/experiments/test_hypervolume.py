from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gdpo.errors import DataError
from gdpo.experiments import hypervolume

points = st.tuples(st.integers(1, 6), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(0, 8).map(lambda i: i / 8))
)


def by_hand(points):
    """Inclusion and exclusion."""
    return sum(
        (-1) ** (size + 1) * np.prod(np.min(chosen, axis=0))
        for size in range(1, len(points) + 1)
        for chosen in combinations(points, size)
    )


@given(points)
def test_it_is_the_volume_of_the_union_of_the_boxes(p):
    assert hypervolume(p) == pytest.approx(by_hand(p), abs=1e-12)


@given(points, st.data())
def test_another_point_or_a_better_one_adds_and_nothing_is_above_one(p, data):
    volume = hypervolume(p)
    assert 0 <= volume <= 1 + 1e-12
    dropped = data.draw(st.integers(0, len(p) - 1))
    assert hypervolume(np.delete(p, dropped, axis=0)) <= volume + 1e-12
    raised = p.copy()
    raised[dropped, 0] = 1.0
    assert hypervolume(raised) >= volume - 1e-12
    assert hypervolume(p[::-1, ::-1]) == pytest.approx(volume, abs=1e-12)


def test_ten_rewards_and_a_front_of_points():
    rng = np.random.default_rng(0)
    p = rng.random((12, 10))
    assert hypervolume(p) == pytest.approx(by_hand(p), abs=1e-9)


def test_of_one_point_it_is_the_product_and_of_none_nothing():
    assert hypervolume(np.array([[0.5, 0.5, 1.0]])) == 0.25
    assert hypervolume(np.empty((0, 3))) == 0
    assert hypervolume(np.array([[0.5, np.nan], [0.5, 0.5]])) == 0.25


def test_a_reward_that_is_not_scaled_is_refused():
    with pytest.raises(DataError, match=r"values from 0\.5 to 3; .* scaled to \[0, 1\]"):
        hypervolume(np.array([[0.5, 3.0]]))
