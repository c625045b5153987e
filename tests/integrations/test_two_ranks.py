"""A test with two ranks ends, even if one of them never does."""

import time

import pytest
from tests.integrations.two_ranks import launched

pytestmark = pytest.mark.slow


def never_ends(policy, folder):
    time.sleep(3600)


def test_ranks_that_hang_are_ended(tmp_path):
    with pytest.raises(AssertionError, match="SIGTERM"):
        launched(f"{__name__}:never_ends", "none", tmp_path, timeout=10)
