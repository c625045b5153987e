"""Runs the grader process, the only process in the sandbox that reads the tests."""

import hashlib
import json
import marshal
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from ._confine import address_space
from ._frames import read_frame, write_frame
from ._judge import judge_asserts, judge_calls, judge_check
from ._process import BadTests, Failure, Process
from ._record import Record
from ._seccomp import die_with_parent
from ._stdio import judge_stdio

_LONGEST_ORDER = 1 << 16
_LONGEST_TESTS = 1 << 30
_TO_JUDGE = 1.0
"""Time after a program's limits until its grader counts as hung, in seconds."""
_RECURSIONS = 1000
_LONGEST_MESSAGE = 500
_OWN_MEMORY = 2 << 30
_JUDGES = {"asserts": judge_asserts, "check": judge_check, "calls": judge_calls}


def become_grader(jobs: int, verdicts: int, control: socket.socket) -> NoReturn:
    """Turn this new process into a grader, which reads tests, runs them and writes verdicts.

    When the server announces a job over `control`, the next message in the pipe `jobs` contains the
    job's tests.
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
        verdict = _grade_one(jobs, process)
        process.close()
        write_frame(verdicts, json.dumps(verdict).encode())
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        control.send(b"D")
    os._exit(0)


def _grade_one(jobs: int, process: Process) -> dict[str, Any]:
    if process.limits["functions"]:
        process.spawn()
    job = marshal.loads(read_frame(jobs, _LONGEST_TESTS))
    # The random numbers of the tests are the same in every run, and the program cannot know them.
    random.seed(hashlib.sha256(job["plan"]).digest())
    sys.setrecursionlimit(_RECURSIONS)
    return {"nonce": job["nonce"], **_grade(marshal.loads(job["plan"]), process)}


def _grade(plan: Mapping[str, Any], process: Process) -> dict[str, Any]:
    record = Record(process)
    lost = None
    try:
        if plan["kind"] == "stdio":
            judge_stdio(plan, process, record)
        else:
            _JUDGES[plan["kind"]](plan, process, record)
    except BadTests as error:
        return {"bad": str(error)}
    except BaseException as error:  # noqa: BLE001  the program returned a too large or deep value
        lost = f"{type(error).__name__}: {error}"
        record.first = record.first or Failure("killed", "killed", "its answers cannot be graded")
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
