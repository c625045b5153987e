"""Forks runs: what does a reward change from here on, and does its influence share tell?

    python -m benchmarks.forks run [--warm-starts 1-10] [--jobs 2] [--output FOLDER]
    python -m benchmarks.forks tables [--records FOLDER]
    python -m benchmarks.forks time

`run` trains a policy for each task, warm start and estimator, forks it at three points for each
reward with the weight 0, and measures both on fresh samples. Each run writes one record, and a
record that exists is not run again. `tables` prints the results of the records, and `time` what a
fork costs. What is run and what is tested is registered in
research/preregistration/2026-11-27-forks.md.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from benchmarks.forks._tasks import FORKED

RECORDS = Path(__file__).parents[2] / "research" / "forks"

ESTIMATORS = ("grpo", "gdpo")

WITH_SWITCHES = 5
"""The warm starts up to this one also have forks with a fresh optimizer and without clipping."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "unit", "tables", "time"))
    parser.add_argument("unit", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--warm-starts", default="1-10", help="default: %(default)s")
    parser.add_argument("--tasks", default=",".join(FORKED), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("runs/forks"), help="%(default)s")
    parser.add_argument("--records", type=Path, default=RECORDS, help="default: %(default)s")
    options = parser.parse_args()
    if options.what == "tables":
        from benchmarks.forks._tables import print_tables

        print_tables(options.records)
    elif options.what == "time":
        from benchmarks.forks._unit import print_times

        print_times(options.output.absolute())
    elif options.what == "unit":
        _unit(options)
    else:
        first, last = map(int, options.warm_starts.split("-"))
        starts = range(first, last + 1)
        units = [
            (task, warm_start, estimator)
            for warm_start, task, estimator in product(starts, options.tasks.split(","), ESTIMATORS)
        ]
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda unit: _start(unit, options), units))


def _start(unit: tuple[str, int, str], options: argparse.Namespace) -> None:
    name = "-".join(map(str, unit))
    if (options.records / f"{name}.json").exists():
        return
    begun = time.monotonic()
    paths = ["--output", str(options.output), "--records", str(options.records)]
    command = [sys.executable, "-m", "benchmarks.forks", "unit", *map(str, unit), *paths]
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / f"{name}.log").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    print(f"{name}: exit code {code}, {time.monotonic() - begun:.0f} s", flush=True)


def _unit(options: argparse.Namespace) -> None:
    from benchmarks.forks._unit import run_unit, write_record

    task, warm_start, estimator = options.unit
    switches = int(warm_start) <= WITH_SWITCHES
    folder = options.output.absolute()
    record = run_unit(task, int(warm_start), estimator, folder, switches=switches)
    write_record(record, options.records / f"{task}-{warm_start}-{estimator}.json")


if __name__ == "__main__":
    main()
