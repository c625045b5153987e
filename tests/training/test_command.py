"""`gdpo train` and `gdpo check` from beginning to end, on the tiny model."""

import re

import pytest
from tests.conftest import saying

from gdpo.lab.runs.directory import RunDirectory


@pytest.fixture
def gdpo_says(capfd):
    return saying(capfd)  # stdout and stderr of the process


def test_check_then_train_then_resume(gdpo_says, recipe_file, recipe):
    code, out, err = gdpo_says("check", recipe_file)
    assert (code, err) == (0, "")
    assert "✗" not in out
    assert "gdpo train" in out

    code, out, err = gdpo_says("train", recipe_file)
    assert (code, err) == (0, "")
    assert len(re.findall("^step .*vowels", out, re.MULTILINE)) == 4
    assert "4 steps in" in out
    assert str(recipe.run_dir) in out
    assert RunDirectory(recipe.run_dir).report.is_file()

    code, out, err = gdpo_says("train", recipe_file)
    assert code == 2
    assert "--resume" in err

    code, out, _ = gdpo_says("train", recipe.run_dir, "--resume")
    assert code == 0
    assert "already finished" in out


def test_check_fails_with_code_1(gdpo_says, recipe_file):
    code, out, _ = gdpo_says("check", recipe_file, "--set", "trainer.learning_rat=1")
    assert code == 1
    assert "✗ --set trainer.learning_rat=1: trainer.learning_rat is not a field" in out
    assert "1 of" in out
