"""Runs the grader process, the only process in the sandbox that reads the tests.

The host rewrites the tests' code, so that a failed test does not stop the others: every assert is
in `with record.one():`, every loop body and the whole function `check` in `with record.block(n):`,
and `record.settle()` comes before every statement.
"""

import builtins
import hashlib
import json
import marshal
import os
import random
import re
import resource
import select
import signal
import socket
import sys
import time
import types
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from math import isfinite
from types import TracebackType
from typing import Any, NoReturn

from ._confine import address_space, die_with_parent
from ._frames import FrameTooLate, Left, TooLong, read_frame, write_frame
from ._process import (
    FOUL,
    TIMEOUT,
    TOO_LONG,
    BadTests,
    Ended,
    Process,
    ProgramFailure,
    Stub,
    reported_exception,
)

_LONGEST_ORDER = 1 << 16
_LONGEST_TESTS = 1 << 30
_TO_JUDGE = 1.0
"""Time after a program's limits until its grader counts as hung, in seconds."""
_RECURSIONS = 1000
_LONGEST_MESSAGE = 500
_OWN_MEMORY = 2 << 30


def become_grader(jobs: int, verdicts: int, control: socket.socket) -> NoReturn:
    """Turn this new process into a grader, which reads tests, runs them and writes verdicts.

    After the server announces a job over `control`, the next message in `jobs` has its tests.
    """
    die_with_parent()
    memory = address_space() + _OWN_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    while order := control.recv(_LONGEST_ORDER):
        process = Process(control, marshal.loads(order))
        # Comparing values from a malicious program can take forever inside C code. There, only the
        # default action of a signal works, which ends this process. ITIMER_PROF counts processor
        # time.
        signal.setitimer(signal.ITIMER_PROF, process.limits["wall"] + _TO_JUDGE)
        signal.setitimer(signal.ITIMER_REAL, process.limits["longest"] + _TO_JUDGE)
        if process.limits["functions"]:
            process.spawn()
        job = marshal.loads(read_frame(jobs, _LONGEST_TESTS))
        # The tests' random numbers are the same in every run, and the program cannot know them.
        random.seed(hashlib.sha256(job["plan"]).digest())
        sys.setrecursionlimit(_RECURSIONS)
        verdict = {"nonce": job["nonce"], **_grade(marshal.loads(job["plan"]), process)}
        process.close()
        write_frame(verdicts, json.dumps(verdict).encode())
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        control.send(b"D")
    os._exit(0)


def _grade(plan: Mapping[str, Any], process: Process) -> dict[str, Any]:
    record = Record(process)
    lost = None
    try:
        _JUDGES[plan["kind"]](plan, process, record)
    except BadTests as error:
        return {"bad": str(error)}
    except BaseException as error:  # noqa: BLE001  the program returned a too large or deep value
        lost = f"{type(error).__name__}: {error}"
        record.first = record.first or ProgramFailure(
            "killed", "killed", "its answers cannot be graded"
        )
        record.outcomes.append("killed")
    first = record.first
    message = (first.message if first else record.wrong)[:_LONGEST_MESSAGE]
    return {
        "outcomes": record.outcomes,
        "bug": first.bug if first else None,
        "message": "".join(c if c.isprintable() else " " for c in message),
        "seconds": time.monotonic() - process.clock.started,
        "by_clock": process.clock.struck,
        "lost": lost,
    }


_MOST = 100_000
"""Maximum number of tests in one job. The limit stops infinite loops, because a failed test does
not stop a loop.
"""


class _TooManyTests(BaseException):
    """Raised if the tests do not finish."""


class Record:
    """Stores the outcome of each test so far."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._end_recorded = False
        self.missing: frozenset[str] = frozenset()
        """Names that the tests need but the program does not define."""
        self.outcomes: list[str] = []
        self.first: ProgramFailure | None = None
        """The program's first bug. None: no bug so far."""
        self.wrong: str = ""
        """Description of the first wrong answer. Empty: no wrong answer so far."""

    def settle(self) -> None:
        """Call `Process.settle`."""
        self._process.settle()

    def one(self) -> "Guard":
        """Return a guard for one assert."""
        return Guard(self, 1)

    def block(self, tests: int) -> "Guard":
        """Return a guard for a block of statements with this number of asserts.

        If an error ends the block early, the remaining asserts are recorded as not run.
        """
        return Guard(self, tests, whole=False)

    def add(self, error: BaseException | None) -> None:
        """Record one more test. If there is no error, the test passed."""
        if len(self.outcomes) >= _MOST:
            raise _TooManyTests
        failure = self._failure(error)
        if failure is not None:
            self.first = self.first or failure
            self.outcomes.append(failure.outcome)
        elif self._process.failure is not None:
            self.outcomes.append("not run")
        elif error is None:
            self.outcomes.append("passed")
        else:
            kind = "" if isinstance(error, AssertionError) else type(error).__name__
            self.outcomes.append(self._wrong(kind))

    def add_case(self, failure: ProgramFailure | None, *, right: bool) -> None:
        if failure is not None:
            self.first = self.first or failure
            self.outcomes.append(failure.outcome)
        else:
            self.outcomes.append("passed" if right else self._wrong(""))

    def add_missed(self, tests: int) -> None:
        self.outcomes += ["not run"] * tests

    def _wrong(self, kind: str) -> str:
        if not self.wrong:
            place = f"test {len(self.outcomes) + 1}: wrong answer"
            self.wrong = f"{place} (the test raised {kind})" if kind else place
        return "failed"

    def _failure(self, error: BaseException | None) -> ProgramFailure | None:
        """Return the program's failure in this test. None: the program did not fail."""
        process = self._process
        if process.failure is not None:
            recorded, self._end_recorded = self._end_recorded, True
            return None if recorded else process.failure
        if process.raised and (process.not_loaded or error is process.raised[0]):
            return process.raised[1]
        if isinstance(error, NameError) and error.name in self.missing:
            return ProgramFailure(
                "error", "runtime", f"NameError: name {error.name!r} is not defined"
            )
        return None


