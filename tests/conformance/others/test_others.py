"""Tests what `python -m tests.conformance` does not run: writers, a whole run and a patch.

Each test reads the output of one process of a script in this folder, and skips without the
framework. `requirements-<name>.txt` lists what its environment needs.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.checkout import python
from tests.conformance.__main__ import patched, run
from tests.conformance.others.reading_back import TOLD, differences
from tests.conformance.others.stand_ins import NOT_HERE


def test_a_whole_run_of_ms_swift_trains_on_the_advantages_of_the_formula(tmp_path):
    if find_spec("swift") is None:
        pytest.skip("not installed: swift")
    command = ["others/ms_swift_training.py", str(tmp_path / "run")]
    _, logged, differences = run(sys.executable, command, {})
    assert [step["rewards/letters/mean"] > 0 for step in logged["logged"][:6]] == [True] * 6
    assert len(differences["differences"]) >= 6
    assert max(differences["differences"]) < 1e-5


@pytest.mark.slow
def test_the_patch_for_trl_makes_its_failing_test_pass():
    assert patched("trl") == ["fails", "passes"]


# verl's writer is tested in tests/conformance/verl, because it needs Ray.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TOLD if name != "verl"])
def test_what_a_framework_itself_wrote_is_read_as_it_was_put_in(name, tmp_path):
    script = Path(__file__).with_name("writers.py")
    done = python(script, name, tmp_path / "dump", env={"OMP_NUM_THREADS": "1"})
    if done.returncode == NOT_HERE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["version"]
    assert differences(tmp_path / "dump", TOLD[name]) == []
