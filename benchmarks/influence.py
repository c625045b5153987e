"""Is a reward with less influence than its weight found, and a healthy one left alone?

    python -m benchmarks.influence shares      # one number at every cut into steps
    python -m benchmarks.influence coverage    # of the 95 % interval
    python -m benchmarks.influence alarms      # healthy runs, watched and finished
    python -m benchmarks.influence anytime     # runs at the limit, watched
    python -m benchmarks.influence delay       # the same for planted faults: when they are found
    python -m benchmarks.influence found       # single batches with a planted fault
    python -m benchmarks.influence constant    # rewards that vary in few groups, watched

Rewards are simulated. Advantages are those of the estimators themselves. A watched run is made
group by group and cut into steps; the blocks are tested by the rule itself (`noticed`), where the
plain interval of a block comes near to a limit. `check` compares this with `Watch`, step by step.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from gdpo.advantages import gdpo, grpo, grpo_no_std
from gdpo.diagnostics import Thresholds, Watch, diagnose
from gdpo.diagnostics.diagnosis import Kind, Range, Severity
from gdpo.diagnostics.effect import (
    CONSTANT,
    EFFECT,
    LEAST_GROUPS,
    OF_SUMS,
    Look,
    as_measured,
    described,
    findings_at_once,
    learned_rewards,
    noticed,
    severity_of,
)
from gdpo.diagnostics.influence import NORMAL_95, Batch, Influence, Sums, group_sums

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
    kind: Kind = Kind.IGNORED
    """Kind that is planted, or that would be false."""

    def steps(self, seed: int, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rewards, advantages and weights of every group."""
        rewards = self.make(np.random.default_rng(seed), groups)
        count = rewards.shape[-1]
        weights = np.broadcast_to(np.array(self.weights[:count]), (groups, count)).copy()
        half = groups // 2
        weights[half:] = weights[half:] if self.later is None else self.later
        parts = [slice(0, half), slice(half, groups)] if self.later else [slice(None)]
        advantages = [self.estimator(rewards[part], weights[part][0]) for part in parts]
        return rewards, np.concatenate(advantages), weights


def normal(random, groups, *, std=EQUAL, mix=None, samples=8):
    values = random.standard_normal((groups, samples, len(std)))
    if mix is not None:
        values = values @ np.linalg.cholesky(np.array(mix)).T
    return values * np.array(std)


def binary(random, groups, *, rates, samples=8):
    return (random.random((groups, samples, len(rates))) < np.array(rates)).astype(float)


def heavy(random, groups):
    return random.standard_t(3, (groups, 8, 3))


def rare(random, groups, *, varies, samples=8):
    """Rewards of 0 or 1 that vary in these shares of the groups, each in its own groups."""
    values = binary(random, groups, rates=(0.5,) * len(varies), samples=samples)
    return values * (random.random((groups, 1, len(varies))) < np.array(varies))


def pair(random, groups, *, rate, scale=1.0, samples=8):
    """A format of 0 or 1, beside a whole number from -3 to 3."""
    size = (groups, samples)
    return np.stack([random.random(size) < rate, scale * random.integers(-3, 4, size)], axis=-1)


def against(random, groups, *, std, varies=1.0):
    """A reward of this scale that is opposed to the other, in some of the groups."""
    values = random.standard_normal((groups, 8, 2)) * [0.6, 1]
    values[..., 0] -= 0.8 * values[..., 1]
    return (
        values
        * [std, 1]
        * np.stack([random.random((groups, 1)) < varies, np.ones((groups, 1))], axis=-1)
    )


def few(random, groups, *, varying, rates=(0.5, 0.2), samples=8):
    """Rewards of 0 or 1 that vary in a fixed number of groups, among groups that are all 0."""
    values = binary(random, groups, rates=rates, samples=samples)
    values[random.permutation(groups)[varying:]] = 0
    return values


def dominated(random, groups, *, every):
    """One group of each step of `every` groups has rewards that are 30 times as large."""
    sizes = np.where(np.arange(groups) % every, 1.0, 30.0)
    return random.standard_normal((groups, 8, 2)) * [1, 0.6] * sizes[:, None, None]


def sized(random, groups):
    """The rewards of each group have a size of its own, from a log-normal distribution."""
    sizes = np.exp(1.5 * random.standard_normal((groups, 1, 1)))
    return random.standard_normal((groups, 8, 2)) * [1, 0.6] * sizes


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


