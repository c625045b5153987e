"""Healthy batches, and how often they give a warning.

    python -m tests.diagnostics.healthy

prints the shares of docs/reference/diagnostics.md for single batches (two minutes).
"""

import sys
from collections import Counter

import numpy as np

from gdpo.diagnostics import diagnose
from gdpo.diagnostics.diagnosis import Severity

HEALTHY = {
    "two of 0 or 1": "bb",
    "three of 0 or 1": "bbb",
    "five of 0 or 1": "bbbbb",
    "three of 0 or 1, by difficulty": "ddd",
    "0 or 1, and graded": "bu",
    "in four units": "d3un",
}
"""Unrelated rewards: `b` is 1 at a rate of one half, `d` at one that differs by prompt
(Beta(2, 2)), `u` is uniform, `3` a whole number from -3 to 3, `n` normal, from 0 to 100."""

SIZES = ((4, 4), (8, 4), (16, 4), (8, 8), (32, 8), (64, 16))


def stacked(*rewards):
    """Rewards `[prompt, sample, reward]`, from an array for each reward."""
    return np.stack([np.asarray(reward, float) for reward in rewards], axis=-1)


def healthy(seed, prompts, samples, kinds):
    """Rewards `[prompt, sample, reward]`, and the lowest and the highest value of each."""
    random = np.random.default_rng(seed)
    size = (prompts, samples)
    makers = {
        "b": lambda: (random.random(size) < 0.5, 0, 1),
        "d": lambda: (random.random(size) < random.beta(2, 2, (prompts, 1)), 0, 1),
        "u": lambda: (random.random(size), 0, 1),
        "n": lambda: (np.clip(50 + 15 * random.standard_normal(size), 0, 100), 0, 100),
        "3": lambda: (random.integers(-3, 4, size), -3, 3),
    }
    columns, low, high = zip(*(makers[kind]() for kind in kinds), strict=True)
    return stacked(*columns), low, high


def false_alarms(which, prompts, samples, *, seeds):
    """Batches with a warning of each kind, and with any."""
    counts = Counter()
    for seed in seeds:
        rewards, low, high = healthy(seed, prompts, samples, HEALTHY[which])
        names = [f"r{k}" for k in range(len(low))]
        findings = diagnose(rewards, None, names, low=low, high=high).findings
        warnings = {f.kind.value for f in findings if f.severity is Severity.WARNING}
        counts.update(warnings | {"any"} if warnings else set())
    return counts


def main(seeds=range(1000)):
    sizes = [f"{prompts} x {samples}" for prompts, samples in SIZES]
    rows = [["rewards", *sizes], ["---"] * (len(sizes) + 1)]
    for which in HEALTHY:
        alarms = [false_alarms(which, *size, seeds=seeds)["any"] for size in SIZES]
        rows.append([which, *(f"{100 * alarm / len(seeds):.1f} %" for alarm in alarms)])
    sys.stdout.writelines(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
