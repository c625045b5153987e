"""BFCL's averages over its categories; they need nothing of its package."""

import pytest

from gdpo.evaluation._bfcl import LIVE, MULTI_TURN, NON_LIVE, bfcl_averages


def test_averages_are_the_leaderboards():
    scores = dict.fromkeys((*NON_LIVE, *LIVE), (0.5, 10))
    scores["simple_java"] = (0.8, 100)  # a third of a quarter
    scores["live_simple"] = (1.0, 30)  # as many problems as the other three
    averages = bfcl_averages(scores)
    assert averages == {"Non-live": pytest.approx(0.525), "Live": pytest.approx(0.75)}
    del scores["live_parallel"]
    assert set(bfcl_averages(scores)) == {"Non-live"}


def test_the_papers_average_is_the_plain_mean_of_three():
    scores = dict.fromkeys(NON_LIVE, (0.9, 10)) | dict.fromkeys(LIVE, (0.6, 10))
    assert set(bfcl_averages(scores)) == {"Non-live", "Live"}
    averages = bfcl_averages(scores | {name: (i / 10, 200) for i, name in enumerate(MULTI_TURN)})
    assert averages["Multi-turn"] == pytest.approx(0.15)
    assert averages["Avg"] == pytest.approx(0.55)
