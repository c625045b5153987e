"""Runs a whole program for each input, in a new process, and compares its output."""

import json
import os
import re
import select
from collections.abc import Mapping
from math import isfinite
from typing import Any

from ._frames import Left, TooLate, TooLong
from ._process import FOUL, TIMEOUT, TOO_LONG, Failure, Process, reported_exception
from ._record import Record

_CHUNK = 1 << 16
_LONGEST_REPORT = 1 << 14
_TOLERANCE = 1e-6
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=e))(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def judge_stdio(plan: Mapping[str, Any], process: Process, record: Record) -> None:
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


def _run(process: Process, text: str, longest: int) -> tuple[bytes, Failure | None]:
    stdin = os.memfd_create("stdin")
    with os.fdopen(os.dup(stdin), "wb") as file:
        file.write(text.encode(errors="surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    ours, stdout = os.pipe()
    process.spawn(stdin, stdout)
    try:
        bounds = {ours: longest, process.replies: _LONGEST_REPORT}
        output, report = _collect(bounds, process.clock.left)
    except (TooLate, TooLong) as error:
        process.reap(b"K")
        return b"", TIMEOUT if isinstance(error, TooLate) else TOO_LONG
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
            raise TooLate
        for fd, _ in poll.poll(seconds * 1000):
            data = os.read(fd, _CHUNK)
            if not data:
                poll.unregister(fd)
                open_fds.remove(fd)
            read[fd] += data
            if len(read[fd]) > bounds[fd]:
                raise TooLong
    return [bytes(data) for data in read.values()]


def _failure(process: Process, report: bytes) -> Failure | None:
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
    """Return True if two outputs are equal.

    Trailing whitespace and empty lines are ignored. If two lines differ, their tokens are compared.
    Two numbers with a decimal point or an exponent may differ by 1e-6. Above 1, this tolerance is
    relative to the expected number.
    """
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
