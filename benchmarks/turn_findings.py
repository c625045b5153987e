"""Measures how often findings about turns are reported, with and without reason.

    python -m benchmarks.turn_findings alarms --runs 1000   # healthy rewards: false alarms
    python -m benchmarks.turn_findings found --runs 200     # planted problems
    python -m benchmarks.turn_findings time                 # time of a diagnosis

Seeds count from `--first`. A rollout ends after each turn with probability 0.4, and after turn 6 at
the latest. `batch` is one batch of 64 groups of 8. `run` is a run of 30 steps with 8 groups of 8: a
finding counts if it is reported over the last 256 groups in five consecutive steps.
"""

import argparse
import time
from collections import Counter
from functools import partial

import numpy as np

from gdpo.diagnostics import diagnose_turns
from gdpo.diagnostics.diagnosis import Kind
from gdpo.diagnostics.turns import TurnWindow
from gdpo.diagnostics.watch import LASTING

LONGEST, SAMPLES = 6, 8
NAMES = ["format", "correct"]
ESTIMATORS = ("turn_gdpo", "gdpo", "grpo")


def turns_of(random, groups, *, difficulty=0.0):
    """Return the number of turns of each rollout, and the difficulty of each prompt."""
    hard = random.standard_normal((groups, 1))
    stop = 1 / (1 + np.exp(0.4 + difficulty * hard + np.zeros((groups, SAMPLES))))
    return np.minimum(random.geometric(stop), LONGEST), hard


def at_the_end(counts, values):
    """Return values that are paid at the last turn, `[prompt, sample, turn]`."""
    return np.where(np.arange(LONGEST) == counts[..., None] - 1, values[..., None], 0.0)


def outcome(random, counts, *, logit=0.0, slope=0.0):
    """Return an outcome of 0 or 1 whose log-odds change by `slope` with each turn."""
    odds = logit + slope * (counts - 2.2)
    return (random.logistic(size=counts.shape) < odds).astype(float)


def of_each_turn(random, counts, rate=1.0):
    """Return a reward of 1 that is paid at each turn with this rate."""
    return (random.random((*counts.shape, LONGEST)) < rate).astype(float)


def healthy(random, groups, *, first, logit=0.0, slope=0.0, difficulty=0.0):
    """Return a reward that is unrelated to the number of turns, and an outcome."""
    counts, hard = turns_of(random, groups, difficulty=difficulty)
    correct = outcome(random, counts, logit=logit - difficulty * hard, slope=slope)
    return counts, np.stack([first(random, counts), at_the_end(counts, correct)], axis=-1)


def once(random, counts):
    """Return a reward of the first turn."""
    return np.where(np.arange(LONGEST) == 0, of_each_turn(random, counts, 0.6), 0.0)


def good_or_bad(random, counts):
    """Return 1 or -1 at each turn."""
    return 2 * of_each_turn(random, counts, 0.5) - 1


def graded(random, counts):
    """Return a number from 0 to 1 for the rollout."""
    return at_the_end(counts, random.random(counts.shape))


def skewed(random, counts):
    """Return -0.1 at most turns and 0.9 at a tenth of them."""
    return of_each_turn(random, counts, 0.1) - 0.1


def fixed(random, groups):
    """Return rollouts that all take six turns, with a reward for each turn."""
    counts = np.full((groups, SAMPLES), LONGEST)
    correct = at_the_end(counts, outcome(random, counts))
    return counts, np.stack([of_each_turn(random, counts, 0.7), correct], axis=-1)


def per_turn(random, groups, *, pays, rate=1.0, logit=-0.4):
    """Return a reward that is paid at each turn, and an outcome."""
    counts, _ = turns_of(random, groups)
    correct = at_the_end(counts, outcome(random, counts, logit=logit))
    return counts, np.stack([pays * of_each_turn(random, counts, rate), correct], axis=-1)


def nothing_later(random, groups):
    """Return a reward of the first turn, and an outcome that is never reached."""
    counts, _ = turns_of(random, groups)
    first = once(random, counts)
    return counts, np.stack([first, np.zeros_like(first)], axis=-1)


