import pytest

from gdpo.integrations.verl._run import VerlRun
from gdpo.integrations.verl._trainers import with_check


@pytest.fixture
def run():
    return VerlRun()


@pytest.fixture
def check(run):
    """The question of a trainer about its critic, which checks a configuration."""
    return with_check(run, lambda config: "verl's answer")
