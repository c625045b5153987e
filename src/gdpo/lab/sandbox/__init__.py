"""Runs untrusted Python programs against tests that the programs can neither see nor forge."""

from gdpo.lab.sandbox._terms import (
    Asserts,
    Calls,
    Check,
    Limits,
    SandboxError,
    Stdio,
    Tests,
    Verdict,
)
from gdpo.lab.sandbox.sandbox import Sandbox

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
