"""Tests verl's own code paths with our plugin, if verl is installed.

Each test reads the output of one process of `paths.py`, which describes what it needs.
"""

import os
import sys
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from tests.conformance.__main__ import run
from tests.conformance.others.reading_back import TOLD, assert_of_the_formula, differences

from gdpo.rollouts.readers import read_rollout_files

needed = [name for name in ("verl", "transfer_queue", "ray") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(needed), reason=f"not installed: {', '.join(needed)}")

PATHS = ["legacy", "separation", "V1", "V1, turns and padding"]


@lru_cache
def printed_by(script="paths.py", *arguments, home=None, variables=()):
    environment = {"VERL_USE_EXTERNAL_PLUGINS": "auto"}
    if version("verl").startswith("0.8"):  # it has no entry points
        environment["VERL_USE_EXTERNAL_MODULES"] = "gdpo.integrations.verl._plugin"
    environment |= dict(variables)
    environment["HOME"] = home or os.environ.get("HOME", "")  # where Ray writes files
    return run(sys.executable, [f"verl/{script}", *arguments], environment)


@pytest.mark.parametrize("path", PATHS)
def test_advantages_on_verls_own_path_are_those_of_the_formula(path):
    assert_of_the_formula(printed_by(), path)


OWN = ["grpo", "gdpo", "rloo", "grpo_vectorized", "reinforce_plus_plus", "opo", "gae"]


def results(*arguments, **variables):
    found = printed_by("watching.py", *arguments, variables=tuple(variables.items()))
    return {(line["path"], line.get("estimator")): line["result"] for line in found}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("estimator", OWN)
def test_verls_own_estimators_have_the_bits_of_verl_without_gdpo_whether_watched_or_not(
    path, estimator
):
    nothing = {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": ""}
    without = results(**nothing)[path, estimator]
    installed, watched = results()[path, estimator], results("--watch")[path, estimator]
    assert installed["digest"] == watched["digest"]
    if estimator == "gdpo" and path.startswith("V1"):
        assert without.startswith("KeyError")
    else:
        assert without["digest"] == installed["digest"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("estimator", OWN)
def test_what_is_watched_is_logged_and_nothing_else_is(path, estimator):
    watched, installed = results("--watch")[path, estimator], results()[path, estimator]
    shares = [watched["metrics"][f"gdpo/reward_{k}/influence_share"] for k in range(3)]
    assert sum(map(abs, shares)) == pytest.approx(1)
    assert not any("stops watching" in message for message in watched["said"])
    assert installed["metrics"] == {}


def test_advantages_that_differ_by_token_are_averaged_and_that_is_said():
    said = results("--watch")["legacy", "gae"]["said"]
    assert any("gae gives the tokens of a rollout different advantages" in each for each in said)


def test_verls_own_gdpo_on_the_default_trainer_is_verls_function_on_the_same_rows():
    found = results()["V1, delivered", None]
    assert found["rows"] > 0
    assert found["nonzero"]
    assert found["same"]
    assert any("The formula stays verl's" in each for each in results()["V1", "gdpo"]["said"])


def test_a_real_queue_gives_the_advantages_of_the_formula_and_dumps_have_the_rewards(tmp_path):
    (line,) = printed_by("real_queue.py", str(tmp_path), home=str(tmp_path))
    assert line["padding"] > 0
    assert line["difference"] < 1e-5
    assert line["dumped"]
    assert line["recorded"]
    reading = read_rollout_files(tmp_path / "padded")
    read = sum(map(len, reading))
    other_outputs = line["rows"] - line["rollouts"]
    assert other_outputs > 0
    assert (read, reading.report.skipped) == (line["rollouts"], other_outputs + line["padding"])
    assert [file.format for file in reading.report.files] == ["verl"]
    assert differences(tmp_path / "known", TOLD["verl"]) == []


@pytest.mark.parametrize("script", ["configuration.py", "launched.py", "turns.py"])
def test_what_a_script_checks_on_verls_own_code_holds(script, tmp_path):
    """Command lines and the check at start, launched recipes, turns: each script raises or ends."""
    printed_by(script, str(tmp_path))
