"""Hostile programs, and the verdicts that are correct for each.

They lie in the folder `hostile`, one text file per kind, written as

    === name
    expect: timeout | error | failed runtime
    test: assert f(1) == [2]
    <empty line>
    the program

`expect` holds outcomes of the one test; the bug follows from the outcome unless it is named, too.
The test is `assert f(1) == 2` unless a line says otherwise: `test` (a statement), `call` (arguments
== value), `stdin` and `stdout`, or `tests` (a name in `TESTS`). Families of programs are made here;
`system_calls.txt` has a name, the numbers on x86_64 and aarch64, and the arguments of each call.

Every program is harmless to the machine even where no sandbox holds it: loops end after 30 seconds,
forks after 200, memory at 2 GB; a signal is 0 unless the program sees that it is in a namespace of
its own, mounts have no target, devices get the mode that they have, and files have a name of their
own.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

from gdpo.lab.sandbox import Asserts, Calls, Check, Limits, Stdio, Tests

FOLDER = Path(__file__).parent / "hostile"
HONEST = "def f(x):\n    return x + 1\n"
ONE = Asserts(("assert f(1) == 2",))
SHORT = Limits(cpu_seconds=1, wall_seconds=1.5, memory_mb=256)

SECRET = "correct-horse-battery-staple"
"""What a test expects and no program can know."""

_SORTED = "def check(candidate):\n    assert candidate([3, 1]) == [1, 3]\n"
_IN_PLACE = "def check(c):\n    a = [3, 1]\n    c(a)\n    assert a == [1, 3]\n"
_RAISES = """
def check(candidate):
    try:
        candidate(1)
    except ValueError:
        raised = True
    else:
        raised = False
    assert raised
"""
_NODE = """
class Node:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next

def same(a, b):
    while a and b and a.val == b.val:
        a, b = a.next, b.next
    return a is None and b is None

class Number:
    def __init__(self, value):
        self.value = value
    def equals(self, other):
        return self.value == other.value
    def total(self):
        return self.value
"""
_SAME = "def check(c):\n    assert same(c(1), Node(5))\n"
_RING = "def check(c):\n    a = Node(5)\n    a.next = a\n    assert same(c(1), a)\n"

TESTS: dict[str, Tests] = {
    "secret": Asserts((f"assert f(1) == {SECRET!r}",)),
    "secret output": Stdio((("5\n", SECRET + "\n"),)),
    "refused": Asserts(("assert refused() == 'refused'",)),
    "sorts": Check(_SORTED, "f"),
    "sorts, by a method": Check(_SORTED, "Solution().f"),
    "sorts in place": Check(_IN_PLACE, "f"),
    "raises": Check(_RAISES, "f"),
    "a node": Check(_SAME, "f", setup=_NODE),
    "a ring": Check(_RING, "f", setup=_NODE),
    "a method": Check("def check(c):\n    assert c(1).equals(Number(5))\n", "f", setup=_NODE),
    "a method's value": Check("def check(c):\n    assert c(1).total() == 5\n", "f", setup=_NODE),
}

_USUAL_BUG = {"passed": None, "failed": None, "error": "runtime"}


@dataclass(frozen=True)
class Hostile:
    """A program, its one test, and what may become of it: pairs of an outcome and a bug."""

    name: str
    source: str
    expected: frozenset[tuple[str, str | None]]
    tests: Tests = ONE
    limits: Limits = SHORT


def hostile(name, source, expect, tests=ONE, limits=SHORT):
    """Return a hostile program, with `expect` in the format of the files."""
    verdicts = set()
    for words in expect.split(" | "):
        *outcome, last = words.split(" ")
        told = outcome and last in ("runtime", "syntax", "import", "killed", "memory", "None")
        outcome, bug = (" ".join(outcome), last) if told else (words, "")
        bug = None if bug == "None" else bug or _USUAL_BUG.get(outcome, outcome)
        verdicts.add((outcome, bug))
    return Hostile(name, source, frozenset(verdicts), tests, limits)


def read(kind, *, before="", after="", tests=ONE):
    """Return the programs of a file, with their common start and end."""
    programs = []
    for section in (FOLDER / f"{kind}.txt").read_text().split("=== ")[1:]:
        head, _, source = section.partition("\n\n")
        name, *lines = head.split("\n")
        said = dict(line.split(": ", 1) for line in lines)
        limits = eval(f"Limits({said['limits']})") if "limits" in said else SHORT
        source = f"{before}\n{source}\n{after}"
        programs.append(
            hostile(f"{kind}: {name}", source, said["expect"], _tests(said, tests), limits)
        )
    return programs


def _tests(said, usual):
    if "test" in said:
        return Asserts((said["test"],))
    if "tests" in said:
        return TESTS[said["tests"]]
    if "stdout" in said:
        stdin = ast.literal_eval(said.get("stdin", "''"))
        return Stdio(((stdin, ast.literal_eval(said["stdout"])),))
    if "call" in said:
        arguments, _, value = said["call"].partition(" == ")
        return Calls("f", ((tuple(ast.literal_eval(arguments)), ast.literal_eval(value)),))
    return usual


_REACH = """
import os, sys

