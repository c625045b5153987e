"""The same rollouts get the same shares, findings and verdict in every layout and order."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.same_rows import LAYOUTS, drawn, orders, said


def same(one, other):
    return all(
        pytest.approx(values, abs=2e-6, nan_ok=True) == other[0].get(name)
        for name, values in one[0].items()
    )


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_layout_and_order_of_the_rows_change_nothing(tmp_path_factory, seed):
    folder, first = tmp_path_factory.getbasetemp() / "rows", None
    rows = drawn(seed)
    for order in orders(rows, seed):
        for write in LAYOUTS:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write(folder, order)
            found = said(folder)
            first = found if first is None else first
            assert same(found, first), write.__name__
            assert found[1] == first[1], write.__name__
