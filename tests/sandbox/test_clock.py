"""A program's wall-clock time is extended only while the program computes."""

import socket

import pytest
from tests.sandbox.conftest import GOOD, ONE
from tests.sandbox.needed import needs_sandbox

from gdpo.lab.sandbox import Asserts, Calls, Limits, Sandbox, Stdio
from gdpo.lab.sandbox._box._process import Clock, processor_share
from gdpo.lab.sandbox._box._server import Server


class Machine:
    """A machine whose time is set by the test."""

    def __init__(self, rate, share):
        self.time, self.computed, self.rate, self.share = 100.0, 0.0, rate, share

    def pass_time(self, seconds):
        self.time += seconds
        self.computed += seconds * self.rate

    def clock(self):
        return Clock(
            1.0,
            20.0,
            computed=lambda: self.computed,
            share=lambda: self.share,
            now=lambda: self.time,
        )

    def end_of(self, clock):
        """Return the seconds from now until no time is left."""
        began = self.time
        with clock:
            while (left := clock.left()) > 0:
                self.pass_time(left)
        assert clock.struck
        return self.time - began


@pytest.mark.parametrize(
    ("rate", "share", "seconds"),
    [
        pytest.param(0.0, 1.0, 1.5, id="it sleeps"),
        pytest.param(0.0, 0.01, 1.5, id="it sleeps on a busy machine"),
        pytest.param(0.2, 1.0, 1.5, id="it dozes"),
        pytest.param(1.0, 1.0, 20.0, id="it computes"),
        pytest.param(0.05, 0.1, 20.0, id="it computes on a busy machine"),
        pytest.param(0.02, 0.1, 1.5, id="it dozes on a busy machine"),
    ],
)
def test_only_a_program_at_work_has_more_time_than_its_wall_seconds(rate, share, seconds):
    machine = Machine(rate, share)
    assert machine.end_of(machine.clock()) == pytest.approx(seconds)


def test_a_program_that_falls_asleep_late_ends_a_window_later():
    machine = Machine(1.0, 1.0)
    clock = machine.clock()
    with clock:
        machine.pass_time(3.2)
        assert clock.left() == pytest.approx(0.5)
        machine.pass_time(0.6)
        assert clock.left() == pytest.approx(0.5)
        machine.rate = 0.0
    assert machine.end_of(clock) == pytest.approx(0.5)


def test_the_graders_own_time_does_not_count_until_the_end_of_all():
    machine = Machine(0.0, 1.0)
    clock = machine.clock()
    with clock:
        machine.pass_time(0.9)
    machine.pass_time(10)
    with clock:
        assert clock.left() == pytest.approx(0.1)
    machine.pass_time(10)
    with clock:
        assert clock.left() <= 0
    assert clock.struck


def test_a_time_that_is_over_stays_over():
    machine = Machine(0.0, 1.0)
    clock = machine.clock()
    machine.end_of(clock)
    machine.rate = 1.0
    with clock:
        machine.pass_time(0.1)
        assert clock.left() <= 0


def test_the_share_of_a_processor_is_between_0_and_1():
    assert 0 < processor_share() < 1.05


@pytest.mark.parametrize("order", [b"K", b"W", b"T", b""])
def test_a_grader_that_is_gone_does_not_bring_its_server_down(order):
    """After an order, or before it reads what the server sends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = Server(jobs=-1, verdicts=-1)
    server._control = ours
    with ours:
        if order:
            theirs.send(order)
        else:
            ours.send(b"limits")
        theirs.close()
        assert server._obey(bytearray(), {}) is False


def assert_out_of_processor_time(verdict):
    assert (verdict.outcomes, verdict.bug) == (("timeout",), "timeout")
    assert not verdict.by_clock


SPIN = """
import time
def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
"""


@pytest.mark.slow
@needs_sandbox
def test_a_program_that_computes_has_its_processor_time_whatever_the_clock_says(run):
    limits = Limits(cpu_seconds=4, wall_seconds=0.1)
    source = SPIN + "def f(x):\n    spin(0.5)\n    return x"
    verdict = run(source, Calls("f", (((1,), 1), ((2,), 2))), limits)
    assert (verdict.outcomes, verdict.bug) == (("passed", "passed"), None), verdict
    assert verdict.seconds > 1
    whole = SPIN + "spin(0.5)\nprint(1)"
    assert run(whole, Stdio((("", "1"), ("", "1"))), limits).pass_all


@needs_sandbox
def test_a_program_that_computes_ends_with_its_processor_time_and_not_by_the_clock(run):
    verdict = run("while True: pass", ONE, Limits(1, wall_seconds=0.1))
    assert_out_of_processor_time(verdict)


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(600)",
        "import threading\nthreading.Lock().acquire() and threading.Event().wait()",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "import os\nos.read(os.pipe()[0], 1)",
        # The answer that never comes, and the channel that is closed while it goes on.
        "import os, time\nos.close(4)\ntime.sleep(600)",
    ],
)
def test_a_program_that_sleeps_ends_though_it_uses_no_processor_time(run, source):
    limits = Limits(wall_seconds=0.3)
    verdict = run(f"def f():\n    {source.replace(chr(10), chr(10) + '    ')}", ONE, limits)
    assert verdict.bug in ("timeout", "killed")
    assert verdict.by_clock == (verdict.bug == "timeout")
    assert run(source, Stdio((("", "1"),)), limits).bug in ("timeout", "killed")


@needs_sandbox
def test_what_the_grader_computes_is_not_counted_against_the_program(run):
    spin = f"{SPIN}spin(0.5)\nassert f() == 1"
    limits = Limits(cpu_seconds=1, wall_seconds=0.3)
    assert run(GOOD, Asserts((spin, "assert f() == 1")), limits).pass_all


@pytest.mark.slow
@needs_sandbox
def test_a_grader_kept_busy_by_an_answer_ends_by_its_processor_time():
    # Each list holds the one before it ten times: comparing two of them takes for ever.
    source = "def f():\n    x = []\n    for _ in range(40): x = [x] * 10\n    return x\n"
    with Sandbox(workers=1) as sandbox:
        verdict = sandbox.run(source, Asserts(("assert f() == f()",)), Limits(wall_seconds=0.5))
        assert_out_of_processor_time(verdict)
        assert sandbox.run(GOOD, ONE).pass_all
