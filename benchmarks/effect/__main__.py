"""Tests the effect and the account on forked runs: what did the policy learn from each reward?

    python -m benchmarks.effect run [--warm-starts 11-20] [--jobs 2]
    python -m benchmarks.effect tables
    python -m benchmarks.effect cost
    python -m benchmarks.effect pretrained [--small] [--output FOLDER]

`run` trains a policy for each warm start, task and estimator, forks it as `benchmarks.forks` does,
and predicts each reward's effect at every fork, from gradients of fresh samples and by simpler
numbers. It also adds up what each reward changed in windows of 10 and 20 steps. Each run writes one
record, and a record that exists is not run again. `tables` prints the hypotheses, as registered in
research/preregistration/2026-11-29-effect.md, and the other results. `cost` measures the CPU
time that the account adds to a training run. `pretrained` measures cost, effect and forks on
SmolLM2-135M (`benchmarks.effect._pretrained`).
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from benchmarks.effect._cost import print_costs
from benchmarks.effect._pretrained import run_pretrained
from benchmarks.effect._tables import print_tables
from benchmarks.effect._unit import record_unit
from benchmarks.forks.__main__ import ESTIMATORS
from benchmarks.forks._tasks import FORKED

RECORDS = Path(__file__).parents[2] / "research" / "effect"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("run", "tables", "cost", "pretrained"))
    parser.add_argument("--warm-starts", default="11-20", help="default: %(default)s")
    parser.add_argument("--tasks", nargs="+", default=list(FORKED), choices=list(FORKED))
    parser.add_argument("--jobs", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("runs/effect"), help="%(default)s")
    parser.add_argument("--records", type=Path, default=RECORDS, help="default: %(default)s")
    parser.add_argument("--small", action="store_true", help="pretrained: sizes for a CPU")
    given = parser.parse_args()
    if given.command == "tables":
        print_tables(given.records)
        return
    if given.command == "cost":
        print_costs()
        return
    if given.command == "pretrained":
        run_pretrained(given.output.absolute(), small=given.small)
        return
    first, last = map(int, given.warm_starts.split("-"))
    units = product(range(first, last + 1), given.tasks, ESTIMATORS)
    folder = given.output.absolute()
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda unit: _run(unit, folder, given.records), units))


def _run(unit: tuple[int, str, str], folder: Path, records: Path) -> None:
    """Run a unit in its own process, unless its record exists."""
    warm_start, task, estimator = unit
    record = records / f"{task}-{warm_start}-{estimator}.json"
    if record.exists():
        return
    begun = time.monotonic()
    process = get_context("spawn").Process(target=record_unit, args=(unit, folder, record))
    process.start()
    process.join()
    print(
        record.stem, f"exit code {process.exitcode}, {time.monotonic() - begun:.0f} s", flush=True
    )


if __name__ == "__main__":
    main()
