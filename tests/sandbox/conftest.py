import pytest

from gdpo.lab.sandbox import Sandbox


@pytest.fixture(scope="module")
def run():
    """Runs a program in a sandbox with one worker."""
    with Sandbox(workers=1) as sandbox:
        yield sandbox.run
