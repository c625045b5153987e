"""Programs that try to escape, exceed limits or earn a reward without solving the problem."""

import ctypes
import os
import socket
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from tests.environments import ROOT
from tests.sandbox.hostile_programs import HONEST, ONE, PAIRS, PROGRAMS, SHORT
from tests.sandbox.needed import needs_sandbox
from tests.sandbox.process_tree import eventually, family

from gdpo.lab.sandbox import Asserts, Sandbox

PROJECT = ROOT
OUTSIDE = ("/tmp", "/var/tmp", "/dev/shm", "/root", "/home", "/", ".")

pytestmark = needs_sandbox


def settled(count, seconds=60.0):
    """Return the descendants once there are at most this many, or after some seconds."""
    eventually(lambda: len(family()) <= count, seconds)
    return family()


@pytest.fixture(scope="module")
def orphans_come_here():
    """Make orphaned processes children of this process, so that none is overlooked."""
    libc, be_their_parent = ctypes.CDLL(None), 36
    libc.prctl(be_their_parent, 1, 0, 0, 0)
    yield
    libc.prctl(be_their_parent, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def box(orphans_come_here):
    with Sandbox(workers=1) as box:
        assert box.run(HONEST, ONE).pass_all
        yield box


@pytest.fixture(scope="module")
def usual(box):
    """Return how many processes an idle sandbox has: those of one worker and a spare one."""
    return 2 * len(settled(0, seconds=0.5))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Create what programs try to reach: a folder with a secret, a socket, a listener."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text("secret")
    os.environ["GDPO_HOSTILE_SECRET"] = "secret"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        port = str(listener.getsockname()[1])
        named.bind(str(folder / "socket"))
        named.listen()
        abstract.bind(f"\0gdpo-hostile-{port}")
        abstract.listen()
        yield {
            "{folder}": str(folder),
            "{project}": str(PROJECT),
            "{port}": port,
            "{site_packages}": sysconfig.get_path("purelib"),
        }
    del os.environ["GDPO_HOSTILE_SECRET"]


def aimed(program, target):
    source = program.source
    for name, value in target.items():
        source = source.replace(name, value)
    late = any("timeout" in pair for pair in program.expected)
    limits = program.limits if late else roomy(program.limits)
    return replace(program, source=source, limits=limits)


def roomy(limits):
    """Return limits with more time, for programs that must end for another reason."""
    return replace(limits, cpu_seconds=6 * limits.cpu_seconds, wall_seconds=6 * limits.wall_seconds)


def run(box, program):
    """Return the verdict with its single outcome."""
    verdict = box.run(program.source, program.tests, program.limits)
    assert len(verdict.outcomes) == 1
    return verdict


def check_that_all_is_well(box, usual):
    verdict = box.run(HONEST, Asserts(("assert f(1) == 2", "assert f(-1) == 0")))
    assert verdict.pass_all, verdict
    assert verdict.no_bug
    assert len(settled(usual)) <= usual
    assert not [name for folder in OUTSIDE for name in Path(folder).glob("gdpo-hostile*")]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_hostile_program_gets_the_verdict_that_it_earned(box, usual, target, program):
    verdict = run(box, aimed(program, target))
    assert (verdict.outcomes[0], verdict.bug) in program.expected, verdict
    check_that_all_is_well(box, usual)


@pytest.mark.parametrize(
    ("before", "after"), [pytest.param(before, after, id=name) for name, before, after in PAIRS]
)
def test_a_program_finds_nothing_of_the_one_before(box, usual, before, after):
    box.run(before, ONE)
    verdict = run(box, after)
    assert (verdict.outcomes[0], verdict.bug) in after.expected, verdict
    check_that_all_is_well(box, usual)


@pytest.mark.slow
def test_no_process_is_left_when_the_sandbox_is_closed(orphans_come_here):
    before = family()
    with Sandbox(workers=2) as box:
        box.run("import time\ndef f(x): time.sleep(30)", ONE, SHORT)
        box.run(HONEST, ONE)
    assert settled(len(before)) <= before


def test_there_are_as_many_programs_as_promised_and_each_has_its_own_name():
    names = [program.name for program in PROGRAMS] + [name for name, *_ in PAIRS]
    assert len(names) == len(set(names))
    assert len(names) >= 200
