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


@pytest.mark.parametrize(
    ("ours", "theirs", "floor"),
    [(1, 1, 1.0), (2, 2, 1 / 3), (2, 3, 0.1), (3, 3, 0.1), (5, 5, 1 / 126), (10, 10, 2 / 184756)],
)
def test_estimators_without_overlap_get_the_smallest_attainable_p_value(ours, theirs, floor):
    test = permutation_test(np.arange(ours) + 100.0, np.arange(theirs) * 1.0)
    assert test.p == pytest.approx(floor)
    assert test.floor == pytest.approx(floor)


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
