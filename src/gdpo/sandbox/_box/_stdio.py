"""Runs whole programs: input in, output out, a fresh process for each."""

import json
import os
import select
from collections.abc import Mapping
from typing import Any

from ._frames import Left, TooLate, TooLong
from ._output import same_output
from ._process import FOUL, TIMEOUT, TOO_LONG, Failure, Process, told_exception
from ._record import Record

_CHUNK = 1 << 16
_LONGEST_REPORT = 1 << 14


def judge_stdio(plan: Mapping[str, Any], process: Process, record: Record) -> None:
    """Each run is one test; all of them share the limits of time."""
    for text, expected in plan["cases"]:
        with process.clock:
            if process.cpu >= process.limits["cpu"] or process.clock.left() <= 0:
                record.first = record.first or TIMEOUT
                record.add_missed(1)
                continue
            output, failure = _run(process, text, process.limits["answer"])
        right = failure is None and same_output(output.decode(errors="replace"), expected)
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
    """Return everything that comes out of some pipes until all are closed, in their order."""
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
    """What went wrong in a program that has closed its pipes."""
    status, killed, memory = process.reap(b"W")
    if report:
        try:
            verb, *parts = json.loads(report[4:])
            raised = told_exception(verb, parts)
        except Exception:  # noqa: BLE001  whatever it is, the program wrote it
            return FOUL
        return raised[1] if raised else FOUL
    if killed:
        return FOUL
    return process.cause(status, memory) if status else None
