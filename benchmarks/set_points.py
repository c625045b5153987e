"""Measures how far set-points are from the requested influence shares, on simulated rewards.

    python benchmarks/set_points.py [--seeds 10]

Prints Markdown tables. There are 8 samples per group, and the request is 0.5 / 0.3 / 0.2 unless
stated. The error is the largest difference between a share and its request. The true shares of each
step's weights are computed from 4,000 other groups.

- always vary: three independent normal rewards.
- third varies in 15 %: the third reward varies in 15 % of the groups.
- c = -0.6, c = 0.6: the first two rewards have this correlation.
- beyond: two rewards with correlation 0.6, and a request of 0.9 / 0.1, which is not attainable.
- saturating: two binary rewards, a request of 0.5 / 0.5. The success rate of the first rises from
  0.5 to 0.99 in 40 steps. With release its range is declared, without release it is not.
"""

import argparse
import platform

import numpy as np

from gdpo.advantages import AdvantageRule
from gdpo.advantages.arrays import rounded
from gdpo.advantages.stages import SAMPLES, standardize

GROUPS = (4, 16, 64)
STEPS = 101
EXPECTED_FROM = 4_000


def normal(rng, groups, *, live=(1, 1, 1), correlation=0.0):
    rewards = rng.standard_normal((groups, 8, len(live)))
    second = np.sqrt(1 - correlation**2) * rewards[..., 1]
    rewards[..., 1] = correlation * rewards[..., 0] + second
    for k, rate in enumerate(live):
        rewards[rng.random(groups) >= rate, :, k] = 0.0
    return rewards


def second_moments(rewards):
    z = standardize(rounded(rewards), over=SAMPLES).values.reshape(-1, rewards.shape[-1])
    return z.T @ z / len(z)


def errors(request, groups, seed, **case):
    """Return the error of the true shares at each step, and the rule at the end."""
    rng = np.random.default_rng(seed)
    names = [str(k) for k in range(len(request))]
    rule = AdvantageRule("gdpo", names, {"influence": dict(zip(names, request, strict=True))})
    ones, found = [1.0] * len(request), []
    m = second_moments(normal(np.random.default_rng(10**6), EXPECTED_FROM, **case))
    for _ in range(STEPS):
        influence = m @ np.array(rule.weights_in_force(ones))
        found.append(influence / np.sum(np.abs(influence)) - request)
        rule.update(normal(rng, groups, **case), ones)
    return np.array(found), rule


CASES = {
    "always vary": ((0.5, 0.3, 0.2), {}),
    "third varies in 15 %": ((0.5, 0.3, 0.2), {"live": (1, 1, 0.15)}),
    "c = -0.6": ((0.5, 0.3, 0.2), {"correlation": -0.6}),
    "c = 0.6": ((0.5, 0.3, 0.2), {"correlation": 0.6}),
    "beyond": ((0.9, 0.1), {"live": (1, 1), "correlation": 0.6}),
}


def table(seeds):
    print("| rewards | groups per step | w ∝ b | after 20 steps | pooled over 20 to 100 | status |")
    print("|---|---|---|---|---|---|")
    for name, (request, case) in CASES.items():
        for groups in GROUPS:
            runs = [errors(request, groups, seed, **case) for seed in range(seeds)]
            first, after, pooled = (
                np.mean([np.max(np.abs(part(found))) for found, _ in runs])
                for part in (lambda e: e[0], lambda e: e[20], lambda e: np.mean(e[20:], axis=0))
            )
            status = {point.status for _, rule in runs for point in rule.set_points}
            words = ", ".join(sorted({each.partition(":")[0] for each in status}))
            print(f"| {name} | {groups} | {first:.3f} | {after:.3f} | {pooled:.3f} | {words} |")


def saturating(seeds):
    print("| weight of the saturated reward | seeds | step 20 | 40 | 60 | 100 |")
    print("|---|---|---|---|---|---|")
    for release in (True, False):
        weights = []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            bounds = {"low": [0, 0], "high": [1, 1]} if release else {}
            rule = AdvantageRule("gdpo", ["0", "1"], {"influence": {"0": 1, "1": 1}}, **bounds)
            for step in range(STEPS):
                weights.append(rule.weights_in_force([1.0, 1.0])[0])
                rates = [min(0.99, 0.5 + 0.49 * step / 40), 0.5]
                rule.update((rng.random((16, 8, 2)) < rates) * 1.0, [1.0, 1.0])
        at = np.mean(np.reshape(weights, (seeds, STEPS)), axis=0)
        cells = " | ".join(f"{at[step]:.2f}" for step in (20, 40, 60, 100))
        print(f"| {'with' if release else 'without'} release | {seeds} | {cells} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {seeds} seeds\n")
    table(seeds)
    print()
    saturating(seeds)


if __name__ == "__main__":
    main()
