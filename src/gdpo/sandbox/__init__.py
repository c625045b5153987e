"""Runs Python that nobody trusts, against tests that it cannot see, forge or outlive."""

from gdpo.sandbox._backends import describe_backends, find_backend
from gdpo.sandbox._limits import Limits
from gdpo.sandbox._plan import parse_program
from gdpo.sandbox._sandbox import Sandbox, default_sandbox
from gdpo.sandbox._tests import Asserts, Calls, Check, Stdio, Tests
from gdpo.sandbox._verdict import Bug, Outcome, SandboxError, Verdict

__all__ = [
    "Asserts",
    "Bug",
    "Calls",
    "Check",
    "Limits",
    "Outcome",
    "Sandbox",
    "SandboxError",
    "Stdio",
    "Tests",
    "Verdict",
    "default_sandbox",
    "describe_backends",
    "find_backend",
    "parse_program",
]
