from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from gdpo.lab.experiments.statistics import holm, permutation_test

# Few distinct values, so that there are ties.
figures = st.integers(0, 8).map(lambda i: i / 10)
group = arrays(np.float64, st.integers(1, 5), elements=figures)


def by_hand(ours, theirs):
    both = [*ours, *theirs]
    observed = abs(np.mean(ours) - np.mean(theirs))
    found = []
    for chosen in combinations(range(len(both)), len(ours)):
        first = [both[i] for i in chosen]
        second = [both[i] for i in range(len(both)) if i not in chosen]
        found.append(abs(np.mean(first) - np.mean(second)) >= observed - 1e-9)
    return np.mean(found)


@given(group, group)
def test_it_is_the_share_of_all_relabellings_that_are_as_far_apart(ours, theirs):
    test = permutation_test(ours, theirs)
    assert test.p == pytest.approx(by_hand(ours, theirs))
    assert test.floor <= test.p + 1e-12
    assert test.p <= 1
    assert permutation_test(theirs, ours).p == pytest.approx(test.p)
    assert permutation_test(ours[::-1], theirs).p == test.p


@given(st.data(), st.integers(2, 6))
def test_it_is_scipys_exact_test(data, count):
    # Distinct values: scipy's own allowance for rounding is not ours.
    values = data.draw(
        st.lists(st.integers(0, 10_000), min_size=2 * count, max_size=2 * count, unique=True)
    )
    ours, theirs = np.array(values[:count]) / 7, np.array(values[count:]) / 7
    expected = stats.permutation_test(
        (ours, theirs), lambda a, b: abs(a.mean() - b.mean()), alternative="greater"
    ).pvalue
    assert permutation_test(ours, theirs).p == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seeds", "floor"),
    [(1, 1.0), (2, 1 / 3), (3, 0.1), (4, 1 / 35), (5, 1 / 126), (10, 2 / 184756)],
)
def test_estimators_without_overlap_get_the_smallest_attainable_p_value(seeds, floor):
    test = permutation_test(np.arange(seeds) + 100.0, np.arange(seeds) * 1.0)
    assert test.p == pytest.approx(floor)
    assert test.floor == pytest.approx(floor)


def test_unequal_numbers_of_runs_have_one_extreme_relabelling():
    test = permutation_test(np.array([8.0, 9.0]), np.array([0.0, 1.0, 2.0]))
    assert test.p == pytest.approx(0.1)
    assert test.floor == pytest.approx(0.1)


def test_equal_and_missing_values_show_no_difference():
    assert permutation_test(np.full(5, 0.1), np.full(5, 0.1)).p == 1
    with_gap = permutation_test(np.array([3.0, np.nan, 4.0]), np.array([1.0, 2.0]))
    assert with_gap == permutation_test(np.array([3.0, 4.0]), np.array([1.0, 2.0]))
    nothing = permutation_test(np.array([np.nan]), np.array([1.0]))
    assert np.isnan([nothing.p, nothing.floor]).all()


def test_drawn_relabellings_agree_with_all_of_them_and_are_never_zero():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.6, 1, 12), rng.normal(0, 1, 12)
    test = permutation_test(ours, theirs)
    expected = stats.permutation_test(
        (ours, theirs),
        lambda a, b, axis: abs(a.mean(axis=axis) - b.mean(axis=axis)),
        alternative="greater",
        n_resamples=50_000,
        vectorized=True,
        rng=1,
    ).pvalue
    assert test.p == pytest.approx(expected, abs=0.015)
    assert test == permutation_test(rng.permutation(ours), theirs), "order of seeds"
    apart = permutation_test(ours + 100, theirs)
    assert apart.p == apart.floor == pytest.approx(1 / 20_001)


@pytest.mark.parametrize("draw", ["normal", "lognormal", "standard_cauchy"])
def test_equal_estimators_differ_significantly_no_more_often_than_the_level(draw):
    rng = np.random.default_rng(3)
    found = sum(
        permutation_test(getattr(rng, draw)(size=5), getattr(rng, draw)(size=5)).p <= 0.05
        for _ in range(2_000)
    )
    assert found <= 130  # 2,000 × 6/126 is 95, and 3.6 standard deviations
    assert found >= 60


def test_the_test_is_conservative_if_seeds_affect_both_estimators_alike():
    rng = np.random.default_rng(4)
    found = 0
    for _ in range(1_000):
        luck = rng.normal(size=5)
        ours, theirs = luck + rng.normal(size=5), luck + rng.normal(size=5)
        found += permutation_test(ours, theirs).p <= 0.05
    assert found <= 40


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_correction_raises_and_keeps_the_order(p_values):
    corrected = holm(p_values)
    assert all(p <= c <= 1 for p, c in zip(p_values, corrected, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert np.all(np.diff(np.array(corrected)[order]) >= 0)
    assert min(corrected) == pytest.approx(min(1.0, len(p_values) * min(p_values)))


def test_correction_of_a_worked_case_and_of_what_is_missing():
    # Holm's steps: 4 × 0.005, 3 × 0.01, 2 × 0.03, 1 × 0.04 raised to the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.02, np.nan, 0.5])[::2] == (0.04, 0.5)
    assert np.isnan(holm([0.02, np.nan])[1])
    assert holm([]) == ()
