"""The account of a window equals that of loops, and reports only what agrees."""

import dataclasses
import math
import statistics

import numpy as np
import pytest

from gdpo.diagnostics.account import Account

NAN = math.nan
NAMES = ("a", "b")
GROUPS, SAMPLES = 3, 2


def window(steps=5):
    """Return products and rewards, of which one is missing."""
    random = np.random.default_rng(0)
    products = random.normal(size=(steps, len(NAMES), GROUPS, len(NAMES) + 1))
    rewards = random.normal(size=(steps + 1, GROUPS, SAMPLES, len(NAMES)))
    rewards[0, 1, 0, 0] = NAN
    return list(products), list(rewards)


def spread(values):
    """Return the variance of the mean of values."""
    return statistics.variance(values) / len(values)


@pytest.mark.parametrize("steps", [1, 4, 5, 10])
def test_the_account_is_that_of_loops(steps):
    products, rewards = window(steps)
    found = Account.of(products, rewards, NAMES)
    few = max(1, (steps + 1) // 4)
    for j, _ in enumerate(NAMES):
        for k in range(len(NAMES) + 1):
            groups = [list(map(float, step[j, :, k])) for step in products]
            value = sum(map(statistics.mean, groups))
            error = math.sqrt(sum(map(spread, groups)))
            ours = (found.parts, found.errors) if k < len(NAMES) else (found.totals,) * 2
            if k < len(NAMES):
                assert ours[0][j, k] == pytest.approx(value)
                assert ours[1][j, k] == pytest.approx(error)
            else:
                assert (found.totals[j], found.total_errors[j]) == pytest.approx((value, error))
        means = [
            [sum(0 if math.isnan(x) else x for x in group[:, j]) / SAMPLES for group in batch]
            for batch in rewards
        ]
        first, last = means[:few], means[-few:]
        apart = steps + 1 - few
        change = sum(map(statistics.mean, last)) - sum(map(statistics.mean, first))
        assert found.measured[j] == pytest.approx(change / few * steps / apart)
        error = math.sqrt(sum(map(spread, first + last))) / few * steps / apart
        assert found.measured_errors[j] == pytest.approx(error)


def test_a_line_of_means_is_measured_exactly():
    rewards = [np.full((GROUPS, SAMPLES, 1), 0.5 + 0.25 * batch) for batch in range(7)]
    found = Account.of([np.zeros((1, GROUPS, 2))] * 6, rewards, ["a"])
    assert (found.measured[0], found.measured_errors[0]) == (1.5, 0)


def test_the_rest_is_what_no_reward_put_in():
    found = Account.of(*window(), NAMES)
    np.testing.assert_allclose(found.parts.sum(1) + found.rests, found.totals)


def account(**changed):
    made = Account(
        names=NAMES,
        parts=np.array([[0.47, -0.06], [0.5, 0.25]]),
        errors=np.array([[0.025, 0.01], [0.1, 0.1]]),
        totals=np.array([0.42, 1.0]),
        total_errors=np.array([0.03, 0.1]),
        measured=np.array([0.40, 0.0]),
        measured_errors=np.array([0.04, 0.1]),
    )
    return dataclasses.replace(made, **changed)


def test_a_total_agrees_within_two_standard_errors_of_the_difference():
    assert account().agrees == [True, False]
    assert account(measured=np.array([0.52 - 1e-8, 0.0])).agrees[0]
    assert not account(measured=np.array([0.52 + 1e-8, 0.0])).agrees[0]
    assert not account(measured=np.array([0.32 - 1e-8, 0.0])).agrees[0]


def test_the_total_of_a_constant_reward_agrees():
    rewards = [np.full((GROUPS, SAMPLES, 1), 0.1)] * 4
    found = Account.of([np.full((1, GROUPS, 2), 1e-17)] * 3, rewards, ["a"])
    assert found.agrees == [True]


def test_parts_are_told_only_where_the_total_agrees():
    assert dict(account().metrics()) == {
        "account/a/by/a": 0.47,
        "account/a/by/b": -0.06,
        "account/a/rest": pytest.approx(0.01),
        "account/a/measured": 0.40,
        "account/b/measured": 0.0,
    }
    assert list(account().sentences()) == [
        "a +0.42 ± 0.06 (measured +0.4 ± 0.08), of which a +0.47 ± 0.05, b -0.06 ± 0.02, "
        "rest +0.01",
        "b +0 ± 0.2, but the account adds up to +1 ± 0.2, so it has no parts",
    ]
