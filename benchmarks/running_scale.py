"""Measures how near the running scale of GDPO comes to the expected scale, beside whole batches.

    python benchmarks/running_scale.py [--seeds 10] [--groups 6000]

Prints Markdown tables. The factor that multiplies the weighted sum is 1 / scale. Its error is the
root mean square of factor / expected factor - 1, over groups that are not zero-advantage groups.
The expected scale is computed from 200,000 groups (drift: 20,000 groups at each of 50 rates). There
are 3 rewards of weight 1 and 8 samples per group.

- normal: three independent normal rewards.
- binary: three binary rewards. The success rate of each prompt and reward is Beta(0.3, 0.3).
- rare: three binary rewards with a success rate of 2 %.
- drift: three binary rewards, whose success rate rises from 0.50 to 0.99 over the run. A scale
  that lags behind has an error here.

For "all groups count", zero-advantage groups count as groups of zeros, as in batch normalization.
Each scale is compared with its own expectation.
"""

import argparse
import platform
from functools import cache
from math import sqrt

import numpy as np

from gdpo import gdpo
from gdpo.advantages import RunningScale

WEIGHTS = (1.0, 1.0, 1.0)
SAMPLES = 8
EXPECTED_FROM = 200_000
HALF_LIVES = (32, 128, 512)
BATCHES = (16, 64, 512)
WARM_UP = (1, 4, 16)
CHECKED = 500
"""Number of groups of each case for which the class itself is executed."""

RATES = np.linspace(0.50, 0.99, 50)


def normal(rng, count):
    return rng.normal(size=(count, SAMPLES, 3))


def binary(rng, count):
    rates = rng.beta(0.3, 0.3, (count, 1, 3))
    return (rng.random((count, SAMPLES, 3)) < rates) * 1.0


def rare(rng, count):
    return (rng.random((count, SAMPLES, 3)) < 0.02) * 1.0


def drift(rng, count):
    rates = np.linspace(RATES[0], RATES[-1], count)[:, None, None]
    return (rng.random((count, SAMPLES, 3)) < rates) * 1.0


CASES = {"normal": normal, "binary": binary, "rare": rare, "drift": drift}


def mean_squares(rewards):
    """Return the mean square of the weighted sum of each group."""
    return (gdpo(rewards, WEIGHTS, scale=1.0) ** 2).mean(axis=1)


def root_mean(squares, *, counted):
    """Return the scale of these groups: over all of them, or without zero-advantage groups."""
    squares = squares if counted == "all" else squares[squares > 0]
    return sqrt(squares.mean())


@cache
def expectation(name, counted):
    """Return the expected scale. For `drift`, return one for each of `RATES`."""
    rng = np.random.default_rng(10_000)
    if name != "drift":
        return root_mean(mean_squares(CASES[name](rng, EXPECTED_FROM)), counted=counted)
    at_rates = [(rng.random((20_000, SAMPLES, 3)) < rate) * 1.0 for rate in RATES]
    return np.array([root_mean(mean_squares(each), counted=counted) for each in at_rates])


def expected(name, count, counted):
    """Return the expected scale at each of a run's groups."""
    found = expectation(name, counted)
    if name != "drift":
        return np.full(count, found)
    return np.interp(np.linspace(RATES[0], RATES[-1], count), RATES, found)


def running(squares, half_life, *, counted):
    """Return the running scale at each group, as `RunningScale` computes it (see `check`)."""
    keep, total, weight, values = 0.5 ** (1 / half_life), 0.0, 0.0, []
    for square in squares:
        if counted == "all" or square > 0:
            total, weight = keep * total + square, keep * weight + 1
        values.append(sqrt(total / weight) if weight else 0.0)
    return np.array(values)


def check(rewards, half_life):
    """Check that `RunningScale` gives the values of `running`."""
    scale, values = RunningScale(half_life), []
    for group in rewards:
        scale.update(group[None], WEIGHTS)
        values.append(scale.value)
    wanted = running(mean_squares(rewards), half_life, counted="own")
    np.testing.assert_allclose(values, wanted, rtol=1e-9)


