"""A test with two ranks ends, even if one of them never does."""

import signal

import pytest
from tests.integrations.two_ranks import launched

pytestmark = pytest.mark.slow


def never_ends(policy, folder):
    signal.pause()


def test_ranks_that_hang_are_ended(tmp_path):
    with pytest.raises(AssertionError, match="SIGTERM"):
        launched(f"{__name__}:never_ends", "none", tmp_path, timeout=10)
