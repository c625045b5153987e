"""BFCL's averages over its categories; they need nothing of its package."""

import pytest

from gdpo.evaluation._bfcl import LIVE, NON_LIVE, bfcl_averages


def test_averages_are_the_leaderboards():
    scores = dict.fromkeys((*NON_LIVE, *LIVE), (0.5, 10))
    scores["simple_java"] = (0.8, 100)  # a third of a quarter
    scores["live_simple"] = (1.0, 30)  # as many problems as the other three
    averages = bfcl_averages(scores)
    assert averages == {"Non-live": pytest.approx(0.525), "Live": pytest.approx(0.75)}
    del scores["live_parallel"]
    assert set(bfcl_averages(scores)) == {"Non-live"}