MIXED = ((1, 0.5, -0.3), (0.5, 1, 0), (-0.3, 0, 1))
OPPOSED = ((1, -0.7, 0), (-0.7, 1, 0), (0, 0, 1))

HEALTHY = {
    "equal, gdpo": Scenario(normal, gdpo),
    "equal": Scenario(normal),
    "0 or 1": Scenario(partial(binary, rates=(0.5, 0.3, 0.7))),
    "varies in 30 % of the groups": Scenario(partial(rare, varies=(0.3, 0.4, 0.4))),
    "saturating": Scenario(saturating),
    "saturating, gdpo": Scenario(saturating, gdpo),
    "related .5, -.3": Scenario(partial(normal, mix=MIXED)),
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
            *("equal", "related .5, -.3", "related -.7", "saturating"),
            *("heavy tails", "ten rewards", "weights change", "varies in 30 % of the groups"),
        )
    },
    "1,000 times smaller": IGNORED["1,000 times smaller"],
    "two ignored": Scenario(partial(normal, std=(30.0, 1.0, 0.5))),
}


FEW_GROUPS = {
    **{
        f"0 or 1, varies in {count} of 256 groups": (partial(few, varying=count), grpo, 256)
        for count in (5, 8, 12, 16, 20)
    },
    "0 or 1 at 0.8 and 0.5, groups of 16, 16 of 256": (
        partial(few, varying=16, rates=(0.8, 0.5), samples=16),
        grpo,
        256,
    ),
    "16 groups of normal rewards": (partial(normal, std=(1.0, 0.5)), grpo, 16),
    "16 groups with heavy tails": (heavy, grpo, 16),
    "varies in 6 % beside 100 %": (partial(rare, varies=(0.06, 1.0)), grpo, 128),
    "one of 8 groups dominates, 10 steps": (partial(dominated, every=8), grpo_no_std, 80),
    "one of 8 groups dominates, 20 steps": (partial(dominated, every=8), grpo_no_std, 160),
    "sizes of groups are log-normal": (sized, grpo_no_std, 256),
}
"""Rewards with few groups that have most of the influence, the estimator and the groups."""

EQUAL_PAIR = (1.0, 1.0)


def _two(make: Callable, kind: Kind = Kind.IGNORED, **options: object) -> Scenario:
    return Scenario(partial(make, **options), weights=EQUAL_PAIR, kind=kind)


AT_THE_LIMIT = {
    "quarter: std 0.1525": _two(normal, Kind.IGNORED, std=(0.1525, 1.0)),
    "quarter: varies in 3 % beside 20 %": _two(rare, Kind.IGNORED, varies=(0.03, 0.198)),
    "quarter: varies in 8 % beside 49 %": _two(rare, Kind.IGNORED, varies=(0.08, 0.488)),
    "quarter: 2 % of 0/1": _two(pair, Kind.IGNORED, rate=0.02, scale=0.094),
    "quarter: 10 % of 0/1, groups of 4": _two(pair, Kind.IGNORED, rate=0.1, scale=0.515, samples=4),
    "reversed": _two(against, Kind.REVERSED, std=0.781),
    "reversed: varies in 20 %": _two(against, Kind.REVERSED, std=0.636, varies=0.2),
    "constant in 90 %": _two(rare, Kind.CONSTANT, varies=(0.101, 0.2)),
}
"""Runs whose share is just on the healthy side of a limit, where false alarms are likeliest."""

PLANTED = {
    "std 0.02": _two(normal, Kind.IGNORED, std=(0.02, 1.0)),
    "varies in 5 %": _two(rare, Kind.IGNORED, varies=(0.05, 1.0)),
    "varies in 12 %": _two(rare, Kind.IGNORED, varies=(0.12, 1.0)),
    "10 % of 0/1, groups of 4": _two(pair, Kind.IGNORED, rate=0.1, samples=4),
    "2 % of 0/1": _two(pair, Kind.IGNORED, rate=0.02),
}


def missing(random, groups, *, rate):
    values = random.standard_normal((groups, 8, 2))
    values[random.random((groups, 8)) < rate, 0] = np.nan
    return values


def silent(random, groups, *, varies):
    """No reward varies in most of the groups."""
    return binary(random, groups, rates=(0.5, 0.5)) * (random.random((groups, 1, 1)) < varies)


