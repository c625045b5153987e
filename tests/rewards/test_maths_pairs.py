"""The maths reward on many correct and wrong answers."""

import pytest
from benchmarks.maths_pairs.__main__ import unexpected


@pytest.mark.slow
def test_right_answers_are_paid_however_they_are_written():
    refused, count = unexpected("deserving", 1.0)
    assert count >= 240
    assert [pair for pair in refused if pair[0] != "refused all the same"] == []
    assert len(refused) <= count // 30


@pytest.mark.slow
def test_wrong_answers_are_paid_only_where_the_documentation_says_so():
    paid, count = unexpected("undeserving", 0.0)
    assert count >= 360
    assert [pair for pair in paid if not pair[0].startswith("documented: ")] == []
