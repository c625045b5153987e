import json
import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal, assert_equal
from scipy import stats
from tests.environments import ROOT

from gdpo.lab.experiments.statistics import kaplan_meier, log_rank_scores, permutation_test

GOLDEN = json.loads((ROOT / "tests/golden/few_seeds.json").read_text("utf-8"))

runs = st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=12).map(
    lambda pairs: (
        np.array([t for t, _ in pairs], dtype=float),
        np.array([r for _, r in pairs], dtype=bool),
    )
)


def recorded(name):
    case = GOLDEN["survival"][name]
    return np.array(case["times"], dtype=float), np.array(case["reached"], dtype=bool)


def numbers(values):
    return np.array([np.nan if v is None else v for v in values])


@pytest.mark.parametrize("name", ["two of five never", "none", "many"])
def test_the_median_and_its_interval_are_those_of_lifelines(name):
    case, median = GOLDEN["survival"][name], kaplan_meier(*recorded(name)).median
    assert_equal([median.value], numbers(case["median"]))
    assert_equal([median.low, median.high], numbers(case["median_limits"]))


def test_a_half_is_a_half_in_spite_of_rounding():
    # 5/6 × 4/5 × 3/4 × 2/3 is 1/2, at step 55. lifelines has 0.5000000000000001 there, and says 70.
    assert kaplan_meier(*recorded("one failed early")).median.value == 55
    assert GOLDEN["survival"]["one failed early"]["median"] == [70.0]
    # Here the product is above 1/2 by one unit in the last place, in the order that we multiply in.
    times = np.array([1, 7, 3, 9, 8, 3, 4, 9, 3, 9, 5, 1], dtype=float)
    reached = np.ones(12, dtype=bool)
    reached[10] = False
    found = kaplan_meier(times, reached)
    assert 0.5 < found.share[found.steps == 4] < 0.5 + 1e-12
    assert found.median.value == 4


def test_where_all_runs_got_there_the_last_is_not_sure_to_be_the_last():
    found = kaplan_meier(*recorded("all reach it"))
    assert (found.median.value, found.median.low) == (45, 30)
    assert np.isnan(found.median.high), "the band is above one half up to the last step"
    assert (found.share[-1], found.low[-1]) == (0, 0)
    assert found.high[-1] == found.high[-2]


@given(runs)
def test_the_band_is_scipys(pair):
    times, reached = pair
    data = stats.CensoredData(uncensored=times[reached], right=times[~reached])
    assume(reached.any())
    expected = stats.ecdf(data).sf
    found = kaplan_meier(times, reached)
    at = np.isin(expected.quantiles, found.steps)
    assert_allclose(found.share[1:], expected.probabilities[at], atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it has no band at 0 and 1
        band = expected.confidence_interval(method="log-log")
    inside = (found.share[1:] > 0) & (found.share[1:] < 1)
    assert_allclose(found.low[1:][inside], band.low.probabilities[at][inside])
    assert_allclose(found.high[1:][inside], band.high.probabilities[at][inside])


@given(runs, st.randoms(use_true_random=False))
def test_the_share_falls_within_its_band_and_knows_no_order(pair, random):
    found = kaplan_meier(*pair)
    assert found.steps[0] == 0
    assert found.share[0] == 1
    assert np.all(np.diff(found.share) < 0)
    assert np.all((found.low <= found.share + 1e-12) & (found.share <= found.high + 1e-12))
    assert np.all(np.diff(found.high) <= 1e-12)
    order = list(range(len(pair[0])))
    random.shuffle(order)
    again = kaplan_meier(pair[0][order], pair[1][order])
    assert_array_equal(again.share, found.share)


def test_no_run_and_runs_that_all_are_there_at_once():
    nothing = kaplan_meier(np.empty(0), np.empty(0, dtype=bool))
    assert np.isnan([*nothing.share, nothing.median.value]).all()
    at_once = kaplan_meier(np.ones(5), np.ones(5, dtype=bool))
    assert at_once.steps.tolist() == [0, 1]
    assert at_once.share.tolist() == [1, 0]
    assert at_once.median.value == 1


def log_rank(times, reached):
    """Return the p-value of chi-squared: the sum of the scores over its hypergeometric variance."""
    all_times, all_reached = np.concatenate(times), np.concatenate(reached)
    variance = 0.0
    for t in np.unique(all_times[all_reached]):
        n, ours = np.count_nonzero(all_times >= t), np.count_nonzero(times[0] >= t)
        d = np.count_nonzero(all_times[all_reached] == t)
        if n > 1:
            variance += d * (ours / n) * (1 - ours / n) * (n - d) / (n - 1)
    excess = float(np.sum(log_rank_scores(times, reached)[0]))
    return stats.chi2.sf(excess**2 / variance, 1) if variance > 0 else 1.0


@given(runs, runs)
def test_the_scores_add_up_to_the_log_rank_test_of_scipy(first, second):
    (t, r), (t2, r2) = first, second
    p = log_rank((t, t2), (r, r2))
    assert 0 <= p <= 1
    assert p == pytest.approx(log_rank((t2, t), (r2, r)), abs=1e-9)
    with np.errstate(all="ignore"):
        expected = stats.logrank(
            stats.CensoredData(uncensored=t[r], right=t[~r]),
            stats.CensoredData(uncensored=t2[r2], right=t2[~r2]),
        ).pvalue
    if np.isfinite(expected):
        assert p == pytest.approx(expected, abs=1e-9)
    else:
        assert p == 1


@given(runs, runs)
def test_the_scores_of_all_runs_add_up_to_nothing(first, second):
    ours, theirs = log_rank_scores((first[0], second[0]), (first[1], second[1]))
    assert ours.sum() + theirs.sum() == pytest.approx(0, abs=1e-9)
    assert np.all(np.concatenate([ours, theirs]) <= 1)


def test_an_estimator_without_a_run_is_compared_with_nothing():
    none, some = np.empty(0), np.array([3.0])
    reached = np.empty(0, dtype=bool), np.array([True])
    assert np.isnan(permutation_test(*log_rank_scores((none, some), reached)).p)
