"""Rewards in bins by length: the same whichever width the bins began with."""

import numpy as np
import pytest

from gdpo.analysis.run import LengthBins


@pytest.fixture
def rollouts():
    rng = np.random.default_rng(0)
    return rng.integers(0, 100, 500).astype(float), rng.normal(size=500)


def binned(lengths, rewards):
    bins = LengthBins()
    bins.add("r", lengths, rewards)
    return bins


def test_means_and_counts_are_those_of_the_rollouts_of_each_length(rollouts):
    lengths, rewards = rollouts
    bins = binned(*rollouts)
    assert bins.width == 8
    for middle, count, mean in bins.table("r").T:
        there = np.abs(lengths - middle + 1e-9) < 4
        assert count == np.sum(there)
        assert mean == pytest.approx(np.mean(rewards[there]))
    assert np.sum(bins.table("r")[1]) == 500
    assert not np.any(bins.table("other")[1])


def test_wider_bins_hold_what_all_the_narrow_ones_held(rollouts):
    lengths, rewards = rollouts
    narrow = binned(*rollouts)
    middles, _, means = narrow.table("r", 32)
    assert narrow.width == 8
    np.testing.assert_array_equal(middles, [16, 48, 80, 112])
    for bin_, mean in enumerate(means):
        assert mean == pytest.approx(np.mean(rewards[lengths // 32 == bin_]))
    np.testing.assert_array_equal(narrow.table("r", 8), narrow.table("r"))
