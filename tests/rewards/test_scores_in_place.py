"""Every score belongs to its row, whatever rewards do."""

import pytest
from benchmarks.scores_in_place import fates, rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_each_score_is_its_own_rows_or_missing_with_its_kind():
    for counts in fates(rows(200, seed=0, hanging=False), workers=2).values():
        assert counts["misplaced"] == counts["unexplained"] == 0
        assert counts["in place"] >= 100
