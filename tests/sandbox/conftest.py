import pytest

from gdpo.lab.sandbox import Calls, Sandbox

GOOD, ONE = "def f(): return 1", Calls("f", (((), 1),))
"""A program, and the test that it passes."""


@pytest.fixture(scope="module")
def run():
    """Runs a program in a sandbox with one worker."""
    with Sandbox(workers=1) as sandbox:
        yield sandbox.run
