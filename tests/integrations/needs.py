"""Marks tests of what TRL has had since a version. They are skipped on older versions."""

import pytest
import trl
from packaging.version import Version


def since(version, what):
    """Return a mark for a test that needs a version of TRL.

    Args:
        version: The first version with which the test passes.
        what: What that version of TRL does.
    """
    too_old = Version(trl.__version__) < Version(version)
    return pytest.mark.skipif(too_old, reason=f"needs TRL {version}, which {what}")
