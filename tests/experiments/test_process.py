"""A stopped training may take as long as it needs to save; a second Ctrl-C kills it."""

import os
import signal
import subprocess
import sys

import pytest
from tests.experiments.conftest import write_run

from gdpo.lab.experiments.process import Training, describe_ending, signals_held, stop_trainings
from gdpo.lab.recipes.read import read_recipe
from gdpo.lab.runs.directory import RunDirectory

SLOW = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("saving", flush=True), sys.stdin.read(), exit(130)))
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def slow(tmp_path):
    """A training that saves until its input is closed."""
    run = write_run(tmp_path, "gdpo", 1, {"format": [0.0]}, finished=False)
    with subprocess.Popen(
        [sys.executable, "-c", SLOW], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield Training(read_recipe(run / "recipe.yaml"), tmp_path / "log", process)
        process.kill()


def test_a_run_that_saves_is_waited_for_and_named(slow):
    said, looks = [], []

    def look():
        looks.append(slow.running)
        if len(looks) == 5:
            slow.process.stdin.close()

    assert stop_trainings([slow], said.append, look) == ()
    assert all(looks)
    assert slow.process.returncode == 130
    [message] = said
    assert "waiting for gdpo-seed-1" in message
    assert "Ctrl-C" in message


def test_only_ctrl_c_kills_a_run_that_saves(slow):
    numbers = [signal.SIGTERM, signal.SIGHUP, None, signal.SIGINT]
    sent, alive = [], []

    def look():
        alive.append(slow.running)
        if len(sent) < len(numbers):
            sent.append(numbers[len(sent)])
            if sent[-1] is not None:
                os.kill(os.getpid(), sent[-1])

    assert stop_trainings([slow], lambda _: None, look) == (slow,)
    assert slow.process.returncode == -signal.SIGKILL
    assert sent == numbers
    assert all(alive[: len(numbers)])


def test_a_terminal_that_is_gone_kills_no_run_that_saves(slow):
    def gone(*_):
        slow.process.stdin.close()
        raise OSError(5, "Input/output error")

    assert stop_trainings([slow], gone, gone) == ()
    assert slow.process.returncode == 130


def test_nothing_is_said_where_nothing_runs():
    said = []
    assert stop_trainings([], said.append) == ()
    assert said == []


@pytest.mark.parametrize(
    ("steps", "saved", "killed", "left"),
    [
        (0, 0, False, "stopped before its first step"),
        (3, 3, False, "saved at step 3"),
        (3, 2, False, "ended after step 3, resumes from step 2"),
        (3, 0, False, "ended after step 3, will start over: nothing was saved"),
        (3, 2, True, "killed after step 3, resumes from step 2"),
        (3, 3, True, "killed after step 3, resumes from step 3"),
        (3, 0, True, "killed after step 3, will start over: nothing was saved"),
        (0, 0, True, "killed before its first step, will start over: nothing was saved"),
    ],
)
def test_what_is_left_of_a_run_is_what_lies_there(steps, saved, killed, left, tmp_path):
    path = write_run(tmp_path, "gdpo", 1, {"format": [0.0] * steps}, finished=False)
    if saved:
        folder = path / "checkpoints" / f"checkpoint-{saved}"
        folder.mkdir(parents=True)
        (folder / "files.json").write_text("{}")
    assert describe_ending(RunDirectory(path), killed=killed) == left


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_a_signal_is_held_back_until_a_safe_place(number, raised):
    done = []

    def work():
        with signals_held() as unwind:
            unwind()
            os.kill(os.getpid(), number)
            done.append("what was half done")
            unwind()
            done.append("too much")

    ours = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, ours)  # under nohup it is ignored
    try:
        with pytest.raises(raised):
            work()
        assert signal.getsignal(number) is ours
    finally:
        signal.signal(number, before)
    assert done == ["what was half done"]


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_held() as unwind:
            os.kill(os.getpid(), signal.SIGHUP)
            unwind()
    finally:
        signal.signal(signal.SIGHUP, before)
