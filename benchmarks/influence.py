"""Is a reward that is ignored found, and is one that is not left alone? And are the shares right?

    python -m benchmarks.influence shares      # one number at every cut into steps
    python -m benchmarks.influence coverage    # of the 95 % interval
    python -m benchmarks.influence alarms      # healthy runs, at every step
    python -m benchmarks.influence found       # runs with a reward that is ignored
    python -m benchmarks.influence constant    # rewards that vary in few groups, in small batches

Rewards are simulated: normal or 0/1, groups of 8, advantages by the estimators themselves. Each run
is made group by group and then cut into steps of 1, 4, 16 and 64 groups.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gdpo.advantages import gdpo, grpo
from gdpo.diagnostics import Thresholds
from gdpo.diagnostics._findings import influence_findings
from gdpo.diagnostics.influence import Influence, group_sums
from gdpo.diagnostics.watch import LASTING

CUTS = (1, 4, 16, 64)
GROUPS = 800
EQUAL = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Scenario:
    """Rewards of a run, `[group, sample, reward]`, and what makes advantages of them."""

    make: Callable[[np.random.Generator, int], np.ndarray]
    estimator: Callable = grpo
    weights: tuple[float, ...] = EQUAL
    later: tuple[float, ...] | None = None
    """Weights of the second half of the run."""

    def steps(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rewards, advantages and weights of every group."""
        groups = GROUPS
        rewards = self.make(np.random.default_rng(seed), groups)
        weights = np.broadcast_to(np.array(self.weights), (groups, rewards.shape[-1])).copy()
        if self.later is not None:
            weights[groups // 2 :] = self.later
        halves = (
            [slice(0, groups // 2), slice(groups // 2, groups)] if self.later else [slice(None)]
        )
        advantages = np.concatenate(
            [self.estimator(rewards[half], weights[half][0]) for half in halves]
        )
        return rewards, advantages, weights


def normal(random, groups, *, std=EQUAL, mix=None, samples=8):
    values = random.standard_normal((groups, samples, len(std)))
    if mix is not None:
        values = values @ np.linalg.cholesky(np.array(mix)).T
    return values * np.array(std)


def binary(random, groups, *, rates, samples=8):
    return (random.random((groups, samples, len(rates))) < np.array(rates)).astype(float)


def heavy(random, groups):
    return random.standard_t(3, (groups, 8, 3))


def rare(random, groups):
    """The third reward varies in 3 % of the groups."""
    values = binary(random, groups, rates=(0.5, 0.5, 0.5))
    values[..., 2] *= random.random((groups, 1)) < 0.03
    return values


def saturating(random, groups):
    """The third reward is learnt: its rate goes from a half to 0.9999."""
    values = binary(random, groups, rates=(0.5, 0.5, 0.0))
    rate = 1 - 0.5 * np.exp(-np.linspace(0, 8.5, groups))
    values[..., 2] = random.random((groups, 8)) < rate[:, None]
    return values


def binary_beside(random, groups):
    values = normal(random, groups, std=(3.0, 3.0, 1.0))
    values[..., 2] = 0.15 * binary(random, groups, rates=(0.5,))[..., 0]
    return values


MIXED = ((1, 0.6, -0.4), (0.6, 1, 0), (-0.4, 0, 1))
OPPOSED = ((1, -0.7, 0), (-0.7, 1, 0), (0, 0, 1))

HEALTHY = {
    "equal, gdpo": Scenario(normal, gdpo),
    "equal": Scenario(normal),
    "0 or 1": Scenario(partial(binary, rates=(0.5, 0.3, 0.7))),
    "rare: varies in 3 %": Scenario(rare),
    "saturating": Scenario(saturating),
    "saturating, gdpo": Scenario(saturating, gdpo),
    "related .6, -.4": Scenario(partial(normal, mix=MIXED)),
    "related -.7": Scenario(partial(normal, mix=OPPOSED)),
    "heavy tails": Scenario(heavy),
    "ten rewards": Scenario(partial(normal, std=(1.0,) * 10), weights=(1.0,) * 10),
    "std ratio .45": Scenario(partial(normal, std=(1.0, 1.0, 0.45))),
    "std ratio .5, groups of 4": Scenario(partial(normal, std=(1.0, 1.0, 0.5), samples=4)),
    "weights change": Scenario(normal, weights=(1, 1, 0.3), later=(0.5, 1, 1)),
}

IGNORED = {
    "1,000 times smaller": Scenario(partial(normal, std=(10.0, 10.0, 0.01))),
    "30 times smaller": Scenario(partial(normal, std=(30.0, 30.0, 1.0))),
    "12 times smaller": Scenario(partial(normal, std=(12.0, 12.0, 1.0))),
    "0 or 0.15 beside std 3": Scenario(binary_beside),
    "10 times smaller": Scenario(partial(normal, std=(10.0, 10.0, 1.0))),
    "5 times smaller: about the threshold": Scenario(partial(normal, std=(5.0, 5.0, 1.0))),
}

COVERED = {
    **{
        name: HEALTHY[name]
        for name in (
            *("equal", "related .6, -.4", "related -.7", "rare: varies in 3 %", "saturating"),
            *("heavy tails", "ten rewards", "weights change"),
        )
    },
    "1,000 times smaller": IGNORED["1,000 times smaller"],
    "two ignored": Scenario(partial(normal, std=(30.0, 1.0, 0.5))),
}


def by_group(scenario: Scenario, seed: int) -> np.ndarray:
    """The sums of each group of a run, `[sum, group, reward]`."""
    rewards, advantages, weights = scenario.steps(seed)
    std = np.std(rewards, axis=1, ddof=1)
    std[np.ptp(rewards, axis=1) == 0] = 0
    centred = rewards - np.mean(rewards, axis=1, keepdims=True)
    z = np.where(std[:, None] > 0, centred / np.where(std > 0, std, 1)[:, None], 0.0)
    half = len(rewards) // 2
    parts = [
        group_sums(advantages[part], z[part], std[part], weights[part][:1], rewards[part])
        for part in (slice(None, half), slice(half, None))
    ]
    return np.concatenate(parts, axis=1)


def in_steps(sums: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sums, the products and the groups that they are of, for each step of so many groups."""
    count = sums.shape[1] // size
    groups = sums[:, : count * size].reshape(len(sums), count, size, -1)
    apart, factor, sampled = groups[0], size / max(size - 1, 1), np.full(count, size)
    apart = apart - apart.mean(axis=1, keepdims=True)
    if size == 1:
        apart, factor, sampled = np.diff(groups[0], axis=0, prepend=groups[0][:1]), 0.5, sampled + 0
        sampled[0] = 0
    products = np.einsum("tgk,tgl->tkl", apart, apart) * factor
    return groups.sum(axis=2), products, sampled


def cut(sums: np.ndarray, size: int) -> Influence:
    """A run that was cut into steps of so many groups, added up."""
    steps, products, sampled = in_steps(sums, size)
    return _added(steps.sum(axis=1), products.sum(axis=0), sampled.sum(), steps.shape[1] * size)


def _added(table: np.ndarray, products: np.ndarray, sampled: int, groups: int) -> Influence:
    names = tuple(f"r{k}" for k in range(table.shape[-1]))
    return Influence(names, groups, table, products, int(sampled))


def first_finding(sums: np.ndarray, size: int) -> tuple[int | None, set[str]]:
    """The first step at which anything is found, counted from 1, and what is found in the run.

    The rule is asked at every step, over the last groups and over all. Its sums are cumulative
    here; where its formula comes near to a finding, the rule itself is called.
    """
    limits = Thresholds()
    before = -(-limits.window // size)
    totals = [
        np.cumsum(each, axis=axis)
        for each, axis in zip(in_steps(sums, size), (1, 0, 0), strict=True)
    ]
    windows = [each.copy() for each in totals]
    windows[0][:, before:] -= totals[0][:, :-before]
    for window, total in zip(windows[1:], totals[1:], strict=True):
        window[before:] -= total[:-before]
    first, found = set(), set()
    for (table, products, sampled), most in ((windows, before), (totals, len(totals[2]))):
        for place in np.flatnonzero(_near(table, limits)):
            held = min(place + 1, most) * size
            window = _added(table[:, place], products[place], sampled[place], held)
            for finding in influence_findings(window, limits):
                first.add(int(place) + 1)
                found.add(f"{finding.kind.value} {finding.rewards[0]}")
    return min(first, default=None), found


def _near(table: np.ndarray, limits: Thresholds) -> np.ndarray:
    every = Influence((), 1, table.reshape(len(table), -1), np.zeros((0, 0)), 0)
    with np.errstate(all="ignore"):
        error = 1 / np.sqrt(every.sums.degrees)
        most = limits.ignored * every.asked_correlations + 1e-6
        near = every.correlations + limits.standard_errors_ignored * error < most
        near |= every.correlations < -limits.standard_errors * error + 1e-6
    return near.reshape(table.shape[1:]).any(axis=1)


def shares(runs: int) -> None:
    """The share of a reward that is 1,000 times smaller, at every cut."""
    scenario = IGNORED["1,000 times smaller"]
    every = [by_group(scenario, seed) for seed in range(runs)]
    _row("groups per step", CUTS, head=True)
    for seed, groups in enumerate(every[:3]):
        totals = [cut(groups, size) for size in CUTS]
        _row(
            f"seed {seed}",
            [f"{100 * t.shares[2]:.2f} % ± {100 * t.margins[2]:.1f}" for t in totals],
        )
    found = np.array([cut(groups, 16).shares[2] for groups in every])
    print(
        f"{runs} seeds: mean of the size {100 * np.mean(np.abs(found)):.2f} %, mean with its sign "
        f"{100 * np.mean(found):.2f} %, above 1 % in {100 * np.mean(np.abs(found) > 0.01):.0f} %"
    )


def coverage(runs: int) -> None:
    """How often the 95 % interval of each share holds the share of 300 other runs together."""
    cuts = (1, 4, 16)
    _row("scenario", [f"{size} per step" for size in cuts], head=True)
    for name, scenario in COVERED.items():
        truth = cut(
            np.concatenate([by_group(scenario, 10_000 + i) for i in range(300)], axis=1), 16
        )
        inside = {size: [] for size in cuts}
        for seed in range(runs):
            groups = by_group(scenario, seed)
            for size in cuts:
                total = cut(groups, size)
                inside[size].append(np.abs(total.shares - truth.shares) <= total.margins)
        cells = (100 * np.mean(inside[size], axis=0) for size in cuts)
        _row(name, [f"{cell.mean():.1f} ({cell.min():.0f} to {cell.max():.0f})" for cell in cells])


def alarms(runs: int) -> None:
    """Healthy runs in which anything is found at any step."""
    _row("healthy", [f"{size} per step" for size in CUTS], head=True)
    for name, scenario in HEALTHY.items():
        found = {size: [] for size in CUTS}
        for seed in range(runs):
            groups = by_group(scenario, seed)
            for size in CUTS:
                found[size].append(first_finding(groups, size)[1])
        cells = []
        for size in CUTS:
            kinds = sorted({each for one in found[size] for each in one})
            told = f" ({', '.join(kinds)})" if kinds else ""
            cells.append(f"{sum(map(bool, found[size]))} of {runs}{told}")
        _row(name, cells)


def detection(runs: int) -> None:
    """The step at which an ignored reward is found: median, and 95 % of the runs."""
    _row("ignored", [f"{size} per step" for size in CUTS], head=True)
    for name, scenario in IGNORED.items():
        firsts = {size: [] for size in CUTS}
        for seed in range(runs):
            groups = by_group(scenario, seed)
            for size in CUTS:
                firsts[size].append(first_finding(groups, size)[0])
        cells = []
        for known in ([first for first in firsts[size] if first] for size in CUTS):
            median, most = np.quantile(known, [0.5, 0.95]) if known else (np.nan, np.nan)
            cells.append(f"{len(known)} of {runs}: {median:.0f} ({most:.0f})")
        _row(name, cells)


def constant(runs: int) -> None:
    """Runs of 200 steps in which a reward that varies in some of its groups counts as constant."""
    limits, steps, sizes = Thresholds(), 200, (1, 2, 3, 6)
    _row("varies in", [f"{size} per step" for size in sizes], head=True)
    for rate in (0.0, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
        cells = []
        for size in sizes:
            varies = np.random.default_rng(0).random((runs, steps, size)) < rate
            first = _first_constant(varies.sum(axis=2), size, limits)
            known = first[first > 0]
            step = f", from step {np.min(known)}" if len(known) else ""
            cells.append(f"{len(known)} of {runs}{step}")
        _row(f"{100 * rate:.0f} % of the groups", cells)


def _first_constant(varying: np.ndarray, size: int, limits: Thresholds) -> np.ndarray:
    """The step of the first warning of each run, or 0, from the varying groups of each step."""
    before = -(-limits.window // size)
    first, streak = np.zeros(len(varying), int), np.zeros(len(varying), int)
    for step in range(1, varying.shape[1] + 1):
        streak = np.where(1 - varying[:, step - 1] / size >= limits.zero_variance, streak + 1, 0)
        window = varying[:, max(0, step - before) : step]
        groups = window.shape[1] * size
        share = 1 - window.sum(axis=1) / groups
        due = (streak >= LASTING) & (share >= limits.zero_variance)
        if groups >= limits.groups_over_steps:
            first = np.where(due & (first == 0), step, first)
    return first


def _row(name: str, cells: Iterable[object], *, head: bool = False) -> None:
    cells = [str(cell) for cell in cells]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if head:
        print("|---|" + "---|" * len(cells))


TABLES = {
    "shares": shares,
    "coverage": coverage,
    "alarms": alarms,
    "found": detection,
    "constant": constant,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    TABLES[options.table](options.runs)


if __name__ == "__main__":
    main()
