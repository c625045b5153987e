"""Measures the speed of gdpo's estimators and of other frameworks' own code, in one process.

    python benchmarks/estimator_speed.py --peers-python PATH --nemo-rl FOLDER

Prints one Markdown table. Times are medians of CPU seconds of one thread, which other work on the
machine does not affect. Input: float32 torch tensors on the CPU, uniformly random rewards, seed 0,
all weights 1. Estimators that are compared alternate, in one process and with the same torch. A
framework that cannot be imported is skipped, with a message.

TRL is not timed: its rule is a part of `GRPOTrainer._generate_and_score_completions`, which cannot
be called without generating.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from peers.frameworks import (
    FRAMEWORKS,
    Batch,
    add_options,
    present,
    quietly,
    report,
    run_in_peers_python,
)

import gdpo
from gdpo.advantages import ESTIMATORS, turn_gdpo

NOT_TIMED = ["TRL"]
SLOW = {"verl": 5, "NeMo-RL": 3, "NeMo-RL, its default": 3}
"""Rounds for frameworks that take seconds."""

SIZE = (1024, 16, 3)
"""Prompts, rollouts per prompt, rewards: 16,384 rollouts."""

RESPONSE_TOKENS = 1024

OPTIONS = {
    "sa_mrpo": {"low": [0.0] * 3, "high": [1.0] * 3},
    "saw": {"low": [0.0] * 3},
    "constrained_grpo": {"multipliers": [float("nan"), 1.0, 0.5]},
}
"""Required options of estimators."""


RETURN_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**34),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**30),
}
"""Settings of glibc's allocator. They have no effect elsewhere."""


@dataclass(frozen=True)
class Row:
    what: str
    size: str
    seconds: float
    rounds: int
    note: str = ""

    def __str__(self):
        time_taken = formatted(self.seconds)
        return f"| {self.what} | {self.size} | {time_taken} | {self.rounds} | {self.note} |"


def formatted(seconds):
    for unit, name in [(1, "s"), (1e-3, "ms")]:
        if seconds >= unit:
            return f"{seconds / unit:.2f} {name}"
    return f"{seconds * 1e6:.0f} µs"


def two_digits(ratio):
    return f"{float(f'{ratio:.2g}'):,g}"


def medians(runs, rounds):
    """Return the median CPU seconds of each function. The functions are called alternately."""
    seconds = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def random_rewards(prompts, samples, rewards):
    return torch.rand(prompts, samples, rewards, generator=torch.Generator().manual_seed(0))


def in_words(prompts, samples, rewards):
    return f"{prompts} × {samples} × {rewards}"


def against_frameworks(size, found, rounds):
    """Time gdpo and the frameworks on one batch: fast ones alternately, slow ones separately."""
    prompts, samples, rewards = size
    flat = random_rewards(*size).reshape(-1, rewards)
    batch = Batch(flat, [samples] * prompts, [1.0] * rewards, tokens=RESPONSE_TOKENS)
    with quietly():
        runs = {name: f.adapter(batch) for name, (f, _) in found.items() if name not in NOT_TIMED}
    fast = {name: run for name, run in runs.items() if name not in SLOW}
    report(f"timing {', '.join(fast)} on {in_words(*size)}")
    seconds = medians(fast, rounds)
    for name in [name for name in runs if name in SLOW]:
        report(f"timing {name} on {in_words(*size)}, {SLOW[name]} rounds")
        seconds |= medians({name: runs[name]}, SLOW[name])
    for name in runs:
        ratio = "" if name == "gdpo" else f"{two_digits(seconds[name] / seconds['gdpo'])} × gdpo"
        what = f"GDPO in {name} ({found[name][1]})"
        yield Row(what, in_words(*size), seconds[name], SLOW.get(name, rounds), ratio)


def every_estimator(rounds):
    rewards, weights = random_rewards(*SIZE), [1.0] * SIZE[2]
    for name, estimator in ESTIMATORS.items():
        run = partial(estimator, rewards, weights, **OPTIONS.get(name, {}))
        report(f"timing {name}")
        try:
            seconds = medians({name: run}, rounds)
        except (TypeError, gdpo.GdpoError) as error:
            report(f"skipped {name}: {error}")
            continue
        yield Row(f"`{name}`", in_words(*SIZE), seconds[name], rounds)


