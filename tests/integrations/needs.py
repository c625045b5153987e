"""Marks tests of what TRL has had since a version. They are skipped on older versions."""

import pytest
import trl
from packaging.version import Version

NEEDS_TRITON = "TRL's own trainer needs Triton in this version"
"""Reason to skip a test in which TRL 1.15 calls its kernels, which are None without Triton."""


def since(version, what):
    """Return a mark for a test that needs a version of TRL.

    Args:
        version: The first version with which the test passes.
        what: What that version of TRL does.
    """
    too_old = Version(trl.__version__) < Version(version)
    return pytest.mark.skipif(too_old, reason=f"needs TRL {version}, which {what}")
