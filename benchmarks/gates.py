"""Compares what a closed gate gives: 0, or a missing reward.

    python -m benchmarks.gates groups    # how often the gated reward varies, and what it is worth
    python -m benchmarks.gates policy    # a policy that chooses among four answers, 10 seeds
    python -m benchmarks.gates length    # a policy that chooses only the length, 10 seeds

Two rewards of 0 or 1, `correct` and `short`, both with weight 1 unless `--weight` is given.
`short` is gated on `correct`.
"""

import argparse

import numpy as np
from benchmarks._shown import interval

from gdpo import gdpo
from gdpo.rewards import Gate, apply_gates

NAMES = ("correct", "short")
GATES = {
    "no gate": {},
    "zero": {"short": Gate("correct", 1)},
    "missing": {"short": Gate("correct", 1, "missing")},
}
SAMPLES = 8
ANSWERS = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], dtype=np.float64)
"""The rewards of the four answers: right and short, right and long, wrong and short, wrong and
long."""


def groups() -> None:
    """Print the table for 20,000 random groups. `short` is 1 in half of the answers."""
    print("right answers | gate | short varies | mean z of short: right minus wrong")
    for rate in (0.1, 0.5, 0.9):
        random = np.random.default_rng(0)
        rewards = (random.random((20_000, SAMPLES, 2)) < [rate, 0.5]).astype(float)
        right = rewards[..., 0] == 1
        for name, gates in GATES.items():
            gated = apply_gates(rewards, NAMES, gates)
            z = standardized(gated[..., 1])
            varies = np.mean(np.any(z != 0, axis=1))
            print(f"{rate:.0%} | {name} | {varies:.0%} | {z[right].mean() - z[~right].mean():+.2f}")


def standardized(values: np.ndarray) -> np.ndarray:
    """Return z within each group, and 0 where the value is missing or the group does not vary."""
    there = ~np.isnan(values)
    count = there.sum(axis=1, keepdims=True)
    centred = np.where(there, values, 0.0)
    centred -= centred.sum(axis=1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(there, centred, 0.0)
    std = np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1))
    return centred / np.where(std > 1e-12, std, np.inf)


def policy(seeds: int, steps: int) -> None:
    """Print the shares of right and of short answers after training, as mean ± 95 %."""
    starts = {
        "10 % right, half short": [0.05, 0.05, 0.45, 0.45],
        "10 % right, 5 % short": [0.005, 0.095, 0.045, 0.855],
        "short is mostly wrong": [0.01, 0.29, 0.60, 0.10],
    }
    print("start | gate | right | short among the right | short among the wrong")
    for start, shares in starts.items():
        for name, gates in GATES.items():
            ends = np.array([trained(np.log(shares), gates, seed, steps) for seed in range(seeds)])
            print(f"{start} | {name} | " + " | ".join(interval(column) for column in ends.T))


def trained(
    logits: np.ndarray, gates: dict[str, Gate], seed: int, steps: int
) -> tuple[float, float, float]:
    """Train a softmax policy with GDPO, and return its shares."""
    random, logits = np.random.default_rng(seed), logits.copy()
    for _ in range(steps):
        p = np.exp(logits - logits.max())
        p /= p.sum()
        chosen = random.choice(4, (16, SAMPLES), p=p)
        advantages = gdpo(apply_gates(ANSWERS[chosen], NAMES, gates), [1.0, 1.0])
        gradient = np.bincount(chosen.ravel(), advantages.ravel(), 4) - advantages.sum() * p
        logits += 0.1 * gradient / SAMPLES
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return p[:2].sum(), p[0] / p[:2].sum(), p[2] / p[2:].sum()


def length(seeds: int, steps: int, weight: float) -> None:
    """Print the share of short answers after training, as mean ± 95 %.

    Half of the answers are short at the start. An answer is right with a probability that depends
    on its length alone.
    """
    cases = [(0.1, 0.1), (0.5, 0.5), (0.9, 0.9), (0.05, 0.1), (0.35, 0.5), (0.7, 0.9)]
    print("right if short | right if long | gate | short answers after training")
    for case in cases:
        for name, gates in GATES.items():
            ends = [shortened(case, gates, seed, steps, weight) for seed in range(seeds)]
            print(f"{case[0]:.0%} | {case[1]:.0%} | {name} | {interval(np.array(ends))}")


def shortened(
    right_if: tuple[float, float], gates: dict[str, Gate], seed: int, steps: int, weight: float
) -> float:
    """Train the length of the answers with GDPO, and return the share of short answers."""
    random, logit = np.random.default_rng(seed), 0.0
    for _ in range(steps):
        share = 1 / (1 + np.exp(-logit))
        short = random.random((16, SAMPLES)) < share
        correct = random.random((16, SAMPLES)) < np.where(short, *right_if)
        rewards = np.stack([correct, short], axis=-1).astype(np.float64)
        advantages = gdpo(apply_gates(rewards, NAMES, gates), [1.0, weight])
        logit += 0.1 * float((advantages * (short - share)).sum()) / SAMPLES
    return float(1 / (1 + np.exp(-logit)))


def main() -> None:
    """Read the options and run a measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["groups", "policy", "length"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--weight", type=float, default=1.0, help="weight of short (length only)")
    options = parser.parse_args()
    if options.what == "groups":
        groups()
    elif options.what == "policy":
        policy(options.seeds, options.steps)
    else:
        length(options.seeds, options.steps, options.weight)


if __name__ == "__main__":
    main()