def refused():
    try:
        got = attack()
    except (OSError, ImportError):
        return "refused"
    return "got " + repr(got)[:200] if got else "refused"

# A signal that ends nothing, where the sandbox has failed and this is a process like any other.
SIGNAL = 9 if os.getppid() < 50 and not os.path.exists("/proc/1") else 0
"""

_SEARCH = f"""
import gc, os, sys
BEGINNING = {SECRET[:8]!r}
def is_it(value):
    return type(value) is str and value.startswith(BEGINNING) and len(value) > len(BEGINNING)
"""

_WRONG = "def f(x):\n    return 7\n"


def _probe(name, attack):
    """Return a program whose `attack()` must be refused or return nothing."""
    return hostile(name, _REACH + attack, "passed", TESTS["refused"])


_FILES = [
    _probe(f"file: {path}", f"def attack():\n    return open({path!r}, 'rb').read(100)")
    for path in (
        "/etc/passwd", "/etc/shadow", "/etc/hostname", "/proc/self/environ", "/proc/self/maps",
        "/proc/1/cmdline", "/proc/kallsyms", "/dev/mem", "/dev/kmsg", "/dev/tty", "/dev/kvm",
        "/sys/kernel/version", "{folder}/secret", "{project}/pyproject.toml",
        "{project}/src/gdpo/lab/sandbox/sandbox.py",
    )
]  # fmt: skip

_NETWORK = [
    _probe(f"network: {name}", f"import socket\ndef attack():\n    return socket.{call}")
    for name, call in (
        ("TCP", "create_connection(('127.0.0.1', {port}), 1)"),
        ("TCP over IPv6", "create_connection(('::1', {port}), 1)"),
        ("UDP", "socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))"),
        ("names", "getaddrinfo('example.com', 80)"),
        ("listening", "create_server(('127.0.0.1', 0))"),
        ("unix", "socket(socket.AF_UNIX).connect('{folder}/socket') or 'connected'"),
        ("abstract", "socket(socket.AF_UNIX).connect('\\0gdpo-hostile-{port}') or 'connected'"),
        ("netlink", "socket(16, socket.SOCK_RAW, 0)"),
        ("packets", "socket(17, socket.SOCK_RAW, 3)"),
        ("the kernel's cryptography", "socket(38, socket.SOCK_SEQPACKET, 0)"),
        ("a pair of datagrams", "socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"),
    )
]

_START = """
import os, subprocess, multiprocessing, time
def f(x):
    for _ in range(200):
        try:
            {start}
        except (OSError, ImportError):
            return 2
    return "started"
