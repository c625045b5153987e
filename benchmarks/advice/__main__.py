"""Follows the verdict of `gdpo analyze` in trainings, and shows what it gained or lost.

    python -m benchmarks.advice run              # 26 scripts from 5 warm starts, two hours
    python -m benchmarks.advice run --scripts "judge to 10" --warm-starts 7 8
    python -m benchmarks.advice tables           # the first tables of research/advice.md

Each script trains 40 steps with GRPO, as users would write it. `gdpo analyze` reads its rollouts,
and the setting of the verdict is followed, from there on and from the start, beside the script as
it was. research/preregistration/2026-11-29-advice.md says what is measured, and
2026-11-29-advice-again.md repeats it from the warm starts 7 to 11.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.advice._scenarios import SCENARIOS
from benchmarks.advice._tables import print_tables
from benchmarks.advice._unit import run_unit

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "research" / "advice.jsonl"


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, if it exists."""
    if file.exists():
        yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def run(scripts: Sequence[str], warm_starts: Sequence[int], file: Path, *, jobs: int) -> None:
    """Run the units whose records are missing, and add each record to the file."""
    done = {(record["scenario"], record["seed"]) for record in read(file)}
    units = [(script, seed) for seed in warm_starts for script in scripts]
    left = [unit for unit in units if unit not in done]
    with TemporaryDirectory() as folder, get_context("spawn").Pool(jobs) as pool:
        for record in pool.imap_unordered(partial(run_unit, folder=Path(folder)), left):
            text = json.dumps(record, ensure_ascii=False)
            short = json.loads(text, parse_float=lambda number: round(float(number), 4))
            with file.open("a", encoding="utf-8") as records:
                records.write(f"{json.dumps(short, ensure_ascii=False)}\n")
            print(record["scenario"], record["seed"], record["sentence"], flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("run", "tables"))
    parser.add_argument("--scripts", nargs="+", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--warm-starts", nargs="+", type=int, default=[2, 3, 4, 5, 6])
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.command == "run":
        run(given.scripts, given.warm_starts, given.records, jobs=given.jobs)
    print_tables([each for each in read(given.records) if each["seed"] in given.warm_starts])


if __name__ == "__main__":
    main()
