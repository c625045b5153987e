import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gdpo.lab.experiments.threshold import best, final, first_reached, running_mean

steps = arrays(np.float64, st.integers(1, 30), elements=st.integers(0, 16).map(lambda i: i / 16))


@given(steps, st.sampled_from([0.25, 0.5, 0.75]))
def test_the_first_step_is_that_of_the_formula_as_a_loop(values, threshold):
    expected = None
    for step in range(5, len(values) + 1):
        if sum(values[step - 5 : step]) / 5 >= threshold:
            expected = step
            break
    assert first_reached(values, threshold) == expected
    if len(values) >= 5:
        assert (best(values) >= threshold) == (expected is not None)


def test_a_mean_that_falls_short_by_rounding_is_at_the_threshold():
    assert -3.0 + 0.8 * 6.0 > 1.8, "in binary"
    assert first_reached(np.full(9, 1.8), -3.0 + 0.8 * 6.0) == 5
    assert first_reached(np.full(9, 1.8 - 1e-9), 1.8) is None


def test_a_run_that_has_fewer_steps_than_the_window_has_reached_nothing():
    assert first_reached(np.ones(4), 0.8) is None
    assert first_reached(np.ones(4), 0.8, window=4) == 4
    assert first_reached(np.ones(1), 0.8, window=1) == 1
    assert first_reached(np.empty(0), 0.8) is None


def test_final_is_the_mean_of_a_tenth_of_the_steps_that_there_are():
    values = np.array([0.0, 0.2] + [0.5] * 16 + [0.8, 1.0])
    assert final(values) == pytest.approx(0.9)
    assert final(values[:3]) == 0.5
    assert np.isnan(final(np.empty(0)))


def test_best_is_the_highest_running_mean_and_no_lucky_step():
    assert best(np.array([0.0] * 10 + [1.0] + [0.0] * 10)) == pytest.approx(0.2)
    assert best(np.array([0.0] * 10 + [1.0] * 5 + [0.0] * 10)) == 1
    assert best(np.array([0.2, 0.4])) == pytest.approx(0.3)
    assert np.isnan(best(np.empty(0)))


def test_steps_without_a_value_are_left_out_of_every_mean():
    gaps = np.array([np.nan] * 5 + [1.0, np.nan, 1.0, np.nan, 0.0])
    np.testing.assert_allclose(running_mean(gaps), [np.nan, 1.0, 1.0, 1.0, 1.0, 2 / 3])
    assert first_reached(gaps, 0.8) == 6
    assert best(gaps) == 1
    nothing = np.full(8, np.nan)
    assert first_reached(nothing, 0.8) is None
    assert np.isnan([best(nothing), final(nothing)]).all()
