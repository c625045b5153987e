import pytest

from gdpo.integrations.verl._run import Run


@pytest.fixture
def run():
    return Run()