"""

_PROCESSES = [
    hostile(f"process: {name}", _START.format(start=start), "passed")
    for name, start in (
        ("fork", "os.fork() or os._exit(0)"),
        ("a terminal's", "os.forkpty()[0] or os._exit(0)"),
        ("subprocess", "subprocess.Popen(['sleep', '5'])"),
        ("posix_spawn", "os.posix_spawn('/bin/sleep', ['sleep', '5'], {})"),
        ("a shell", "if os.system('sleep 5 &'): raise OSError"),
        ("exec", "os.execv('/bin/true', ['true'])"),
        ("multiprocessing by fork",
         "multiprocessing.get_context('fork').Process(target=time.sleep, args=(5,)).start()"),
        ("multiprocessing by spawn", "multiprocessing.get_context('spawn').Pool(8)"),
        ("multiprocessing by a server", "multiprocessing.get_context('forkserver').Pool(8)"),
    )
]  # fmt: skip

_FLOODS = [
    hostile(
        f"10 GB: {write.partition(', block')[0]}",
        f"import os, sys\nblock = 'x' * (1 << 20)\nfor _ in range(10_000):\n    {write}",
        expect,
        Stdio((("", "x"),)),
    )
    for write, expect in (
        ("sys.stdout.write(block)", "output"),
        ("os.write(1, block.encode())", "output"),
        ("sys.stderr.write(block)", "output | failed | timeout"),
        ("os.write(2, block.encode())", "output | failed | timeout"),
    )
]

_SYSTEM_CALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def attack():
    ctypes.set_errno(0)
    number = {numbers}[("x86_64", "aarch64").index(os.uname().machine)]
    if libc.syscall(number, {arguments}) != -1:
        return "worked"
    name = errno.errorcode.get(ctypes.get_errno())
    return None if name in ("EPERM", "ENOSYS") else name
"""

_SYSTEM_CALLS = [
    _probe(
        f"system call: {name}",
        _SYSTEM_CALL.replace("{numbers}", f"({x86_64}, {aarch64})").replace("{arguments}", rest),
    )
    for line in (FOLDER / "system_calls.txt").read_text().splitlines()
    for name, x86_64, aarch64, rest in [line.split("; ", 3)]
]

_ENDS = [
    hostile(f"ends itself: {name}", f"import os, sys\n{source}", expect)
    for name, source, expect in (
        ("os._exit(0) at the start", "os._exit(0)", "killed"),
        ("sys.exit at the start", "sys.exit(0)", "error"),
        ("an exit handler", "import atexit\natexit.register(os._exit, 0)\nsys.exit(0)", "error"),
        *(
            (statement, f"def f(x):\n    {statement}", expect)
            for statement, expect in (
                ("os._exit(0)", "killed"),
                ("os._exit(1)", "killed"),
                ("os.abort()", "killed"),
                ("os.kill(os.getpid(), 9)", "killed | memory"),
                ("os.kill(os.getpid(), 11)", "killed"),
                ("os.kill(os.getpid(), 19)", "timeout"),
                ("os.kill(os.getpid(), 24)", "killed | timeout"),
                ("import ctypes; ctypes.string_at(0)", "killed"),
                ("exec((lambda: 0).__code__.replace(co_code=bytes([100, 255] * 8)))", "killed"),
                ("sys.exit(0)", "error"),
                ("exit()", "error"),
                ("raise KeyboardInterrupt", "error"),
                ("raise GeneratorExit", "error"),
                ("raise StopIteration", "error"),
                ("raise BaseException", "error"),
                ("raise AssertionError", "error"),
                ("raise type('E', (BaseException,), {})", "error"),
                ("assert False", "error"),
            )
        ),
    )
]

_NOISE = """
import os
for number in range(3, 256):
    try:
        os.set_blocking(number, False)
        os.write(number, {message})
    except OSError:
        pass
"""

_NOISES = [
    hostile(
        f"noise on every descriptor: {message}",
        _NOISE.replace("{message}", message) + _WRONG,
        "failed | error | killed | timeout | output",
    )
    for message in (
        "bytes(1 << 16)",
        "b'\\xff' * 64",
        "b'[' * 65536",
        "(60000).to_bytes(4, 'little') + b'[' * 60000",
        "(3).to_bytes(4, 'little') + b'NaN'",
        "(4000).to_bytes(4, 'little') + b'{'",
    )
]

_REPLY = """
import os
def f(x):
    reply = {reply}
    os.write(4, len(reply).to_bytes(4, "little") + reply)
    os._exit(0)
"""

