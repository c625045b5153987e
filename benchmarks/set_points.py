"""Measures whether requested influence shares are met, on simulated rewards.

    python benchmarks/set_points.py [--seeds 5]

Prints Markdown tables. The share of a reward is its sum of A z over the second half of the steps,
as a part of the sum over all rewards. There are 8 samples per group.

- Grid: two independent normal rewards with the same request. The second varies in a part of the
  groups. Cells: its share in percent, mean ± 95 % (Student's t over the seeds), and in how many of
  these steps its status is `governed`. `*`: in most of these steps, one of the two rewards is at
  its bound. Runs have 4,000 groups, and at least 150 steps.
- Cases: the largest error of a share in points, for 200 steps. With fixed weights, these are in
  proportion to the request.
  - third in 15 %: three rewards, request 0.5 / 0.3 / 0.2, the third varies in 15 % of the groups.
  - c = -0.6, c = 0.6: the first two of three rewards have this correlation. Request as above.
  - every tenth step: two rewards with the same request, and the second varies only in these.
  - beyond: two rewards with correlation 0.6, and a request of 0.9 / 0.1, which is not attainable.
- Saturating: two binary rewards with the same request. The success rate of the first rises from 0.5
  to 0.99 in 40 steps. With release its range is declared, without release it is not.
"""

import argparse
import platform
from collections import Counter

import numpy as np

from gdpo._student import student_quantile
from gdpo.advantages import AdvantageRule
from gdpo.advantages.arrays import rounded
from gdpo.advantages.stages import SAMPLES, standardize

ESTIMATORS = ("gdpo", "mo_grpo")
GROUPS = (1, 4, 8, 16, 64, 256)
RATES = (0.02, 0.05, 0.1, 0.3, 1)
LEAST_STEPS, LEAST_GROUPS = 150, 4_000
STEPS_OF_CASES = 200


def normal(rng, groups, *, live, correlation=0.0, every=1, step=0):
    rewards = rng.standard_normal((groups, 8, len(live)))
    second = np.sqrt(1 - correlation**2) * rewards[..., 1]
    rewards[..., 1] = correlation * rewards[..., 0] + second
    for k, rate in enumerate(live):
        rewards[rng.random(groups) >= rate, :, k] = 0.0
    if step % every:
        rewards[..., -1] = 0.0
    return rewards


def run(estimator, request, groups, seed, *, steps, fixed=False, **case):
    """Return the shares over the second half of a run, and the statuses of each reward in it."""
    rng = np.random.default_rng(seed)
    names = [str(k) for k in range(len(request))]
    options = {} if fixed else {"influence": dict(zip(names, request, strict=True))}
    rule = AdvantageRule(estimator, names, options)
    weights = request if fixed else [1.0] * len(request)
    influence, statuses = np.zeros(len(request)), []
    for step in range(steps):
        rewards = normal(rng, groups, step=step, **case)
        if step >= steps // 2:
            z = standardize(rounded(rewards), over=SAMPLES).values
            influence += np.einsum("ps,psk->k", rule(rewards, weights), z)
        rule.update(rewards, weights)
        if step >= steps // 2:
            statuses.append([point.status for point in rule.set_points])
    return influence / np.sum(np.abs(influence)), statuses


def interval(values):
    """Return mean and half-width of the 95 % interval over the seeds, in percent, as text."""
    values = 100 * np.asarray(values)
    half = student_quantile(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.1f} ± {half:.1f}"


def cell(estimator, groups, rate, seeds):
    steps = max(LEAST_STEPS, LEAST_GROUPS // groups)
    runs = [run(estimator, [0.5, 0.5], groups, seed, steps=steps, live=(1, rate)) for seed in seeds]
    statuses = [each for _, found in runs for each in found]
    governed = np.mean([rare == "governed" for _, rare in statuses])
    bound = np.mean(["at its bound" in each for each in statuses]) > 0.5
    return f"{interval([shares[1] for shares, _ in runs])}{'*' if bound else ''}, {governed:.0%}"


def grid(seeds):
    for estimator in ESTIMATORS:
        heads = [f"{groups} groups per step" for groups in GROUPS]
        print(f"| `{estimator}`: varies in | {' | '.join(heads)} |")
        print("|---" * (len(GROUPS) + 1) + "|")
        for rate in RATES:
            cells = [cell(estimator, groups, rate, seeds) for groups in GROUPS]
            print(f"| {rate:.0%} | {' | '.join(cells)} |", flush=True)
        print()


THREE, TWO = (0.5, 0.3, 0.2), (0.5, 0.5)
CASES = {
    "third in 15 %": (THREE, {"live": (1, 1, 0.15)}),
    "c = -0.6": (THREE, {"live": (1, 1, 1), "correlation": -0.6}),
    "c = 0.6": (THREE, {"live": (1, 1, 1), "correlation": 0.6}),
    "every tenth step": (TWO, {"live": (1, 1), "every": 10}),
    "beyond": ((0.9, 0.1), {"live": (1, 1), "correlation": 0.6}),
}


def cases(seeds):
    print("| rewards | groups per step | fixed weights | requested shares | statuses |")
    print("|---|---|---|---|---|")
    for name, (request, case) in CASES.items():
        for groups in (4, 16, 64):
            before, after = (
                [
                    run("gdpo", request, groups, seed, steps=STEPS_OF_CASES, fixed=fixed, **case)
                    for seed in seeds
                ]
                for fixed in (True, False)
            )
            errors = [
                interval([np.max(np.abs(shares - request)) for shares, _ in runs])
                for runs in (before, after)
            ]
            words = Counter(word for _, found in after for each in found for word in each)
            most = ", ".join(f"{word} {n / words.total():.0%}" for word, n in words.most_common(2))
            print(f"| {name} | {groups} | {errors[0]} | {errors[1]} | {most} |", flush=True)
    print()


def saturating(seeds):
    print("| weight of the saturated reward | step 20 | 40 | 60 | 100 |")
    print("|---|---|---|---|---|")
    for release in (True, False):
        weights = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            bounds = {"low": [0, 0], "high": [1, 1]} if release else {}
            rule = AdvantageRule("gdpo", ["0", "1"], {"influence": {"0": 1, "1": 1}}, **bounds)
            for step in range(101):
                weights.append(rule.weights_in_force([1.0, 1.0])[0])
                rates = [min(0.99, 0.5 + 0.49 * step / 40), 0.5]
                rule.update((rng.random((16, 8, 2)) < rates) * 1.0, [1.0, 1.0])
        at = np.mean(np.reshape(weights, (len(seeds), -1)), axis=0)
        cells = " | ".join(f"{at[step]:.2f}" for step in (20, 40, 60, 100))
        print(f"| {'with' if release else 'without'} release | {cells} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {len(seeds)} seeds\n")
    grid(seeds)
    cases(seeds)
    saturating(seeds)


if __name__ == "__main__":
    main()
