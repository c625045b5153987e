"""Measures time and memory of finding near-duplicates, by kind of data.

    python benchmarks/near_duplicates.py [--rows 100000]

Measures CPU seconds of one thread, so that other load on the machine has little effect. Seed 0.

- `different`: 20 to 80 words out of 20,000, frequent words more often. Every tenth row repeats an
  earlier row except for its last word.
- `templates`: 100 texts of 60 words, with two words replaced by numbers.
- `one template`: the same with a single text.
"""

import argparse
import multiprocessing
import random
import resource
import time

from gdpo.lab.tasks import Problem, near_duplicates

KINDS = ("different", "templates", "one template")


def words(rng: random.Random, count: int) -> list[str]:
    return [f"w{int(20_000 * rng.random() ** 3)}" for _ in range(count)]


def texts(kind: str, rows: int) -> list[list[str]]:
    rng = random.Random(0)
    templates = [words(rng, 60) for _ in range(1 if kind == "one template" else 100)]
    made: list[list[str]] = []
    for i in range(rows):
        if kind != "different":
            text = list(rng.choice(templates))
            for _ in range(2):
                text[rng.randrange(60)] = str(rng.randrange(1000))
        elif i % 10 == 9:
            text = [*rng.choice(made)[:-1], "last"]
        else:
            text = words(rng, rng.randint(20, 80))
        made.append(text)
    return made


def measure(kind: str, rows: int) -> str:
    made = [" ".join(text) for text in texts(kind, rows)]
    samples = [Problem([{"role": "user", "content": text}], {}) for text in made]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    found = sum(other is not None for other in near_duplicates(samples))
    seconds = time.process_time() - start
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    return f"| {kind} | {rows:,} | {found:,} | {seconds:.1f} | {more:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    print("| data | rows | near-duplicates | CPU seconds | GiB |\n|---|---|---|---|---|")
    for kind in KINDS:  # one process each, so that memory is measured separately
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(measure, (kind, rows)), flush=True)


if __name__ == "__main__":
    main()