_REPLIES = [
    hostile(
        f"a reply of its own: {reply[:60]}",
        _REPLY.replace("{reply}", f"b'{reply}'" if reply[0] in "[{n" else reply),
        "failed | error | killed | memory | output | timeout",
    )
    for reply in (
        "[]", "{}", "null", '["ok"]', '["ok",3]', '["ok",[3]]', '["ok",[3,null],null]',
        '["ok",[NaN,[]],null]', '["ok",[1e999,[]],null]', '["ok",[["..."],[]],null]',
        '["ok",[["#",0],[]],null]', '["ok",[["#",-1],[["l",[]]]],null]',
        '["ok",[["#",0],[["t",[["#",0]]]]],null]', '["ok",[["#",0],[["l",[["#",0]]]]],null]',
        '["ok",[["#",0],[["s",[["#",0]]]]],null]', '["ok",[["#",0],[["d",[["#",0],3]]]],null]',
        '["ok",[["#",0],[["d",[3]]]],null]', '["ok",[["#",0],[["o",["Record"]]]],null]',
        '["ok",[["#",0],[["o",[["#",0]]]]],null]', '["ok",[["#",[0]],[["l",[]]]],null]',
        '["ok",[["h",0],[]],null]', '["ok",[["h",-1],[]],null]', '["ok",[["h",999999],[]],null]',
        '["ok",[["I","zz"],[]],null]', '["ok",[["r","0x1","0x2","0x0"],[]],null]',
        '["ok",[["c","1","2"],[]],null]', '["ok",[["D","sNaN"],[]],null]',
        '["ok",[["D","1e999999999999"],[]],null]', '["ok",[["F","0x1","0x0"],[]],null]',
        '["ok",[["T","object"],[]],null]', '["ok",[["T","int"],[]],null]',
        '["ok",[["b","\\\\u1234"],[]],null]', '["ok",[["x"],[]],null]', '["ok",[[[]],[]],null]',
        '["ok",[3,[]],[3,[["l",[]]]]]', '["ok",[3,[]],{"a":1}]',
        '["raise","SystemExit","0","runtime"]', '["raise","__import__","os","runtime"]',
        '["raise","UnicodeDecodeError","x","runtime"]', '["raise","ExceptionGroup","x","None"]',
        '["raise","print","x","passed"]', '["raise","AssertionError","",null]', '["raise",1,2,3]',
        "b'[' * 200_000", "b'\"' + b'x' * 900_000", "b'9' * 900_000", "bytes(100)",
        "b'[\"ok\",[[\"I\",\"' + b'f' * 900_000 + b'\"],[]],null]'",
        "b'[\"ok\",[[\"D\",\"' + b'9' * 900_000 + b'\"],[]],null]'",
        "b'[\"ok\",[3,[' + b'[\"l\",[]],' * 90_000 + b'[\"l\",[]]]],null]'",
    )
]  # fmt: skip

_SOURCES = [
    hostile(f"source: {name}", source, expect)
    for name, source, expect in (
        ("a null character", "def f(x):\n    return 2\0", "error syntax"),
        ("a lone surrogate", "f = '\ud800'", "error syntax"),
        ("a million brackets", "f = " + "(" * 1_000_000, "error syntax"),
        ("a deep expression", "f = " + "-" * 200_000 + "1", "error syntax | memory | killed"),
        ("a long sum", "f = " + "1+" * 200_000 + "1", "error syntax | memory | killed"),
        ("an integer too long to read", "f = " + "9" * 10_000, "error syntax"),
        ("a constant that is folded", "f = 'x' * 4000 * 4000 * 4000 * 4000", "memory"),
        ("nothing", "", "error"),
        ("prose", "I would rather not say.", "error syntax"),
        ("another encoding", "# -*- coding: utf-7 -*-\n" + HONEST, "passed"),
        ("eight megabytes", HONEST + "#" * (8 << 20), "passed"),
    )
]

PROGRAMS = [
    *read("time"), *read("memory"), *read("output"),
    *read("reach", before=_REACH, tests=TESTS["refused"]),
    *_FILES, *_NETWORK, *_PROCESSES, *_FLOODS, *_SYSTEM_CALLS, *_ENDS, *_NOISES, *_REPLIES,
    *_SOURCES,
    *read("lie"), *read("patch", after=_WRONG),
    *read("search", before=_SEARCH, tests=TESTS["secret"]),
    *read("channel"), *read("tests"), *read("odd"),
]  # fmt: skip


def pairs():
    """Return a name, a program that leaves something behind, and one that must not find it."""
    for section in (FOLDER / "left.txt").read_text().split("=== ")[1:]:
        name, _, programs = section.partition("\n\n")
        leaves, _, looks = programs.partition("\n--- looks\n")
        looks = f"found = []\n{looks}\ndef f(x):\n    return found or 2\n"
        yield name, leaves + "\n" + HONEST, hostile(f"left: {name}", looks, "passed")


PAIRS = list(pairs())