def in_batches(squares, size):
    """Return the scale of the whole batch that each group is in (the last ones: no batch)."""
    whole = squares[: len(squares) // size * size].reshape(-1, size)
    return np.repeat(np.sqrt(whole.mean(axis=1)), size)


def error(scales, wanted, live):
    """Return the errors of the factors 1 / scale."""
    return wanted[: len(scales)][live[: len(scales)]] / scales[live[: len(scales)]] - 1


def shown(errors):
    joined = np.concatenate(errors)
    return f"{100 * np.sqrt((joined**2).mean()):.1f} %"


def rows(name, seeds, count):
    """Return the errors of a case by column: lists of arrays, one per seed."""
    found = {}
    own, theirs = expected(name, count, "own"), expected(name, count, "all")
    for seed in range(seeds):
        rewards = CASES[name](np.random.default_rng(seed), count)
        squares = mean_squares(rewards)
        live = squares > 0
        warm = live & (np.arange(count) >= (0 if name == "drift" else count // 2))
        first = np.flatnonzero(live)[: max(WARM_UP)]
        for half_life in HALF_LIVES:
            if seed == 0:
                check(rewards[:CHECKED], half_life)
            values = running(squares, half_life, counted="own")
            over_all = running(squares, half_life, counted="all")
            found.setdefault(("own", half_life), []).append(error(values, own, warm))
            found.setdefault(("all", half_life), []).append(error(over_all, theirs, warm))
            if half_life == 128:
                for kind, scales, wanted in (("own", values, own), ("all", over_all, theirs)):
                    for n in WARM_UP:
                        each = wanted[first[n - 1]] / scales[first[n - 1]] - 1
                        found.setdefault((kind, "group", n), []).append(np.array([each]))
                    found.setdefault((kind, "largest"), []).append(
                        np.sqrt(squares[first] / scales[first] ** 2).max()
                    )
        for size in BATCHES:
            whole = in_batches(squares, size)
            found.setdefault(("batch", size), []).append(error(whole, theirs, live))
    found["share"] = (own.mean() / theirs.mean()) ** -2
    return found


def print_table(header, lines):
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def main():
    parser = argparse.ArgumentParser(description="Measure the error of the running scale.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--groups", type=int, default=6_000, help="groups per run")
    options = parser.parse_args()
    print(
        f"{options.seeds} seeds of {options.groups:,} groups, numpy {np.__version__}, Python "
        f"{platform.python_version()}\n"
    )
    found = {name: rows(name, options.seeds, options.groups) for name in CASES}
    lives = [f"half-life {h}" for h in HALF_LIVES]
    print("Error of the factor: running scale, and batch normalization over whole batches\n")
    print_table(
        ["rewards", "groups that vary", *lives, *(f"batch of {b}" for b in BATCHES)],
        [
            [
                name,
                f"{100 * each['share']:.0f} %",
                *(shown(each["own", h]) for h in HALF_LIVES),
                *(shown(each["batch", b]) for b in BATCHES),
            ]
            for name, each in found.items()
        ],
    )
    print("The same if zero-advantage groups counted\n")
    print_table(
        ["rewards", *lives],
        [[name, *(shown(each["all", h]) for h in HALF_LIVES)] for name, each in found.items()],
    )
    print("The first groups with an advantage, half-life 128\n")
    print_table(
        [
            "rewards",
            "groups that count",
            *(f"error at {n}" for n in WARM_UP),
            "largest rms of a group",
        ],
        [
            [
                name,
                {"own": "without zero-advantage groups", "all": "all"}[kind],
                *(shown(each[kind, "group", n]) for n in WARM_UP),
                f"{max(each[kind, 'largest']):.1f}",
            ]
            for name, each in found.items()
            for kind in ("own", "all")
        ],
    )


if __name__ == "__main__":
    main()
