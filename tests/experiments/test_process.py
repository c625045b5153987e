"""A stopped training may take as long as it needs to save; a second Ctrl-C kills it."""

import os
import signal
import subprocess
import sys

import pytest

from gdpo.lab.experiments.process import Training, signals_held, stop_trainings

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
    with subprocess.Popen(
        [sys.executable, "-c", SLOW], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield Training(tmp_path / "log", process)
        process.kill()


def test_a_run_that_saves_is_waited_for(slow):
    said, looks = [], []

    def look():
        looks.append(slow.running)
        if len(looks) == 5:
            slow.process.stdin.close()

    stop_trainings([slow], said.append, look)
    assert all(looks)
    assert slow.process.returncode == 130
    [message] = said
    assert "waiting for 1 run " in message
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

    stop_trainings([slow], lambda _: None, look)
    assert slow.process.returncode == -signal.SIGKILL
    assert sent == numbers
    assert all(alive[: len(numbers)])


def test_a_terminal_that_is_gone_kills_no_run_that_saves(slow):
    def gone(*_):
        slow.process.stdin.close()
        raise OSError(5, "Input/output error")

    stop_trainings([slow], gone, gone)
    assert slow.process.returncode == 130


def test_nothing_is_said_where_nothing_runs():
    said = []
    stop_trainings([], said.append)
    assert said == []


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