PLANTED |= {
    "reversed": _two(against, Kind.REVERSED, std=0.5),
    "never varies": _two(rare, Kind.SATURATED, varies=(0.0, 1.0)),
    "varies in 3 %": _two(rare, Kind.SATURATED, varies=(0.03, 1.0)),
    "missing from 95 %": _two(missing, rate=0.95),
    "nothing varies in 97 %": _two(silent, Kind.NO_SIGNAL, varies=0.03),
}


def by_group(scenario: Scenario, seed: int, groups: int = GROUPS) -> np.ndarray:
    """The sums of each group of a run, `[sum, group, reward]`."""
    rewards, advantages, weights = scenario.steps(seed, groups)
    return _by_group(rewards, advantages, weights)


def _by_group(rewards: np.ndarray, advantages: np.ndarray, weights: np.ndarray) -> np.ndarray:
    batch = Batch.of(rewards, weights)
    return group_sums(advantages, batch.z, batch.std, batch.prompt_weights, batch.values)


def in_steps(sums: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The sums and the products of each step of so many groups."""
    count = sums.shape[1] // size
    groups = sums[:, : count * size].reshape(len(sums), count, size, -1)
    return groups.sum(axis=2), np.einsum("tgk,tgl->tkl", groups[0], groups[0])


def cut(sums: np.ndarray, size: int) -> Influence:
    """A run that was cut into steps of so many groups, added up."""
    steps, products = in_steps(sums, size)
    return _added(steps.sum(axis=1), products.sum(axis=0), steps.shape[1] * size)


def _added(table: np.ndarray, products: np.ndarray, groups: int) -> Influence:
    names = tuple(f"r{k}" for k in range(table.shape[-1]))
    return Influence(names, groups, Sums(*table), products)


class Reported(NamedTuple):
    """A warning of a watched run."""

    groups: int
    """Number of groups at which it is due."""
    kind: Kind
    reward: str
    share: float
    """Influence share that it quotes."""


def watched(sums: np.ndarray, size: int, ranges: dict[str, Range] | None = None) -> list[Reported]:
    """The warnings of a run that is cut into steps of so many groups, in order.

    What is noticed is measured on the next 64 groups, and dropped if they do not show it.
    Meanwhile, and if it is not worse than before, the reward is not noticed again. A reward that is
    learned in the last 64 groups is left out, as `Watch` does.
    """
    ranges, names = ranges or {}, [*((f"r{k}",) for k in range(sums.shape[-1])), ()]
    busy, worst = dict.fromkeys(names, 0), dict.fromkeys(names, 2 * _NONE)
    found = []
    for groups, may, block, look in sorted(_blocks(sums, size), key=lambda block: block[0]):
        due = groups + LEAST_GROUPS
        if due > sums.shape[1] or np.all(2 * may >= list(worst.values())):
            continue
        for each in noticed(shown_by := block(), look, ranges, Thresholds()):
            place = _place(each.kind, severity_of(each, shown_by, Thresholds()))
            if not each.sure or groups < busy[each.rewards] or place >= worst[each.rewards]:
                continue
            known = worst[each.rewards] < 2 * _NONE
            before = sums[:, groups - LEAST_GROUPS : groups]
            if (known or each.kind in EFFECT) and _is_learned(each.rewards, before, ranges):
                continue
            busy[each.rewards] = due
            measured = cut(sums[:, groups:due], size)
            shown = as_measured(each, measured, Thresholds())
            learned = each.kind in EFFECT and each.rewards[0] in learned_rewards(
                measured, ranges, Thresholds()
            )
            if shown is None or learned:
                continue
            finding = described(shown, measured, ranges, Thresholds())
            worst[each.rewards] = _place(finding.kind, finding.severity)
            if finding.severity is Severity.WARNING:
                share = finding.evidence.get("influence_share", np.nan)
                found.append(Reported(due, finding.kind, "".join(each.rewards), share))
    return found


_NONE = len(OF_SUMS)


def _place(kind: Kind, severity: Severity) -> int:
    return 2 * OF_SUMS.index(kind) + (severity is Severity.NOTE)


def _is_learned(rewards: tuple[str, ...], sums: np.ndarray, ranges: dict[str, Range]) -> bool:
    learned = learned_rewards(cut(sums, LEAST_GROUPS), ranges, Thresholds())
    return any(name in learned for name in rewards)


def _blocks(
    sums: np.ndarray, size: int
) -> Iterator[tuple[int, np.ndarray, Callable[[], Influence], Look]]:
    """The blocks that may show something: the groups at their end, `_near`, the sums, the test."""
    table, products = in_steps(sums, size)
    per, m, groups = LEAST_GROUPS // size, 0, LEAST_GROUPS
    while table.shape[1] >= per:
        count = table.shape[1] // per
        table, products = _merged(table, 1, per, count), _merged(products, 0, per, count)
        near = _near(table, products, groups)
        for i in np.flatnonzero(np.any(near < _NONE, axis=1)).tolist():
            block = partial(_added, table[:, i], products[i], groups)
            yield (i + 1) * groups, near[i], block, Look.at(m, i + 1)
        per, m, groups = 2, m + 1, 2 * groups


def _merged(values: np.ndarray, axis: int, per: int, count: int) -> np.ndarray:
    shape = values.shape
    kept = values[(slice(None),) * axis + (slice(0, count * per),)]
    return kept.reshape(*shape[:axis], count, per, *shape[axis + 1 :]).sum(axis=axis + 1)


def _near(table: np.ndarray, products: np.ndarray, groups: int) -> np.ndarray:
    """The worst kind that a block may show about each reward, and at the end about the batch.

    `_NONE` where no share is below its limit by two errors, and no reward hardly varies. Every test
    of a watched run asks for more.
    """
    limits, sums = Thresholds(), Sums(*table)
    u, signs = sums.influence, np.where(sums.weight < 0, -1.0, 1.0)
    with np.errstate(all="ignore"):
        raw = u / np.abs(u).sum(axis=1, keepdims=True)
        slopes = np.eye(u.shape[1]) - raw[:, :, None] * np.sign(u)[:, None, :]
        covariance = products - u[:, :, None] * u[:, None, :] / groups
        variance = np.einsum("bkl,blm,bkm->bk", slopes, covariance, slopes)
        most = signs * raw + 2 * np.sqrt(variance) / np.abs(u).sum(axis=1, keepdims=True)
        wanted = np.abs(sums.weight) / groups
        rarely = sums.live / np.maximum(sums.applies, 1) <= 1 - limits.zero_variance
    silent = sums.zero_advantage[:, 0] >= limits.zero_advantage * groups
    kinds = {
        Kind.REVERSED: most < -limits.reversed,
        Kind.IGNORED: most < limits.ignored * wanted,
        Kind.CONSTANT: rarely,
    }
    of_rewards = np.select(list(kinds.values()), [OF_SUMS.index(kind) for kind in kinds], _NONE)
    of_batch = np.where(silent, OF_SUMS.index(Kind.NO_SIGNAL), _NONE)
    return np.column_stack([of_rewards, of_batch])


def check(runs: int) -> None:
    """Compare `watched` with `Watch` on some runs: the first warning about each reward."""
    scenarios = {**AT_THE_LIMIT, **PLANTED}
    for name, scenario in scenarios.items():
        for seed in range(runs):
            size, groups = (64, 8)[seed % 2], 1280
            rewards, advantages, weights = scenario.steps(seed, groups)
            names = [f"r{k}" for k in range(rewards.shape[-1])]
            watch, seen = Watch(), []
            for first in range(0, groups, size):
                part = slice(first, first + size)
                one = diagnose(rewards[part], weights[part], names, advantages=advantages[part])
                watch.update(one)
                seen += [(first + size, f.kind, *f.rewards) for f in watch.due]
            fast = watched(_by_group(rewards, advantages, weights), size, _ranges(rewards))
            told = [(each.groups, each.kind, each.reward) for each in fast]
            assert _firsts(seen) == _firsts(told), (name, seed, seen, told)
    print(f"watched agrees with Watch on {runs} runs of each of {len(scenarios)} scenarios")


def _firsts(told: list[tuple[int, Kind, str]]) -> dict[str, tuple[int, Kind]]:
    """The first warning about the influence of each reward."""
    of_effect = [one for one in told if one[1] in EFFECT]
    return {reward: (groups, kind) for groups, kind, reward in reversed(of_effect)}


def _ranges(rewards: np.ndarray) -> dict[str, Range]:
    low, high = rewards.min(axis=(0, 1)), rewards.max(axis=(0, 1))
    ends = zip(low.tolist(), high.tolist(), strict=True)
    return {f"r{k}": Range(a, b, declared=False) for k, (a, b) in enumerate(ends)}


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
    """How often the 95 % interval of each share holds the share of 300 other runs together.

    And how often it does where few groups have most of the influence, and how often there is one.
    """
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
    _row("few groups", ["covers", "has an interval", "mean half-width"], head=True)
    for name, (make, estimator, groups) in FEW_GROUPS.items():
        scenario = Scenario(make, estimator)
        truth = cut(
            np.concatenate([by_group(scenario, 10_000 + i, groups) for i in range(2000)], axis=1), 1
        )
        known = [cut(by_group(scenario, seed, groups), 1) for seed in range(runs)]
        known = [total for total in known if total.no_interval is None]
        if not known:
            _row(name, ["–", f"0 of {runs}", "–"])
            continue
        off = np.array([np.abs(each.shares - truth.shares)[0] for each in known])
        margins = np.array([each.margins[0] for each in known])
        error = 100 * NORMAL_95 * np.sqrt(0.05 * 0.95 / len(known))
        inside = f"{100 * np.mean(off <= margins):.1f} ± {error:.1f} %"
        _row(name, [inside, f"{len(known)} of {runs}", f"{100 * np.mean(margins):.1f} %"])


def alarms(runs: int) -> None:
    """Healthy runs with a warning: watched in steps of so many groups, or finished."""
    sizes = (f"{size} per step" for size in CUTS)
    _row("healthy", ["smallest true share / weight share", *sizes, "finished"], head=True)
    for name, scenario in HEALTHY.items():
        every = [by_group(scenario, 10_000 + seed) for seed in range(200)]
        truth = cut(np.concatenate(every, axis=1), 16)
        found: dict[object, list[set[str]]] = {size: [] for size in (*CUTS, "finished")}
        for seed in range(runs):
            rewards, advantages, weights = scenario.steps(seed, GROUPS)
            groups, ranges = _by_group(rewards, advantages, weights), _ranges(rewards)
            for size in CUTS:
                told = watched(groups, size, ranges)
                found[size].append({f"{one.kind.value} {one.reward}" for one in told})
            found["finished"].append(_finished(groups, ranges))
        cells = [f"{np.min(truth.shares / truth.weight_shares):.2f}"]
        for all_told in found.values():
            kinds = sorted(set().union(*all_told))
            told = f" ({', '.join(kinds)})" if kinds else ""
            cells.append(f"{sum(map(bool, all_told))} of {runs}{told}")
        _row(name, cells)


def _finished(groups: np.ndarray, ranges: dict[str, Range]) -> set[str]:
    """The warnings of the look at all groups of a finished run."""
    learned = learned_rewards(cut(groups[:, -LEAST_GROUPS:], LEAST_GROUPS), ranges, Thresholds())
    return {
        f"{each.kind.value} {' '.join(each.rewards)}"
        for each in findings_at_once(cut(groups, 16), ranges, Thresholds())
        if each.severity is Severity.WARNING
        and not (each.kind in EFFECT and each.rewards[0] in learned)
    }


STEPS = 2000
"""Number of steps of a run at the limit."""


def anytime(runs: int) -> None:
    """Runs at the limit: how many get the warning, and what it quotes."""
    _watch_all(AT_THE_LIMIT, runs, {size: size * STEPS for size in (8, 64)})


def delay(runs: int) -> None:
    """Runs with a planted fault: when they are reported."""
    _watch_all(PLANTED, runs, {8: 4096, 64: 4096})


def _watch_all(scenarios: dict[str, Scenario], runs: int, groups_of: dict[int, int]) -> None:
    heads = ("true share", "8 per step", "64 per step", "quoted share, minus the truth")
    _row("first reward", heads, head=True)
    for name, scenario in scenarios.items():
        sums = [by_group(scenario, 10_000 + seed, 64 * 500) for seed in range(10)]
        total = cut(np.concatenate(sums, axis=1), 64)
        truth, at = total.shares[0], total.margins[0]
        cells, quoted = [f"{100 * truth:.2f} % ± {100 * at:.2f}"], []
        for size, of_run in groups_of.items():
            first = []
            for seed in range(runs):
                groups = by_group(scenario, seed, of_run)
                told = [
                    one
                    for one in watched(groups, size)
                    if one.reward in ("r0", "") and _as_bad(one.kind, scenario.kind)
                ]
                first += [one.groups for one in told[:1]]
                quoted += [one.share for one in told[:1]]
            cells.append(f"{len(first)} of {runs}{_after(first)}")
        off = np.array(quoted) - truth
        cells.append("–")
        if len(off) > 1:
            error = NORMAL_95 * np.std(off) / np.sqrt(len(off))
            cells[-1] = f"{100 * np.mean(off):.2f} % ± {100 * error:.2f}"
        _row(name, cells)


def _after(groups: list[int]) -> str:
    """The mean number of groups with its 95 % interval, and the median."""
    if len(groups) < 2:
        return "".join(f", after {each:,} groups" for each in groups)
    margin = NORMAL_95 * np.std(groups, ddof=1) / np.sqrt(len(groups))
    mean, middle = f"{np.mean(groups):,.0f} ± {margin:,.0f}", f"{np.median(groups):,.0f}"
    return f", after {mean} groups (median {middle})"


def _as_bad(kind: Kind, planted: Kind) -> bool:
    """Whether a kind is the planted one, or a worse one of the same sort."""
    sort = next(kinds for kinds in (CONSTANT, EFFECT, OF_SUMS) if planted in kinds)
    return kind in sort and sort.index(kind) <= sort.index(planted)


def found(runs: int) -> None:
    """Batches of 256 groups with a planted fault that are reported with causes and remedies."""
    _row("first reward", ["true share", "reported", "with causes and remedies"], head=True)
    for estimator in ("grpo", "gdpo"):
        for q in (0.05, 0.08, 0.12, 0.2, 0.3):
            make = partial(rare, varies=(q, 1.0))
            _found(f"{estimator}, varies in {100 * q:.0f} %", estimator, make, runs)
        for samples in (4, 8, 16):
            for rate in (0.002, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
                make = partial(pair, rate=rate, samples=samples)
                name = f"{estimator}, {100 * rate:g} % of 0/1, groups of {samples}"
                _found(name, estimator, make, runs)


def _found(name: str, estimator: str, make: Callable, runs: int) -> None:
    scenario = Scenario(make, {"grpo": grpo, "gdpo": gdpo}[estimator], EQUAL_PAIR)
    total = cut(by_group(scenario, 10_000, 100_000), 16)
    reported = explained = below = 0
    for seed in range(runs):
        rewards = make(np.random.default_rng(seed), 256).astype(float)
        diagnosis = diagnose(rewards, None, ["r0", "r1"], estimator=estimator)
        kinds = [f for f in diagnosis.findings if f.rewards == ("r0",)]
        kinds = [f for f in kinds if f.severity is Severity.WARNING and f.kind in OF_SUMS]
        reported += bool(kinds)
        explained += bool(kinds and kinds[0].causes and kinds[0].remedies)
        below += any(f.kind in CONSTANT for f in kinds)
    share = f"{100 * total.shares[0]:.1f} % ± {100 * total.margins[0]:.1f}"
    constant = f" ({below} as constant)" if below else ""
    _row(name, [share, f"{reported} of {runs}{constant}", f"{explained} of {runs}"])


def constant(runs: int) -> None:
    """Runs of 200 steps in which a reward that varies in some of its groups counts as constant."""
    sizes = (1, 4, 16)
    _row("varies in", [f"{size} per step" for size in sizes], head=True)
    for rate in (0.0, 0.05, 0.1, 0.12, 0.15, 0.2, 0.3):
        scenario = _two(rare, varies=(rate, 1.0))
        cells = []
        for size in sizes:
            runs_of = (watched(by_group(scenario, seed, 200 * size), size) for seed in range(runs))
            firsts = [
                min(one.groups for one in told if one.kind is Kind.CONSTANT)
                for told in runs_of
                if any(one.kind is Kind.CONSTANT for one in told)
            ]
            when = f", after {np.median(firsts):.0f} groups" if firsts else ""
            cells.append(f"{len(firsts)} of {runs}{when}")
        _row(f"{100 * rate:.0f} % of the groups", cells)


def _row(name: str, cells: Iterable[object], *, head: bool = False) -> None:
    cells = [str(cell) for cell in cells]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if head:
        print("|---|" + "---|" * len(cells))


TABLES = {
    "shares": shares,
    "coverage": coverage,
    "alarms": alarms,
    "anytime": anytime,
    "delay": delay,
    "found": found,
    "constant": constant,
    "check": check,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    TABLES[options.table](options.runs)


if __name__ == "__main__":
    main()
