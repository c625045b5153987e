import pytest

from gdpo.lab.tasks import load_rows


@pytest.fixture
def real_rows(real):
    """Read a file of real data, or skip the test if it is missing."""
    return lambda path: load_rows(real(path))
