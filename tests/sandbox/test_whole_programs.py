"""Programs that read their input and print their output."""

import pytest
from tests.sandbox.needed import needs_sandbox

from gdpo.sandbox import Limits, Sandbox, Stdio

pytestmark = needs_sandbox


@pytest.fixture(scope="module")
def run():
    with Sandbox(workers=1) as sandbox:
        yield sandbox.run


def test_whole_programs_read_and_print(run):
    source = "n = int(input())\nprint(n * 2, 'x ', sep='\\n')"
    tests = Stdio((("2\n", "4\nx\n\n"), ("3", "6  \nx"), ("3", "7\nx"), ("a", "")))
    verdict = run(source, tests)
    assert verdict.outcomes == ("passed", "passed", "failed", "error")
    assert verdict.bug == "runtime"


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("0.3000000001", "0.3", True), ("1e3", "1000.0", True), ("3", "3.0", False),
        ("1000000.1", "1000000.2", True), ("0.31", "0.3", False), ("nan", "nan", True),
        ("1.5", "1e999", False), ("1 2", "1  2", True), ("1\n2", "1 2", False), ("a", "b", False),
    ],
)  # fmt: skip
def test_numbers_with_a_point_may_be_a_little_off(run, printed, expected, same):
    assert run(f"print({printed!r})", Stdio((("", expected),))).pass_all is same


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nprint(1)\nsys.exit()", "import os\nos.write(1, b'1')\nos._exit(0)",
        "import threading, sys\nthreading.stack_size(1 << 26)\n"
        "threading.Thread(target=lambda: print(1)).start()",
        "import atexit\natexit.register(print, 1)", "out = open(1, 'w')\nout.write('1')",
        "if __name__ == '__main__':\n    print(1)", "print(1)\nquit()",
        "import asyncio\nasync def f(): print(1)\nasyncio.run(f())",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\nprint(A(1).x)",
        "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'1')\nprint(1)",
    ],
)  # fmt: skip
def test_a_program_ends_as_python_lets_it(run, source):
    verdict = run(source, Stdio((("", "1"),)))
    assert verdict.pass_all, verdict


def test_whole_programs_share_their_time(run):
    source = "import time\ntime.sleep(0.7)\nprint(1)"
    verdict = run(source, Stdio((("", "1"),) * 5), Limits(wall_seconds=1))
    assert verdict.outcomes == ("passed", "timeout", "not run", "not run", "not run")
    assert verdict.seconds < 3


def test_a_program_that_prints_without_end_is_stopped(run):
    assert run("while True: print('a' * 1000)", Stdio((("", ""),))).outcomes == ("output",)