class Guard:
    """Catches and records errors in a test or between tests."""

    def __init__(self, record: Record, tests: int, *, whole: bool = True) -> None:
        self._record = record
        self._tests = tests
        self._whole = whole

    def __enter__(self) -> None:
        self._before = len(self._record.outcomes)

    def __exit__(
        self, kind: Any, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, (BadTests, _TooManyTests)):
            return False
        if self._whole:
            self._record.add(error)
        elif error is not None:
            seen = len(self._record.outcomes) - self._before
            self._record.add(error)
            self._record.add_missed(self._tests - seen - 1)
        return True


RECORD = "__record__"
"""Name of the variable for the outcome record in the rewritten test code."""

_TRUSTED = frozenset(
    {"bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools"}
    | {"heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string"}
    | {"sys", "typing"}
)
"""Modules that tests may use as `module.name` without an import. The grader imports these modules
itself, so that the program cannot replace them."""

_Plan = Mapping[str, Any]
_Namespace = dict[str, Any]


def _judge_asserts(plan: _Plan, process: Process, record: Record) -> None:
    namespace = _prepare(plan, process, record)
    for statement in plan["statements"]:
        with record.one():
            exec(statement, namespace)


def _judge_check(plan: _Plan, process: Process, record: Record) -> None:
    """Run `check(candidate)`. Each assert that is reached is one test."""
    namespace = _prepare(plan, process, record)
    candidate = _entry(plan["entry"], process)
    try:
        exec(plan["code"], namespace)
        check = namespace["check"]
    except Exception as error:
        raise BadTests(f"the tests' code raises {type(error).__name__}: {error}") from error
    with suppress(_TooManyTests), record.block(plan["asserts"]):
        check(candidate)
    if not record.outcomes:
        # A check without asserts passes if it returns. A check that never ran its asserts fails.
        record.add(AssertionError() if plan["asserts"] else None)


def _judge_calls(plan: _Plan, process: Process, record: Record) -> None:
    process.load()
    function = _entry(plan["entry"], process)
    for arguments, expected in plan["cases"]:
        with record.one():
            assert _same_value(function(*arguments), expected)


def _same_value(actual: Any, expected: Any) -> bool:
    """Return True if two values are equal. A list equals a tuple with equal items."""
    if isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(actual) == len(expected) and all(map(_same_value, actual, expected))
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            _same_value(actual[key], value) for key, value in expected.items()
        )
    return bool(actual == expected)


def _prepare(plan: _Plan, process: Process, record: Record) -> _Namespace:
    """Return a namespace with the setup's names and the program's names that tests use."""
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    namespace = module.__dict__
    namespace[RECORD] = record
    finished = _run_setup(plan["setup"], namespace)
    for name in _TRUSTED & set(plan["modules"]) - set(namespace):
        namespace[name] = import_module(name)
    process.classes = _classes(namespace)
    process.load()
    wanted = [n for n in plan["names"] if n not in namespace and not hasattr(builtins, n)]
    wanted += plan["subjects"]
    found = _take(wanted, process)
    record.missing = frozenset(wanted) - found.keys()
    namespace.update(found)
    if not finished:
        _run_late_setup(plan["setup"], namespace, process)
    return namespace


def _run_setup(setup: types.CodeType | None, namespace: _Namespace) -> bool:
    """Run the setup. Return False if the setup stopped because a name was not defined."""
    if setup is None:
        return True
    try:
        exec(setup, namespace)
    except NameError:
        return False
    except Exception as error:
        raise BadTests(f"the tests' setup raises {type(error).__name__}: {error}") from error
    return True


