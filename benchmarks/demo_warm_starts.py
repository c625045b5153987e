"""Runs the demo from several warm starts, and prints what holds over them.

    python -m benchmarks.demo_warm_starts runs/warm_starts --seeds 10 [--start common]

Each seed draws its own warm start, requests and samples. A seed takes 2 to 4 minutes on 2 cores.
Finished seeds are kept in the folder as JSON files, and are not run again. The unit of replication
is the warm start: all intervals are 95 % intervals of Student's t over warm starts.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import numpy as np
from benchmarks.demo._report import Curve
from benchmarks.demo.run import STARTS, DemoSettings, run_demo
from rich.console import Console

from gdpo._files import write_whole
from gdpo._student import paired_interval


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--start", choices=list(STARTS), default="rare")
    args = parser.parse_args()
    measured = [curves_of(args.folder, args.start, seed) for seed in range(args.seeds)]
    print(f"\n{args.start} start, seeds 0 to {args.seeds - 1}\n")
    print("\n".join([*each_warm_start(measured), "", *over_warm_starts(measured)]))


def curves_of(folder: Path, start: str, seed: int) -> Sequence[Curve]:
    """Return the curves of a seed. Run the demo if they are not in the folder yet."""
    run = folder / f"{start}-{seed}"
    kept = run.with_suffix(".json")
    if not kept.exists():
        shutil.rmtree(run, ignore_errors=True)  # a demo that was interrupted
        settings = DemoSettings(start=start, seed=seed)
        result = run_demo(Console(highlight=False), settings, output=run)
        if result.failed:
            raise SystemExit(f"seed {seed}: {', '.join(result.failed)} failed, see {run}")
        write_whole(kept, json.dumps([asdict(curve) for curve in result.curves]))
    return [Curve(**fields) for fields in json.loads(kept.read_text("utf-8"))]


def each_warm_start(measured: Sequence[Sequence[Curve]]) -> list[str]:
    """Return a Markdown table with the end, and the step that reached 80 %, of every curve."""
    names = [f"{curve.reward}, {curve.label.upper()}: end, step" for curve in measured[0]]
    rows = [
        [str(seed), *(f"{c.end:.2f}, {c.steps_to_threshold or 'never'}" for c in curves)]
        for seed, curves in enumerate(measured)
    ]
    return _markdown(["warm start", *names], rows)


def over_warm_starts(measured: Sequence[Sequence[Curve]]) -> list[str]:
    """Return a Markdown table with a row per curve, and one per difference between estimators."""
    rows: list[list[str]] = []
    places = range(len(measured[0]))
    for reward, of_reward in groupby(places, key=lambda place: measured[0][place].reward):
        ends = {}
        for place in of_reward:
            runs = [curves[place] for curves in measured]
            label = runs[0].label.upper()
            ends[label] = np.array([run.end for run in runs])
            steps = [run.steps_to_threshold for run in runs if run.steps_to_threshold]
            reached = f"{len(steps)} of {len(runs)}"
            when = f"{min(steps)} to {max(steps)}" if steps else "never"
            end = _interval(ends[label], np.zeros(len(runs)))
            rows.append([reward, label, reached, when, end])
        (one, first), (other, second) = ends.items()
        rows.append([reward, f"{other} − {one}", "", "", _interval(second, first)])
    return _markdown(["reward", "estimator", "reached 80 %", "at step", "end (interval)"], rows)


def _interval(ours: np.ndarray, theirs: np.ndarray) -> str:
    mean, low, high, _ = paired_interval(ours, theirs)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})".replace("-", "−")


def _markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heading, ["---"] * len(heading), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


if __name__ == "__main__":
    main()
