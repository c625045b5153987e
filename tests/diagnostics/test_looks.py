"""When a running run is tested, and with which error."""

from fractions import Fraction
from functools import cache
from math import comb, sqrt
from statistics import NormalDist

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gdpo.diagnostics import diagnose
from gdpo.diagnostics.influence import NORMAL_95, pooled
from gdpo.diagnostics.looks import ERROR, Look, few
from gdpo.diagnostics.watch import Looks


@cache
def influence(groups, seed):
    rewards = np.random.default_rng(seed).random((groups, 4, 2))
    return diagnose(rewards, None, ["a", "b"], estimator="grpo").influence


def test_the_errors_of_all_blocks_add_up_to_one():
    """The sums over i and m telescope, and give pi² / 6: all but 1 / 3,000 of it is there."""
    i = np.arange(1, 3001)
    of_a_size = [sum(Look.at(m, int(n)).error for n in i[:40]) for m in range(4)]
    expected = [ERROR * 6 / np.pi**2 / (m + 1) ** 2 * (1 - 1 / 41) for m in range(4)]
    assert_allclose(of_a_size, expected)
    total = sum(Look.at(int(m) - 1, 1).error for m in i) * 2
    assert 0.999 * ERROR < total < ERROR


def test_a_look_is_one_sided_and_one_look_is_the_usual_interval():
    assert NormalDist().inv_cdf(1 - Look().error) == pytest.approx(NORMAL_95)
    assert Look().standard_errors is None
    assert Look.at(0, 1).standard_errors == pytest.approx(3.170, abs=1e-3)


def test_a_test_of_a_share_in_a_running_run_spends_a_tenth_of_its_error():
    look = Look.at(0, 1)
    assert NormalDist().cdf(-look.standard_errors) == pytest.approx(look.error / 10)


@pytest.mark.parametrize(("groups", "of_block"), [(1, 64), (24, 72), (64, 64), (100, 100)])
def test_blocks_are_whole_steps_of_doubling_size_and_each_is_tested_once(groups, of_block):
    steps = [influence(groups, place % 7) for place in range(5 * of_block // groups)]
    looks, seen = Looks(), []
    for place, step in enumerate(steps, 1):
        for block, look, count in looks.add(step):
            parts = steps[place - count : place]
            assert_allclose(block.sums, pooled(parts).sums)
            assert_allclose(block.products, pooled(parts).products)
            seen.append((place * groups // of_block, block.groups // of_block, look))
    wanted = [(1, 1, 0, 1), (2, 1, 0, 2), (2, 2, 1, 1), (3, 1, 0, 3), (4, 1, 0, 4), (4, 2, 1, 2)]
    wanted += [(4, 4, 2, 1), (5, 1, 0, 5)]
    assert seen == [(at, size, Look.at(m, i)) for at, size, m, i in wanted]


@pytest.mark.parametrize("of", [1, 7, 64, 300])
@pytest.mark.parametrize("share", [Fraction(1, 10), Fraction(1, 2)])
def test_few_is_the_exact_tail_of_a_binomial(of, share):
    total = Fraction(0)
    for count in range(of + 1):
        total += comb(of, count) * share**count * (1 - share) ** (of - count)
        assert few(count, of, float(share)) == pytest.approx(float(total), rel=1e-9)


def test_few_needs_no_numbers_that_overflow():
    assert few(0, 10**6, 0.1) == 0.0
    spread = sqrt(10**6 * 0.09)
    assert few(int(10**5 - 1.96 * spread), 10**6, 0.1) == pytest.approx(0.025, rel=0.02)
