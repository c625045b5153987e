"""Programs that read their input and print their output."""

from pathlib import Path

import pytest
from tests.sandbox.needed import needs_sandbox

from gdpo.lab.sandbox import Limits, Stdio

pytestmark = needs_sandbox

PRINTS_1 = Stdio((("", "1"),))


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
        "import sys\nprint(1)\nsys.stdout.close()",
        "class Last:\n    def __del__(self): print(1)\nkept = Last()",
        "\ufeffprint(1)",
        "import os\nprint(len(os.path.dirname(__file__)) + 1)",
        "from multiprocessing.dummy import Pool\n"
        "with Pool(2) as pool: print(sum(pool.map(int, '01')))",
        "from multiprocessing.pool import ThreadPool\nprint(ThreadPool(2).apply(int, ('1',)))",
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_STACK, (-1, -1))\n"
        "sys.setrecursionlimit(10**6)\n"
        "def f(n): return n and f(n - 1) or 1\nprint(f(10**5))",
        "import locale\nlocale.setlocale(locale.LC_ALL, '')\nprint(1)",
        # Its last flush fails, and it has printed what it printed.
        "import sys\nclass Out:\n    def write(self, text): real.write(text)\n"
        "    def flush(self): real.flush()\nreal = sys.stdout\nsys.stdout = Out()\nprint(1)\n",
    ],
)  # fmt: skip
def test_a_program_works_and_ends_as_in_plain_python(run, source):
    verdict = run(source, PRINTS_1)
    assert verdict.pass_all, verdict


def test_whole_programs_share_their_time_on_the_clock(run):
    source = "import time\ntime.sleep(0.7)\nprint(1)"
    verdict = run(source, Stdio((("", "1"),) * 5), Limits(wall_seconds=1))
    assert verdict.passed < 3
    assert (verdict.outcomes[-1], verdict.bug, verdict.by_clock) == ("not run", "timeout", True)


@pytest.mark.slow
def test_whole_programs_share_their_processor_time(run):
    source = "import time\nwhile time.process_time() < 0.7: pass\nprint(1)"
    verdict = run(source, Stdio((("", "1"),) * 4), Limits(cpu_seconds=1))
    assert verdict.outcomes == ("passed", "passed", "not run", "not run")
    assert (verdict.bug, verdict.by_clock) == ("timeout", False)


def test_a_program_that_prints_without_end_is_stopped(run):
    assert run("while True: print('a' * 1000)", Stdio((("", ""),))).outcomes == ("output",)


OWN_STREAM = """
import os, sys
class Out:
    def __init__(self): self.parts = []
    def write(self, text): self.parts.append(text)
    def flush(self): os.write(1, "".join(self.parts).encode()); self.parts = []
sys.stdout = Out()
print(sum(map(int, input().split())))
"""
FAST_IO = """
import os, sys
from io import BytesIO, IOBase

BUFSIZE = 8192

class FastIO(IOBase):
    newlines = 0
    def __init__(self, file):
        self._fd = file.fileno()
        self.buffer = BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None
    def read(self):
        while True:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, BUFSIZE))
            if not b:
                break
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines = 0
        return self.buffer.read()
    def readline(self):
        while self.newlines == 0:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, BUFSIZE))
            self.newlines = b.count(b"\\n") + (not b)
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines -= 1
        return self.buffer.readline()
    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)

class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush = self.buffer.flush
        self.writable = self.buffer.writable
        self.write = lambda s: self.buffer.write(s.encode("ascii"))
        self.read = lambda: self.buffer.read().decode("ascii")
        self.readline = lambda: self.buffer.readline().decode("ascii")

sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
input = lambda: sys.stdin.readline().rstrip("\\r\\n")
print(sum(map(int, input().split())))
"""


@pytest.mark.parametrize("source", [OWN_STREAM, FAST_IO])
def test_a_stream_of_the_programs_own_is_flushed_while_its_names_are_there(run, source):
    verdict = run(source, Stdio((("1 2\n", "3"), ("1 3\n", "5"))))
    assert (verdict.outcomes, verdict.bug) == (("passed", "failed"), None), verdict


@pytest.mark.skipif(not Path("/usr/share/zoneinfo/UTC").exists(), reason="no time zones here")
def test_a_program_knows_the_time_zones_of_this_machine(run):
    assert run(
        "from zoneinfo import ZoneInfo\nprint(ZoneInfo('UTC'))", Stdio((("", "UTC"),))
    ).pass_all
