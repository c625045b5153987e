"""Tests that files of frameworks' own writers are read with the numbers that were written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance.others.reading_back import TOLD, differences
from tests.conformance.others.stand_ins import NOT_HERE

NAMES = [name for name in TOLD if name != "verl"]
"""verl's writer is tested in tests/conformance/verl, because it needs Ray."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_a_framework_itself_wrote_is_read_as_it_was_put_in(name, tmp_path):
    script = Path(__file__).with_name("writers.py")
    command = [sys.executable, str(script), name, str(tmp_path / "dump")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == NOT_HERE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["version"]
    assert differences(tmp_path / "dump", TOLD[name]) == []
