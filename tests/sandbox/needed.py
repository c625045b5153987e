"""Marks tests that need a sandbox: they are skipped without one, or fail if one is required.

GDPO_REQUIRE_SANDBOX=1 says that one must: without it, a machine on which nothing is sandboxed any
more would pass all tests. The failure is that of the module's import.
"""

import os

import pytest

from gdpo.lab.sandbox import SandboxError
from gdpo.lab.sandbox.backends import find_backend


def why_none():
    """Return why no sandbox works on this machine; empty if one works."""
    try:
        find_backend()
    except SandboxError as error:
        if os.environ.get("GDPO_REQUIRE_SANDBOX") == "1":
            raise
        return str(error)
    return ""


NO_SANDBOX = why_none()

needs_sandbox = pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
