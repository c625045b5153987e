"""Code of the user that leaves, or speaks to the terminal."""

import os
import sys

import pytest
from tests.checkout import python

from gdpo.lab.cli import _user_code

OWN = """
import os

import gdpo


def ends(*arguments):
    os._exit(0)


def says(completion, reference):
    raise ValueError("\\x1b[31mred [bold] :fire:")


shouts = gdpo.Reward("shouts", says, 0.0, 1.0)
leaves = gdpo.Reward("leaves", ends, 0.0, 1.0)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_exit_with_0_before_the_end_is_an_error_that_names_its_line(
    mistake, recipe_file, monkeypatch
):
    (recipe_file.parent / "own_task.py").write_text(
        "import sys\nfrom dataclasses import replace\nfrom gdpo.lab.tasks import resolve_task\n"
        "def leave(reference):\n    sys.exit()\n"
        "task = replace(resolve_task('gsm8k'), gold_completion=leave)\n"
    )
    monkeypatch.syspath_prepend(recipe_file.parent)
    assert "own_task.py, line 5" in mistake("check", recipe_file, "--set", "task=own_task:task")


@pytest.mark.slow
def test_a_reward_that_ends_the_process_does_not_pass_a_check(own, recipe_file):
    words = ("check", recipe_file, "--set", "rewards=[format, 'own_code:leaves']")
    path = os.pathsep.join(["", *sys.path])
    done = python("-m", "gdpo", *words, env={"PYTHONPATH": path}, timeout=60)
    assert done.returncode == 2
    assert "own_code.py, line 8" in done.stderr


def test_a_child_process_of_the_users_code_may_leave_as_it_likes():
    with _user_code.exits_reported():
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os._exit is _user_code._leave


def test_the_text_of_an_exception_cannot_send_escape_sequences(gdpo_says, own, recipe_file):
    rewards = "rewards=[format, 'own_code:shouts']"
    code, out, err = gdpo_says("check", recipe_file, "--set", rewards)
    assert code == 1
    assert "⟨U+001B⟩[31mred [bold] :fire:" in out
    assert "\x1b" not in out + err
