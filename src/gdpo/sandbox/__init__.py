"""Runs Python that nobody trusts, against tests that it cannot see, forge or outlive."""

from gdpo.sandbox._limits import Limits
from gdpo.sandbox._tests import Asserts, Calls, Check, Stdio, Tests
from gdpo.sandbox._verdict import SandboxError, Verdict
from gdpo.sandbox.sandbox import Sandbox

__all__ = [
    "Asserts",
    "Calls",
    "Check",
    "Limits",
    "Sandbox",
    "SandboxError",
    "Stdio",
    "Tests",
    "Verdict",
]
