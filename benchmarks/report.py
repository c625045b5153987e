"""Measures time, peak memory and page size of `gdpo.lab.report.write_report` on synthetic runs.

    python benchmarks/report.py --runs 10 --steps 100 --rollouts 64

Prints JSON: seconds and CPU seconds to analyse the runs and write the page, peak resident memory
and the size of the page. The synthetic runs (half GRPO, half GDPO; groups of 8, prompts of 1,500
characters and completions of 1,000) are written to a temporary folder first, which is not measured.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gdpo.advantages import ESTIMATORS
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import ComparedRun, Experiment, Measured
from gdpo.lab.report import write_report
from gdpo.rollouts import Rollout, rollout_file, write_rollouts

LABELS = ("grpo", "gdpo")
REWARDS = (Measured("format", 0.0, 1.0, 1.0), Measured("correct", -3.0, 3.0, 1.0))
SAMPLES, PROMPT_CHARACTERS, COMPLETION_CHARACTERS = 8, 1500, 1000


def rewards_of(step, steps, rollouts, rng):
    """Return a binary format that is learned early and a graded correctness learned later."""
    done = step / steps
    shape = (rollouts // SAMPLES, SAMPLES)
    formatted = (rng.random(shape) < 0.1 + 0.85 * done).astype(float)
    correct = np.clip(rng.normal(-2 + 4 * done, 1.5, shape).round(1), -3, 3)
    return np.stack([formatted, correct], axis=-1)


def text(rng, length):
    words = rng.choice(["answer", "tool", "call", "think", "<name>", "42", "weather"], length // 5)
    return " ".join(words)[:length]


def write_step(folder, label, step, rewards, rng):
    weights = {reward.name: reward.weight for reward in REWARDS}
    advantages = ESTIMATORS[label](rewards, np.ones(len(REWARDS)))
    rollouts = []
    for group, values in enumerate(rewards):
        prompt = [{"role": "user", "content": text(rng, PROMPT_CHARACTERS)}]
        for sample, row in enumerate(values):
            answer = [{"role": "assistant", "content": text(rng, COMPLETION_CHARACTERS)}]
            rollouts.append(
                Rollout(
                    label,
                    step,
                    group,
                    sample,
                    prompt,
                    answer,
                    dict(zip(weights, row.tolist(), strict=True)),
                    weights,
                    float(advantages[group, sample]),
                    250,
                    "stop",
                )
            )
    write_rollouts(rollout_file(folder / "rollouts", step), rollouts)


def make(folder, runs, steps, rollouts):
    for number in range(runs):
        rng = np.random.default_rng(number)
        path = folder / f"run_{number}"
        means = []
        for step in range(1, steps + 1):
            rewards = rewards_of(step, steps, rollouts, rng)
            means.append(rewards.mean(axis=(0, 1)).tolist())
            write_step(path, LABELS[number % 2], step, rewards, rng)
        (path / "means.json").write_text(json.dumps(means))


def read(folder, runs, steps):
    every = []
    for number in range(runs):
        path = folder / f"run_{number}"
        means = np.array(json.loads((path / "means.json").read_text()))
        by_name = {reward.name: means[:, k] for k, reward in enumerate(REWARDS)}
        every.append(ComparedRun(LABELS[number % 2], number // 2, path, "finished", "", by_name))
    every.sort(key=lambda run: LABELS.index(run.label))
    seeds = tuple(range(runs // 2))
    return Experiment("synthetic", folder, LABELS, seeds, REWARDS, steps, tuple(every), 0.8)


def measure(folder, runs, steps):
    started, cpu = time.perf_counter(), time.process_time()
    file = folder / "report.html"
    write_report(analyse(read(folder, runs, steps)), file)
    return {
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "page_mb": round(file.stat().st_size / 1e6, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts per step")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.runs, given.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), given.runs, given.steps, given.rollouts)
        # A separate process, so that the memory is that of the report only.
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--measure", folder], check=True)


if __name__ == "__main__":
    main()