HEALTHY = {
    "paid once, outcome": partial(healthy, first=once),
    "paid once, rare outcome (5 %)": partial(healthy, first=once, logit=-3.0),
    "1 or -1 at each turn": partial(healthy, first=good_or_bad),
    "skewed, mean 0": partial(healthy, first=skewed),
    "graded": partial(healthy, first=graded),
    "longer is right more often": partial(healthy, first=once, slope=0.4),
    "longer is right less often": partial(healthy, first=once, slope=-0.4),
    "hard prompts take more turns": partial(healthy, first=graded, difficulty=1.0),
    "six turns": fixed,
}
PLANTED = {
    "paid per turn, 1.2 times the end": (partial(per_turn, pays=0.5), Kind.PAID_PER_TURN),
    "paid on 97 % of the turns, 5 times": (
        partial(per_turn, pays=2.2, rate=0.97),
        Kind.PAID_PER_TURN,
    ),
    "a cost per turn": (partial(per_turn, pays=-0.3), Kind.TURN_COUNT),
    "paid on 60 % of the turns": (partial(per_turn, pays=0.5, rate=0.6), Kind.TURN_COUNT),
    "only long rollouts are right": (
        partial(healthy, first=once, logit=-1.0, slope=2.5),
        Kind.TURN_COUNT,
    ),
    "nothing after turn 1": (nothing_later, Kind.CONSTANT_TURNS),
}


def of_batch(scenario, seed, estimator, groups=64):
    """Return the kinds that are reported for one batch."""
    counts, rewards = scenario(np.random.default_rng(seed), groups)
    return {
        f.kind
        for f in diagnose_turns(rewards, None, NAMES, turns=counts, estimator=estimator).findings
    }


def of_run(scenario, seed, estimator, steps=30, groups=8):
    """Return the kinds that are reported in five consecutive steps of a run."""
    random, window = np.random.default_rng(seed), TurnWindow()
    lasting, row = set(), Counter()
    for _ in range(steps):
        counts, rewards = scenario(random, groups)
        step = diagnose_turns(rewards, None, NAMES, turns=counts, estimator=estimator)
        kinds = {finding.kind for finding in window.add(step.sums)}
        row = Counter({kind: row[kind] + 1 for kind in kinds})
        lasting |= {kind for kind in kinds if row[kind] >= LASTING}
    return lasting


def wilson(hits, of):
    """Return the 95 % interval of a share."""
    z, p = 1.959964, hits / of
    middle, half = p + z * z / 2 / of, z * np.sqrt(p * (1 - p) / of + (z / 2 / of) ** 2)
    return np.clip([middle - half, middle + half], 0, 1 + z * z / of) / (1 + z * z / of)


def share(hits, of):
    """Return a share with its interval as text."""
    low, high = 100 * wilson(hits, of)
    return f"{hits} of {of} ({low:.1f} to {high:.1f} %)"


def measured(options):
    """Yield each function that looks for findings, with its name and number of seeds."""
    for name, function, runs in (
        ("batch", of_batch, options.runs),
        ("run", of_run, max(1, options.runs // 10)),
    ):
        for estimator in ESTIMATORS:
            seeds = range(options.first, options.first + runs)
            yield (
                f"{name}, {estimator}",
                lambda scenario, f=function, e=estimator, s=seeds: [
                    f(scenario, seed, e) for seed in s
                ],
            )


def alarms(options):
    """Print the share of healthy batches and runs with a finding."""
    for name, look in measured(options):
        hits = of = 0
        for which, scenario in HEALTHY.items():
            found = look(scenario)
            bad = sum(map(bool, found))
            hits, of = hits + bad, of + len(found)
            kinds = Counter(kind.value for each in found for kind in each)
            print(f"{name}, {which}: {share(bad, len(found))} {dict(kinds) or ''}", flush=True)
        print(f"{name}, all: {share(hits, of)}", flush=True)


def found(options):
    """Print the share of planted problems that are reported."""
    for name, look in measured(options):
        for which, (scenario, kind) in PLANTED.items():
            each = look(scenario)
            right = sum(kind in kinds for kinds in each)
            others = Counter(k.value for kinds in each for k in kinds if k is not kind)
            print(f"{name}, {which}: {share(right, len(each))} {dict(others) or ''}", flush=True)


def measure_time(_):
    """Print the time of a diagnosis of 64 groups of 8 with 6 turns and 2 rewards."""
    counts, rewards = per_turn(np.random.default_rng(0), 64, pays=0.5)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        diagnose_turns(rewards, None, NAMES, turns=counts)
        times.append(time.perf_counter() - start)
    print(f"{1000 * min(times):.1f} ms (least of 20)")


def main() -> None:
    """Read the options and run a measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["alarms", "found", "time"])
    parser.add_argument("--runs", type=int, default=1000, help="Default: 1000; a tenth for `run`")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="Default: 0")
    options = parser.parse_args()
    {"alarms": alarms, "found": found, "time": measure_time}[options.what](options)


if __name__ == "__main__":
    main()
