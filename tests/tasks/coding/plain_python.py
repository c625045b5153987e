"""Runs a program and its tests in plain Python, in one process, as an oracle for the sandbox.

It is given the project's own data and small edits of them only, and has no other wall than time and
memory limits. Run as a script, it reads jobs from standard input, one JSON object per line, and
writes for each one whether every test passed.
"""

import json
import os
import resource
import subprocess
import sys
from contextlib import suppress

CPU_SECONDS, MEMORY = 2, 1 << 30


def passes(jobs):
    """Whether every test of each job passes; a job is what a row's reader returns, and `source`."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", __file__],
        input="".join(json.dumps(job) + "\n" for job in jobs),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.split()]


def _main():
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_status(job))
        sys.stdout.write(json.dumps(os.waitpid(child, 0)[1] == 0) + "\n")
        sys.stdout.flush()


def _status(job):
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    names = {"__name__": "program"}
    try:
        with suppress(NameError):  # two rows of MBPP build their setup on the program's names
            exec(job["setup"], names)
        exec(job["source"], names)
        tests = dict(names)
        exec(job["setup"], tests)  # what it defines is the tests' own, whatever the program did
        if job["kind"] == "asserts":
            for statement in job["statements"]:
                exec(statement, tests)
        else:
            exec(job["code"], tests)
            tests["check"](eval(job["entry_point"], names))
    except BaseException:  # noqa: BLE001
        return 1
    return 0


if __name__ == "__main__":
    _main()
