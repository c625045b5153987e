"""Time and peak memory of reading rollouts: 100 parquet files as TRL writes them, 4 rewards.

    python benchmarks/read_rollouts.py --rows 100000 --rows 1000000 --rows 10000000

Makes the files (chat messages; 16 samples a prompt; about 400 characters of prompt and 200 of
completion a rollout) in a temporary folder, reads each size in a process of its own, and prints
JSON: seconds of the wall until the first step is there and until the last, the import included;
seconds of the CPU; the peak of the resident set (Linux and macOS). With `--diagnose`, each step is
given to `gdpo.diagnostics.diagnose` as well. With `--command`, it is `gdpo analyze` that reads, its
page included, with what follows `--command` as further options; then the first is the first line
that it prints. With `--lines`, the files are verl's lines of JSON.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES, SAMPLES = 100, 16
REWARDS = ("correctness", "format", "length", "style")


def messages(role, texts):
    struct = pa.StructArray.from_arrays([pa.array([role] * len(texts)), texts], ["role", "content"])
    return pa.ListArray.from_arrays(pa.array(np.arange(len(texts) + 1), pa.int32()), struct)


def write(folder, rows, lines):
    rng = np.random.default_rng(0)
    per_file = rows // FILES // SAMPLES * SAMPLES
    answers = pa.array([f"answer {i} " + "so it is, " * 20 for i in range(2000)])
    for step in range(1, FILES + 1):
        first = step * per_file
        questions = [
            f"question {first + i} " + "what is it? " * 32 for i in range(per_file // SAMPLES)
        ]
        columns = {
            "step": np.full(per_file, step),
            "prompt": messages("user", pa.array(questions).take(np.arange(per_file) // SAMPLES)),
            "completion": messages("assistant", answers.take(rng.integers(0, 2000, per_file))),
            **{name: rng.integers(0, 5, per_file) / 4 for name in REWARDS},
            "advantage": rng.standard_normal(per_file),
        }
        if lines:
            write_lines(folder / f"{step}.jsonl", step, questions, columns)
        else:
            pq.write_table(pa.table(columns), folder / f"completions_{step:05d}.parquet")


def write_lines(path, step, questions, columns):
    with path.open("w") as file:
        for i, score in enumerate(columns["advantage"]):
            record = {
                "input": questions[i // SAMPLES],
                "output": "so it is, " * 20,
                "gts": None,
                "score": score,
                "step": step,
                **{name: columns[name][i] for name in REWARDS},
            }
            file.write(json.dumps(record) + "\n")


def read(folder, diagnosed):
    start = time.perf_counter()
    from gdpo.diagnostics import diagnose
    from gdpo.rollouts.readers import read_rollout_files

    first, steps = None, 0
    reading = read_rollout_files(folder)
    for table in reading:
        steps += 1
        if diagnosed:
            arrays = table.grouped()
            diagnose(arrays.rewards, arrays.weights, arrays.names, advantages=arrays.advantages)
        first = first or time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    scale = 1 if sys.platform == "darwin" else 1024
    return {
        "rows": reading.report.read,
        "steps": steps,
        "groups": reading.report.groups,
        "first_step_seconds": round(first, 3),
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_mb": round(usage.ru_maxrss * scale / 1e6, 1),
    }


def run_command(folder, options):
    page = folder.with_suffix(".html")
    command = [sys.executable, "-m", "gdpo", "analyze", str(folder), "--output", str(page)]
    start = time.perf_counter()
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    first = time.perf_counter() - start
    lines = process.stdout.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, lines
    scale = 1 if sys.platform == "darwin" else 1024
    return {
        "rows": lines[1],
        "first_line_seconds": round(first, 3),
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_mb": round(usage.ru_maxrss * scale / 1e6, 1),
        "page_kb": round(page.stat().st_size / 1e3),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, action="append", help="a size; may be repeated")
    parser.add_argument("--diagnose", action="store_true", help="and diagnose every step")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="time gdpo analyze")
    parser.add_argument("--lines", action="store_true", help="of JSON, as verl writes them")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        print(json.dumps(read(Path(options.folder), options.diagnose)))
        return
    for rows in options.rows or [100_000, 1_000_000, 10_000_000]:
        with tempfile.TemporaryDirectory() as folder:
            dump = Path(folder, "run")
            dump.mkdir()
            write(dump, rows, options.lines)
            if options.command is not None:
                print(json.dumps(run_command(dump, options.command)), flush=True)
                continue
            more = ["--diagnose"] if options.diagnose else []
            subprocess.run([sys.executable, __file__, "--folder", str(dump), *more], check=True)


if __name__ == "__main__":
    main()
