"""Compares the sandbox's programs per second with a new box and interpreter per program.

    GDPO_DATA=data python benchmarks/sandbox_speed.py [--rounds 5] [--workers 2]

Both variants run reference solutions of MBPP with their three asserts, one per worker at a time, in
the same box with the same limits and filter of system calls. The fresh variant does less: its
programs share a process with their tests. Task 123 is excluded, because it computes for seconds,
and so are 367 and 927, which only the sandbox can run. Rounds alternate between the variants.
Figures are medians over rounds, and the ratio is the median of the ratios within a round, so that
other load on the machine affects both variants. Prints a row of a Markdown table.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gdpo.lab.sandbox import Asserts, Limits, Sandbox, SandboxError
from gdpo.lab.sandbox.backends import launcher
from gdpo.lab.tasks import load_rows
from gdpo.lab.tasks.coding import mbpp_tests

PER_ROUND = {"sandbox": 971, "fresh": 100}
LEFT_OUT = (123, 367, 927)
LIMITS = Limits()

FRESH = """
import json, resource, sys
sys.path.insert(0, "/sandbox")
from _box._confine import install, program_filter
job = json.load(sys.stdin)
for name, value in job["limits"].items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
install(program_filter())
names = {}
exec(job["setup"], names)
exec(job["source"], names)
for statement in job["statements"]:
    exec(statement, names)
print("passed")
"""


def read_jobs():
    rows = load_rows(Path(os.environ["GDPO_DATA"]) / "code" / "mbpp.jsonl.gz")
    jobs = [
        {"source": row["code"], **mbpp_tests(row)} for row in rows if row["task_id"] not in LEFT_OUT
    ]
    random.Random(0).shuffle(jobs)
    return jobs


def in_sandbox(sandbox, jobs):
    """Return programs per second in the sandbox."""
    converted = [
        (job["source"], Asserts(tuple(job["statements"]), job["setup"]), LIMITS) for job in jobs
    ]
    start = time.perf_counter()
    verdicts = sandbox.run_many(converted)
    taken = time.perf_counter() - start
    assert all(verdict.pass_all for verdict in verdicts)
    return len(jobs) / taken


def fresh(command, jobs, workers):
    """Return programs per second with a new box and interpreter for each."""
    mib = 1 << 20
    limits = {
        "CPU": int(LIMITS.cpu_seconds),
        "AS": (LIMITS.memory_mb + 64) * mib,
        "FSIZE": LIMITS.file_mb * mib,
        "NOFILE": LIMITS.open_files,
        "CORE": 0,
    }

    def run(job):
        return subprocess.run(
            command, input=json.dumps({**job, "limits": limits}).encode(), capture_output=True
        )

    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        ended = list(threads.map(run, jobs))
    taken = time.perf_counter() - start
    assert all(process.stdout == b"passed\n" for process in ended), ended[0].stderr.decode()
    return len(jobs) / taken


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if "GDPO_DATA" not in os.environ:
        sys.exit("skipped: set GDPO_DATA to a folder that contains code/mbpp.jsonl.gz")
    try:
        sandbox = Sandbox(workers=options.workers)
    except SandboxError as error:
        sys.exit(f"skipped: {error}")
    jobs = read_jobs()
    rates = {"sandbox": [], "fresh": []}
    with sandbox:
        command = [*launcher(sandbox.backend)().command[:-1], FRESH]
        in_sandbox(sandbox, jobs[:50])
        for i in range(options.rounds):
            for variant in ("sandbox", "fresh") if i % 2 == 0 else ("fresh", "sandbox"):
                rate = (
                    in_sandbox(sandbox, jobs[: PER_ROUND["sandbox"]])
                    if variant == "sandbox"
                    else fresh(command, jobs[: PER_ROUND["fresh"]], options.workers)
                )
                rates[variant].append(rate)
    ratios = [a / b for a, b in zip(rates["sandbox"], rates["fresh"], strict=True)]
    print("| backend | workers | cores | sandbox, programs/s | fresh box, programs/s | ratio |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {sandbox.backend}, Python {platform.python_version()} | {options.workers} | "
        f"{os.cpu_count()} | {statistics.median(rates['sandbox']):.0f} | "
        f"{statistics.median(rates['fresh']):.1f} | {statistics.median(ratios):.1f} |"
    )


if __name__ == "__main__":
    main()
