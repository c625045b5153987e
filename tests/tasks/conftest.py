import os
from pathlib import Path

import pytest

from gdpo.lab.tasks import load_rows


@pytest.fixture
def real_rows():
    """Read a file of real data, or skip the test if it is missing."""
    folder = os.environ.get("GDPO_DATA")
    if folder is None:
        pytest.skip("GDPO_DATA is not set")
    return lambda path: load_rows(Path(folder) / path)
