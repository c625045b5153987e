"""How often is a reward with too little influence reported, and a healthy one left alone?

    python -m benchmarks.influence coverage    # of the 95 % interval
    python -m benchmarks.influence alarms      # healthy runs, watched
    python -m benchmarks.influence anytime     # runs at a limit, watched
    python -m benchmarks.influence delay       # runs with a planted fault: when it is reported
    python -m benchmarks.influence found       # single batches with a planted fault
    python -m benchmarks.influence finished    # verdicts on finished healthy runs

Rewards are simulated. Advantages are those of the estimators themselves. A watched run is diagnosed
step by step, and each step is passed to `Watch`.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from benchmarks._shown import interval, row

from gdpo.advantages import gdpo, grpo, grpo_no_std
from gdpo.analysis.run import RunSteps, run_of
from gdpo.analysis.steps import StepAnalysis
from gdpo.analysis.verdict import Action, verdict_of
from gdpo.diagnostics import Diagnosis, Finding, Influence, Watch, diagnose
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.diagnostics.influence import NORMAL_95, pooled
from gdpo.rollouts.readers import ReadReport

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

    def steps(self, seed: int, groups: int, size: int) -> Iterator[Diagnosis]:
        """Yield the diagnosis of each step of so many groups."""
        rewards = self.make(np.random.default_rng(seed), groups)
        names = [f"r{k}" for k in range(rewards.shape[-1])]
        parts = [(0, groups, self.weights[: len(names)])]
        if self.later is not None:
            half = groups // 2
            parts = [(0, half, self.weights), (half, groups, self.later)]
        for begin, end, weights in parts:
            advantages = self.estimator(rewards[begin:end], np.array(weights))
            for at in range(begin, end, size):
                some = slice(at, min(at + size, end))
                own = advantages[at - begin : some.stop - begin]
                yield diagnose(rewards[some], weights, names, advantages=own)

    def influence(self, seeds: Iterable[int], groups: int = GROUPS) -> Influence:
        """Return the influence over whole runs, which no cut into steps changes."""
        steps = (step for seed in seeds for step in self.steps(seed, groups, groups))
        return pooled([step.influence for step in steps])


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
MORE_MIXED = ((1, -0.4, 0), (-0.4, 1, 0.6), (0, 0.6, 1))
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


def _two(make: Callable, **options: object) -> Scenario:
    return Scenario(partial(make, **options), weights=EQUAL_PAIR)


AT_THE_LIMIT = {
    "5 %: std 0.054": _two(normal, std=(0.054, 1.0)),
    "5 %: 2 % of 0/1": _two(pair, rate=0.02, scale=0.3),
    "quarter: std 0.1525": _two(normal, std=(0.1525, 1.0)),
    "quarter: varies in 3 % beside 20 %": _two(rare, varies=(0.03, 0.198)),
    "quarter: varies in 8 % beside 49 %": _two(rare, varies=(0.08, 0.488)),
    "quarter: 10 % of 0/1, groups of 4": _two(pair, rate=0.1, scale=0.515, samples=4),
    "reversed": _two(against, std=0.781),
    "reversed: varies in 20 %": _two(against, std=0.636, varies=0.2),
    "constant in 90 %": _two(rare, varies=(0.101, 0.2)),
}
"""Runs whose share is just on the healthy side of a limit, where false alarms are likeliest."""


def missing(random, groups, *, rate):
    values = random.standard_normal((groups, 8, 2))
    values[random.random((groups, 8)) < rate, 0] = np.nan
    return values


def silent(random, groups, *, varies):
    """No reward varies in most of the groups."""
    return binary(random, groups, rates=(0.5, 0.5)) * (random.random((groups, 1, 1)) < varies)


PLANTED = {
    "std 0.02": _two(normal, std=(0.02, 1.0)),
    "std 0.2": _two(normal, std=(0.2, 1.0)),
    "varies in 5 %": _two(rare, varies=(0.05, 1.0)),
    "varies in 12 %": _two(rare, varies=(0.12, 1.0)),
    "varies in 30 %": _two(rare, varies=(0.3, 1.0)),
    "10 % of 0/1, groups of 4": _two(pair, rate=0.1, samples=4),
    "2 % of 0/1": _two(pair, rate=0.02),
    "reversed": _two(against, std=0.5),
    "never varies": _two(rare, varies=(0.0, 1.0)),
    "missing from 70 %": _two(missing, rate=0.7),
    "missing from 95 %": _two(missing, rate=0.95),
    "nothing varies in 97 %": _two(silent, varies=0.03),
}


def warnings(steps: Iterable[Diagnosis]) -> Iterator[tuple[int, Finding]]:
    """Yield the warnings of a watched run, each with the number of groups so far.

    That two rewards are opposed is no fault of either.
    """
    watch, groups = Watch(), 0
    for step in steps:
        groups += step.prompts
        watch.update(step)
        yield from ((groups, finding) for finding in watch.due if len(finding.rewards) < 2)


def coverage(runs: int) -> None:
    """How often the 95 % interval of each share holds the share of many other runs together.

    And how often it does where few groups have most of the influence, and how often there is one.
    """
    row("scenario", ["all rewards", "lowest and highest reward"], head=True)
    for name, scenario in COVERED.items():
        truth = scenario.influence(range(10_000, 10_300)).shares
        each = [scenario.influence([seed]) for seed in range(runs)]
        inside = 100 * np.mean([np.abs(one.shares - truth) <= one.margins for one in each], axis=0)
        row(name, [f"{inside.mean():.1f}", f"{inside.min():.0f} to {inside.max():.0f}"])
    row("few groups", ["covers the true share", "has an interval", "mean half-width"], head=True)
    for name, (make, estimator, groups) in FEW_GROUPS.items():
        scenario = Scenario(make, estimator)
        truth = scenario.influence(range(10_000, 12_000), groups).shares[0]
        every = [scenario.influence([seed], groups) for seed in range(runs)]
        known = [one for one in every if one.no_interval is None]
        if not known:
            row(name, ["–", f"0 of {runs}", "–"])
            continue
        margins = np.array([one.margins[0] for one in known])
        inside = np.mean(np.abs([one.shares[0] - truth for one in known]) <= margins)
        error = 100 * NORMAL_95 * np.sqrt(0.05 * 0.95 / len(known))
        cells = [f"{100 * inside:.1f} ± {error:.1f} %", f"{len(known)} of {runs}"]
        row(name, [*cells, f"{100 * margins.mean():.1f} %"])


def alarms(runs: int) -> None:
    """Healthy runs with a warning, in steps of so many groups."""
    sizes = (4, 16, 64)
    heads = (f"{size} per step" for size in sizes)
    row("healthy", ["smallest true share / weight share", *heads], head=True)
    for name, scenario in HEALTHY.items():
        truth = scenario.influence(range(10_000, 10_200))
        cells = [f"{np.min(truth.shares / truth.weight_shares):.2f}"]
        for size in sizes:
            every = [
                {f"{one.kind.value} {' '.join(one.rewards)}" for _, one in warnings(steps)}
                for steps in (scenario.steps(seed, GROUPS, size) for seed in range(runs))
            ]
            kinds = ", ".join(sorted(set().union(*every)))
            cells.append(f"{sum(map(bool, every))} of {runs}" + (f" ({kinds})" if kinds else ""))
        row(name, cells)


def anytime(runs: int) -> None:
    """Runs of 2,000 steps at a limit: how many get a warning, and the share that it quotes."""
    _watch_all(AT_THE_LIMIT, runs, {size: 2000 * size for size in (8, 64)})


def delay(runs: int) -> None:
    """Runs with a planted fault: when they are reported."""
    _watch_all(PLANTED, runs, {8: 4096, 64: 4096})


def _watch_all(scenarios: dict[str, Scenario], runs: int, groups_of: dict[int, int]) -> None:
    heads = ("true share", "8 per step", "64 per step", "quoted share, minus the truth")
    row("first reward", heads, head=True)
    for name, scenario in scenarios.items():
        total = scenario.influence(range(10_000, 10_010), 64 * 500)
        cells, quoted = [f"{100 * total.shares[0]:.2f} % ± {100 * total.margins[0]:.2f}"], []
        for size, groups in groups_of.items():
            firsts = []
            for seed in range(runs):
                told = warnings(scenario.steps(seed, groups, size))
                about_first = (each for each in told if each[1].rewards in (("r0",), ()))
                firsts += islice(about_first, 1)
            kinds = ", ".join(sorted({finding.kind.value for _, finding in firsts}))
            when = interval([at for at, _ in firsts], 0) if firsts else ""
            cells.append(f"{len(firsts)} of {runs}" + (f" ({kinds}), after {when}" if when else ""))
            quoted += [finding.evidence.get("influence_share", np.nan) for _, finding in firsts]
        off = 100 * (np.array(quoted) - total.shares[0])
        row(name, [*cells, f"{interval(off)} %" if len(off) else "–"])


def found(runs: int) -> None:
    """Batches of 256 groups with a planted fault that are reported."""
    row("first reward", ["true share", "reported"], head=True)
    for estimator in (grpo, gdpo):
        cases = {
            f"varies in {100 * q:.0f} %": partial(rare, varies=(q, 1.0))
            for q in (0.05, 0.08, 0.12, 0.2, 0.3)
        }
        cases |= {
            f"{100 * rate:g} % of 0/1, groups of {samples}": partial(
                pair, rate=rate, samples=samples
            )
            for samples in (4, 8, 16)
            for rate in (0.002, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
        }
        for name, make in cases.items():
            scenario = Scenario(make, estimator, EQUAL_PAIR)
            total = scenario.influence([10_000], 100_000)
            told = []
            for seed in range(runs):
                rewards = make(np.random.default_rng(seed), 256).astype(float)
                batch = diagnose(rewards, None, ["r0", "r1"], estimator=estimator.__name__)
                told += [f for f in batch.findings if f.rewards == ("r0",) and is_told(f)][:1]
            share = f"{100 * total.shares[0]:.1f} % ± {100 * total.margins[0]:.1f}"
            kinds = ", ".join(sorted({each.kind.value for each in told}))
            row(f"{estimator.__name__}, {name}", [share, f"{len(told)} of {runs} ({kinds})"])


def finished(runs: int) -> None:
    """Verdicts on finished healthy runs of 400 groups, and the kinds of their warnings."""
    row("scenario", ["nothing to do", "with a warning"], head=True)
    for name, scenario in HEALTHY.items():
        calm, kinds = 0, Counter[str]()
        for seed in range(runs):
            steps = RunSteps("")
            for number, diagnosis in enumerate(scenario.steps(seed, 400, 16), start=1):
                steps.add(StepAnalysis.of(diagnosis, number))
            run = run_of(steps)
            calm += verdict_of(run, ReadReport(())).action is Action.NOTHING
            kinds.update(
                {
                    held.finding.kind.value
                    for held in run.findings
                    if held.lasting and held.finding.severity is Severity.WARNING
                }
            )
        warned = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "0"
        row(name, [f"{calm} of {runs}", warned])


def is_told(finding: Finding) -> bool:
    """Return whether a finding is a warning, or about the influence of a reward."""
    return finding.severity is Severity.WARNING or finding.kind in (Kind.IGNORED, Kind.REVERSED)


TABLES = {each.__name__: each for each in (coverage, alarms, anytime, delay, found, finished)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    TABLES[options.table](options.runs)


if __name__ == "__main__":
    main()