def _run_late_setup(setup: types.CodeType, namespace: _Namespace, process: Process) -> None:
    """Run a setup that needs names from the program. The program may cause the setup to fail."""
    try:
        exec(setup, namespace)
    except Exception as error:  # noqa: BLE001  the setup runs the program, which may raise anything
        if process.not_loaded is None:
            process.not_loaded = error
            words = f"the tests' setup fails on this program: {type(error).__name__}"
            process.raised = error, ProgramFailure("error", "runtime", words)
    except Ended:
        pass
    process.classes = _classes(namespace)


def _classes(namespace: _Namespace) -> dict[str, type]:
    return {
        x.__name__: x
        for x in namespace.values()
        if isinstance(x, type) and x.__module__ == namespace["__name__"]
    }


def _take(names: list[str], process: Process) -> _Namespace:
    try:
        found = process.ask("names", names) if names else {}
    except (Exception, Ended):  # noqa: BLE001  each test that uses these names sees the error again
        found = {name: Stub(process, 0) for name in names}
    return {name: found[name] for name in names if name in found} if type(found) is dict else {}


def _entry(expression: str, process: Process) -> Any:
    try:
        return process.ask("evaluate", expression)
    except Exception as error:  # noqa: BLE001  every test that calls the entry raises it again
        process.not_loaded = error
    except Ended:
        pass
    return Stub(process, 0)


_CHUNK = 1 << 16
_LONGEST_REPORT = 1 << 14
_TOLERANCE = 1e-6
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=e))(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def _judge_stdio(plan: Mapping[str, Any], process: Process, record: Record) -> None:
    """Run each case as one test. All cases share the time limits."""
    for text, expected in plan["cases"]:
        with process.clock:
            if process.cpu >= process.limits["cpu"] or process.clock.left() <= 0:
                record.first = record.first or TIMEOUT
                record.add_missed(1)
                continue
            output, failure = _run(process, text, process.limits["answer"])
        right = failure is None and _same_output(output.decode(errors="replace"), expected)
        record.add_case(failure, right=right)


def _run(process: Process, text: str, longest: int) -> tuple[bytes, ProgramFailure | None]:
    stdin = os.memfd_create("stdin")
    with os.fdopen(os.dup(stdin), "wb") as file:
        file.write(text.encode(errors="surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    ours, stdout = os.pipe()
    process.spawn(stdin, stdout)
    try:
        bounds = {ours: longest, process.replies: _LONGEST_REPORT}
        output, report = _collect(bounds, process.clock.left)
    except (FrameTooLate, TooLong) as error:
        process.reap(b"K")
        return b"", TIMEOUT if isinstance(error, FrameTooLate) else TOO_LONG
    finally:
        os.close(ours)
    return output, _failure(process, report)


def _collect(bounds: Mapping[int, int], left: Left) -> list[bytes]:
    """Read several pipes until all are closed, and return their contents in order."""
    read = {fd: bytearray() for fd in bounds}
    poll = select.poll()
    for fd in bounds:
        poll.register(fd, select.POLLIN)
    open_fds = set(bounds)
    while open_fds:
        seconds = left()
        if seconds <= 0:
            raise FrameTooLate
        for fd, _ in poll.poll(seconds * 1000):
            data = os.read(fd, _CHUNK)
            if not data:
                poll.unregister(fd)
                open_fds.remove(fd)
            read[fd] += data
            if len(read[fd]) > bounds[fd]:
                raise TooLong
    return [bytes(data) for data in read.values()]


def _failure(process: Process, report: bytes) -> ProgramFailure | None:
    """Return the failure of a program that has closed its pipes. None: no failure."""
    status, killed, memory = process.reap(b"W")
    if report:
        try:
            verb, *parts = json.loads(report[4:])
            raised = reported_exception(verb, parts)
        except Exception:  # noqa: BLE001  the program caused it, whatever it is
            return FOUL
        return raised[1] if raised else FOUL
    if killed:
        return FOUL
    return process.cause(status, memory) if status else None


def _same_output(actual: str, expected: str) -> bool:
    """Return True if two outputs are equal by the rules of `Stdio`."""
    lines, wanted = _lines(actual), _lines(expected)
    return len(lines) == len(wanted) and all(map(_same_line, lines, wanted))


def _lines(text: str) -> list[str]:
    stripped = (line.rstrip() for line in text.splitlines())
    return [line for line in stripped if line]


def _same_line(line: str, wanted: str) -> bool:
    if line == wanted:
        return True
    tokens, others = line.split(), wanted.split()
    return len(tokens) == len(others) and all(map(_same_token, tokens, others))


def _same_token(token: str, wanted: str) -> bool:
    if token == wanted:
        return True
    if not (_FLOAT.fullmatch(token) and _FLOAT.fullmatch(wanted)):
        return False
    number, other = float(token), float(wanted)
    near = abs(number - other) <= _TOLERANCE * max(1.0, abs(other))
    return near and isfinite(number) and isfinite(other)


_JUDGES = {
    "asserts": _judge_asserts,
    "check": _judge_check,
    "calls": _judge_calls,
    "stdio": _judge_stdio,
}
