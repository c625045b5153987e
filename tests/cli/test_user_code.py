"""Code of the user that leaves, hangs, overwrites, or speaks to the terminal."""

import os
import subprocess
import sys

import pytest

from gdpo.cli import _user_code

OWN = """
import os
import sys
import time

import gdpo
from gdpo.advantages import turn_gdpo


def fire(rewards, weights, *, turns, scales=None):
    return turn_gdpo(rewards, weights, turns=turns, scales=scales)


def raises_an_exit(rewards, weights, *, turns):
    raise SystemExit(0)


def ends(*arguments, turns=None):
    os._exit(0)


def hangs(rewards, weights, *, turns):
    time.sleep(100)


def overwrites_rewards(rewards, weights, *, turns):
    rewards[...] = 0.0
    return rewards[..., 0]


def overwrites_weights(rewards, weights, *, turns):
    weights[...] = 0.0
    return rewards[..., 0]


def overwrites_turns(rewards, weights, *, turns):
    turns[...] = 1
    return rewards[..., 0]


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


def started(*arguments, before=""):
    """The command line in a process of its own, because the user's code may end the process."""
    return subprocess.run(
        [sys.executable, "-c", f"{before}\nfrom gdpo.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_name_is_not_turned_into_an_emoji(gdpo_says, own):
    code, out, _ = gdpo_says("credit", "own_code:fire")
    assert code == 0
    assert "own_code:fire: unbiased" in out


@pytest.mark.parametrize("argument", ["rewards", "weights", "turns"])
def test_an_estimator_that_overwrites_an_argument_is_reported(gdpo_says, own, argument):
    code, _, err = gdpo_says("credit", f"own_code:overwrites_{argument}")
    assert code == 2
    assert f"'{argument}'" in err
    assert "copy" in err


def test_an_estimator_that_exits_with_0_is_an_error(gdpo_says, own):
    code, out, err = gdpo_says("credit", "own_code:raises_an_exit")
    assert (code, out) == (2, "")
    assert "SystemExit" in err


def test_an_exit_with_0_before_the_end_is_an_error_that_names_its_line(gdpo_says, recipe_file):
    (recipe_file.parent / "own_task.py").write_text(
        "import sys\nfrom dataclasses import replace\nfrom gdpo.tasks import resolve_task\n"
        "def leave(reference):\n    sys.exit()\n"
        "task = replace(resolve_task('gsm8k'), gold_completion=leave)\n"
    )
    sys.path.insert(0, str(recipe_file.parent))
    code, _, err = gdpo_says("check", recipe_file, "--set", "task=own_task:task")
    sys.path.remove(str(recipe_file.parent))
    assert code == 2
    assert "own_task.py, line 5" in err


@pytest.mark.slow
def test_code_that_ends_the_process_is_an_error_that_names_its_line(own):
    done = started("credit", "own_code:ends")
    assert done.returncode == 2
    assert "os._exit(0)" in done.stderr
    assert "own_code.py, line 19" in done.stderr


@pytest.mark.slow
def test_a_reward_that_ends_the_process_does_not_pass_a_check(own, recipe_file):
    done = started("check", str(recipe_file), "--set", "rewards=[format, 'own_code:leaves']")
    assert done.returncode == 2
    assert "own_code.py, line 19" in done.stderr


def test_a_child_process_of_the_users_code_may_leave_as_it_likes():
    with _user_code.exits_reported():
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os._exit is _user_code._leave


@pytest.mark.slow
def test_what_a_command_waits_for_is_printed_and_it_does_not_wait_forever(own):
    short = "import gdpo.cli._user_code as code; code._PATIENCE_S, code._LIMIT_S = 0.1, 0.5"
    done = started("credit", "own_code:hangs", before=short)
    assert done.returncode == 2
    waiting, stopped = done.stderr.splitlines()
    assert "waiting for estimator 'own_code:hangs'" in waiting
    assert "0.5 s" in stopped


def test_the_text_of_an_exception_cannot_send_escape_sequences(gdpo_says, own, recipe_file):
    rewards = "rewards=[format, 'own_code:shouts']"
    code, out, err = gdpo_says("check", recipe_file, "--set", rewards)
    assert code == 1
    assert "⟨U+001B⟩[31mred [bold] :fire:" in out
    assert "\x1b" not in out + err
