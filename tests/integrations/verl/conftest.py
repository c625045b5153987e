import pytest

from gdpo.integrations.verl._run import VerlRun


@pytest.fixture
def run():
    return VerlRun()
