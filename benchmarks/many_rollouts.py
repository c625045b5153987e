"""Measures time and peak memory of `gdpo.gdpo` on one large batch, in this process.

    python benchmarks/many_rollouts.py --prompts 62500

Prints JSON: median CPU seconds with float32 torch tensors, and the peak memory in addition to the
rewards, as a multiple of their size. Memory is measured with torch (growth of the resident set;
Linux only, else null) and with NumPy (tracemalloc), which always computes in float64.

`estimator_speed.py` starts this script with two settings of glibc's allocator. They separate
arithmetic from requesting memory, and arrays in use from freed memory that the allocator keeps.
"""

import argparse
import json
import statistics
import time
import tracemalloc
from pathlib import Path

import numpy as np
import torch

import gdpo

SAMPLES, REWARDS = 16, 8
WEIGHTS = [1.0] * REWARDS


def seconds(rewards, rounds):
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        gdpo.gdpo(rewards, WEIGHTS)
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def resident(field):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{field}:")[1].split()[0])


def torch_peak(rewards):
    forget = Path("/proc/self/clear_refs")
    if not forget.exists():
        return None
    before = resident("VmRSS")
    forget.write_text("5")
    gdpo.gdpo(rewards, WEIGHTS)
    return (resident("VmHWM") - before) / rewards.nbytes


def numpy_peak(rewards):
    tracemalloc.start()
    gdpo.gdpo(rewards, WEIGHTS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / rewards.nbytes


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=62_500, help=f"of {SAMPLES} rollouts each")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rewards = np.random.default_rng(0).random((options.prompts, SAMPLES, REWARDS), np.float32)
    tensor, few = torch.from_numpy(rewards), rewards[:4].copy()
    gdpo.gdpo(torch.from_numpy(few), WEIGHTS)
    gdpo.gdpo(few, WEIGHTS)
    peaks = {
        "torch float32": torch_peak(tensor),
        "NumPy float32": numpy_peak(rewards),
        "NumPy float64": numpy_peak(rewards.astype(np.float64)),
    }
    print(json.dumps({"seconds": seconds(tensor, options.rounds), "peaks": peaks}))


if __name__ == "__main__":
    main()