def of_turns(rounds):
    """Time `turn_gdpo`, and its advantages before scaling in NumPy, on float64 arrays."""
    size = (2048, 8, 8, 3)
    rng = np.random.default_rng(0)
    rewards, turns = rng.random(size), rng.integers(1, size[2], size[:2], endpoint=True)
    report("timing turn_gdpo")
    runs = {
        "`turn_gdpo`": lambda: turn_gdpo(rewards, [1.0] * size[3], turns=turns),
        "the same in NumPy, unchecked and before scaling": lambda: unscaled(rewards, turns),
    }
    for name, seconds in medians(runs, rounds).items():
        yield Row(name, "2048 × 8 × 8 turns × 3", seconds, rounds)


def unscaled(rewards, turns):
    there = (np.arange(rewards.shape[2]) < turns[..., None])[..., None]
    to_go = np.cumsum((rewards * there)[:, :, ::-1], axis=2)[:, :, ::-1]
    alive = np.maximum(there.sum(axis=1, keepdims=True), 1)
    a = to_go - to_go.sum(axis=1, keepdims=True) / alive
    a[:, :, 0] *= alive[:, :, 0] / np.maximum(alive[:, :, 0] - 1, 1)
    for turn in range(1, rewards.shape[2]):
        a[:, :, turn] += a[:, :, turn - 1] / alive[:, :, turn]
    return a * there


def many_rollouts(rounds):
    """Time and measure memory from 125 thousand to two million rollouts."""
    for prompts in (7_812, 15_625, 31_250, 62_500, 125_000):
        report(f"timing gdpo on {in_words(prompts, 16, 8)}")
        plain = alone(prompts, rounds, {})
        kept = alone(prompts, rounds, KEEP_FREED_MEMORY)
        returned = alone(prompts, 1, RETURN_FREED_MEMORY)
        peaks = [f"{peak:.1f} ({on})" for on, peak in returned["peaks"].items() if peak]
        note = (
            f"{kept['seconds'] / prompts / 16 * 1e9:.0f} ns per rollout without page faults; "
            f"peak memory in addition to the input, × input: {', '.join(peaks)}"
        )
        yield Row("`gdpo`", in_words(prompts, 16, 8), plain["seconds"], rounds, note)


def alone(prompts, rounds, environment):
    script = Path(__file__).with_name("many_rollouts.py")
    done = subprocess.run(
        [sys.executable, str(script), "--prompts", str(prompts), "--rounds", str(rounds)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def diagnosis(rounds):
    from gdpo.diagnostics import diagnose

    rewards, names = random_rewards(*SIZE), [f"reward_{k}" for k in range(SIZE[2])]
    report("timing diagnose")
    seconds = medians({"diagnose": lambda: diagnose(rewards, None, names)}, rounds)
    yield Row("`diagnose`, one full diagnosis", in_words(*SIZE), seconds["diagnose"], rounds)


def machine():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")


def header(found):
    versions = ", ".join(f"{name} {v}" for name, (_, v) in found.items() if "default" not in name)
    return (
        f"{versions}; torch {torch.__version__}, Python {platform.python_version()}; "
        f"{machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread."
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=20, help="rounds for fast code. Default: 20")
    options = parser.parse_args()
    run_in_peers_python(options)
    torch.set_num_threads(1)
    found = present([f for f in FRAMEWORKS if f.name not in NOT_TIMED])
    print(header(found), end="\n\n")
    print("| what | prompts × rollouts × rewards | median | rounds |  |\n|---|---|---|---|---|")
    sections = [
        against_frameworks(SIZE, found, options.rounds),
        against_frameworks((64, 16, 3), found, options.rounds),
        many_rollouts(min(5, options.rounds)),
        every_estimator(options.rounds),
        of_turns(options.rounds),
        diagnosis(options.rounds),
    ]
    for section in sections:
        for row in section:
            print(row, flush=True)


if __name__ == "__main__":
    main()
