import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from tests.experiments.test_survival import GOLDEN

from gdpo.diagnostics.influence import student_quantile
from gdpo.lab.experiments.statistics import (
    bootstrap,
    expanded_level,
    interquartile_mean,
    paired_difference,
)

some = arrays(np.float64, st.integers(1, 12), elements=st.integers(-800, 800).map(lambda i: i / 8))


@given(some)
def test_the_interquartile_mean_is_scipys_trimmed_mean(values):
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


def test_missing_values_are_left_out_of_the_interquartile_mean_row_by_row():
    rows = np.array([[1.0, np.nan, 2.0, 3.0, 4.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 60.0]])
    np.testing.assert_allclose(interquartile_mean(rows), [3.0, 3.5])
    assert np.isnan(interquartile_mean(np.full(3, np.nan)))
    assert np.isnan(interquartile_mean(np.empty(0)))


def test_the_bootstrap_says_what_rliable_says():
    golden = GOLDEN["robust"]
    scores = np.array(golden["scores"])
    found = bootstrap(interquartile_mean, list(scores.T), draws=golden["draws"])
    assert found.value == pytest.approx(golden["iqm"], abs=1e-12)
    # Two times 20,000 draws: the ends move by about a hundredth of the width.
    width = golden["high"] - golden["low"]
    assert found.low == pytest.approx(golden["low"], abs=0.03 * width)
    assert found.high == pytest.approx(golden["high"], abs=0.03 * width)


def test_the_bootstrap_draws_within_strata():
    apart = [np.array([0.0, 0.1, 0.2]), np.array([10.0, 10.1, 10.2])]
    within = bootstrap(lambda x: x.mean(-1), apart)
    assert within.low > 4.9
    assert within.high < 5.3
    across = bootstrap(lambda x: x.mean(-1), [np.concatenate(apart)])
    assert across.low < 4


@given(arrays(np.float64, 6, elements=st.floats(0, 1)), st.randoms(use_true_random=False))
def test_the_order_of_the_seeds_moves_no_interval(values, random):
    shuffled = values.tolist()
    random.shuffle(shuffled)
    first = bootstrap(interquartile_mean, [values], draws=50)
    assert bootstrap(interquartile_mean, [np.array(shuffled)], draws=50) == first
    assert first.low <= first.high


def test_a_bootstrap_of_one_value_has_no_interval_and_of_none_no_value():
    one = bootstrap(interquartile_mean, [np.array([0.5, np.nan])])
    assert one.value == 0.5
    assert np.isnan([one.low, one.high]).all()
    none = bootstrap(interquartile_mean, [np.array([np.nan])])
    assert np.isnan([none.value, none.low, none.high]).all()
    assert np.isnan(bootstrap(interquartile_mean, []).value)


def test_a_bootstrap_of_equal_values_is_a_point():
    found = bootstrap(interquartile_mean, [np.full(5, 0.75)])
    assert (found.value, found.low, found.high) == (0.75, 0.75, 0.75)


def test_the_expanded_interval_of_five_values_is_their_range():
    values = np.array([0.1, 0.3, 0.35, 0.4, 0.9])
    found = bootstrap(interquartile_mean, [values], draws=20_000, level=expanded_level(5))
    assert (found.low, found.high) == pytest.approx((0.1, 0.9))


@pytest.mark.parametrize("count", [2, 3, 5, 10, 50])
def test_the_expanded_level_is_hesterbergs(count):
    t = stats.t.ppf(0.025, count - 1)
    expected = 1 - 2 * stats.norm.cdf(np.sqrt(count / (count - 1)) * t)
    assert expanded_level(count) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 30, 99])
@pytest.mark.parametrize("p", [0.5, 0.75, 0.95, 0.975, 0.995, 0.9995])
def test_students_quantiles_are_scipys(freedom, p):
    assert student_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), abs=1e-9)


@given(st.data(), st.integers(2, 9))
def test_the_paired_difference_is_scipys_interval(data, count):
    both = arrays(np.float64, count, elements=st.floats(-3, 3).map(lambda x: round(x, 3)))
    ours, theirs = data.draw(both), data.draw(both)
    found = paired_difference(ours, theirs)
    if np.isnan(found.low):
        assert np.ptp(ours - theirs) < 1e-9
        return
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(ours - theirs), abs=1e-12)
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=1e-9)


def test_seeds_that_differ_alike_or_are_alone_give_a_difference_without_interval():
    assert 0.3 - 0.2 != 0.4 - 0.3, "in binary: rounding is no spread"
    for ours, theirs in (
        ([0.3, 0.4, 0.7], [0.2, 0.3, 0.6]),
        ([0.3], [0.2]),
        ([0.3, np.nan], [0.2, 0.1]),
    ):
        found = paired_difference(np.array(ours), np.array(theirs))
        assert found.value == pytest.approx(0.1)
        assert np.isnan([found.low, found.high]).all()
    assert np.isnan(paired_difference(np.empty(0), np.empty(0)).value)
