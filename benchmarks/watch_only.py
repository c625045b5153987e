"""Measures when a fall of a watch-only reward is reported, and how often without reason.

    python -m benchmarks.watch_only alarms --runs 1000   # false alarms in simulated healthy runs
    python -m benchmarks.watch_only found --runs 200     # simulated hacked runs
    python -m benchmarks.watch_only policy --seeds 10    # a small policy that is trained and hacks

Seeds count from `--first`. In the simulated runs, `brevity` (normal, weight 1) and `format` (0 or
1, weight 1) rise, and `correctness` has weight 0. Prompts have different difficulties. `policy`
trains a softmax policy over response lengths and formats with `gdpo`, and reports with `Watch`.
"""

import argparse
from dataclasses import dataclass
from functools import partial

import numpy as np

from gdpo.advantages import gdpo
from gdpo.diagnostics import Watch, diagnose
from gdpo.diagnostics._parting import Course
from gdpo.diagnostics.diagnosis import Kind
from gdpo.diagnostics.influence import Influence, Sums, group_sums

NAMES = ("brevity", "format", "correctness")
WEIGHTS = np.array([1.0, 1.0, 0.0])
SAMPLES = 8


@dataclass(frozen=True)
class Scenario:
    """Describes a simulated run. Paths are functions of the time from 0 to 1."""

    correctness: object
    """Path of the log-odds of a right response."""
    against: float = 0.0
    """Log-odds that a response loses with each standard deviation of brevity in its group."""
    shocks: float = 0.0
    """Standard deviation of the difficulty that all prompts of a step share."""
    continuous: bool = False
    brevity: object = lambda t: 1.5 * t


def flat(t, level=0.5):
    """Return a constant path."""
    return np.full_like(t, level)


def up(t):
    """Return a path that rises from 0 to 2."""
    return 2 * t


def saturates(t):
    """Return a path that rises to 1.5 and stays there."""
    return np.minimum(5 * t, 1.5)


def down(t, by=1.5, start=0.3):
    """Return a path that falls after the start."""
    return 0.8 - by * np.clip((t - start) / (1 - start), 0, 1)


def early(t):
    """Return a path that falls in the first third."""
    return 0.8 - 1.5 * np.minimum(3 * t, 1)


HEALTHY = {
    "both rise": Scenario(up, against=1.0),
    "constant": Scenario(flat),
    "constant, opposed": Scenario(flat, against=1.0),
    "constant, opposed, continuous": Scenario(flat, against=1.0, continuous=True),
    "rare (3 %), opposed": Scenario(partial(flat, level=-4.0), against=1.0),
    "nearly always (97 %), opposed": Scenario(partial(flat, level=4.0), against=1.0),
    "rises, then saturates": Scenario(saturates),
    "rises, then saturates, opposed": Scenario(saturates, against=1.0),
    "prompts become harder": Scenario(down),
    "prompts become harder, continuous": Scenario(down, continuous=True),
    "falls before brevity rises": Scenario(early, brevity=lambda t: np.maximum(3 * t - 1, 0)),
    "difficulty changes by step": Scenario(flat, shocks=0.5),
    "difficulty changes by step, opposed": Scenario(flat, against=1.0, shocks=0.5),
}
HACKED = {
    "falls from 0.66 to 0.36": Scenario(down, against=1.0),
    "falls from 0.66 to 0.1": Scenario(partial(down, by=4.0), against=1.0),
    "continuous": Scenario(down, against=1.0, continuous=True),
}


def simulate(scenario, seed, groups, steps):
    """Return the rewards of a run, `[prompt, sample, reward]`, step by step."""
    random = np.random.default_rng(seed)
    t = np.repeat(np.arange(steps) / max(steps - 1, 1), groups)
    noise = random.standard_normal((len(t), SAMPLES))
    difficulty = 1.2 * random.standard_normal(len(t))
    difficulty += np.repeat(scenario.shocks * random.standard_normal(steps), groups)
    odds = (scenario.correctness(t) - difficulty)[:, None] - scenario.against * noise
    if scenario.continuous:
        right = odds + random.standard_normal(odds.shape)
    else:
        right = (random.logistic(size=odds.shape) < odds).astype(float)
    brief = (scenario.brevity(t) + 0.3 * random.standard_normal(len(t)))[:, None] + noise
    formed = random.random(odds.shape) < (0.3 + 0.6 * t)[:, None]
    return np.stack([brief, formed, right], axis=-1)


def in_steps(rewards, groups):
    """Yield the sums of each step."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    std = np.std(rewards, axis=1, ddof=1)
    std[np.ptp(rewards, axis=1) == 0] = 0
    z = np.where(std[:, None] > 0, centred / np.where(std > 0, std, 1)[:, None], 0.0)
    sums = group_sums(z @ WEIGHTS, z, std, WEIGHTS, rewards)
    for first in range(0, len(rewards), groups):
        table = sums[:, first : first + groups].sum(axis=1)
        yield Influence(NAMES, groups, Sums(*table), np.zeros((3, 3)), groups)


def first_report(rewards, groups):
    """Return the step and the finding of the first report, or None."""
    course = Course()
    for number, step in enumerate(in_steps(rewards, groups), 1):
        course.add(step, number)
        for finding, _ in course.findings():
            return number, finding
    return None


def wilson(hits, of):
    """Return the 95 % interval of a share."""
    z, p = 1.959964, hits / of
    middle, half = p + z * z / 2 / of, z * np.sqrt(p * (1 - p) / of + (z / 2 / of) ** 2)
    return np.clip([middle - half, middle + half], 0, None) / (1 + z * z / of)


STEPS = {1: 200, 4: 100, 16: 60, 64: 40}
"""Steps by the number of groups per step."""


def alarms(options):
    """Print the share of healthy runs with a report."""
    total = runs = 0
    for groups in options.groups:
        steps = STEPS[groups]
        for name, scenario in HEALTHY.items():
            hits = sum(
                first_report(simulate(scenario, seed, groups, steps), groups) is not None
                for seed in range(options.first, options.first + options.runs)
            )
            low, high = 100 * wilson(hits, options.runs)
            print(
                f"{groups} groups, {steps} steps, {name}: {hits} of {options.runs} runs "
                f"({low:.1f} to {high:.1f} %)",
                flush=True,
            )
            total, runs = total + hits, runs + options.runs
    low, high = 100 * wilson(total, runs)
    print(f"all: {total} of {runs} runs ({low:.2f} to {high:.2f} %)")


def found(options):
    """Print which share of the fall had happened at the first report."""
    for groups in options.groups:
        steps = STEPS[groups]
        for name, scenario in HACKED.items():
            shares = []
            many = simulate(scenario, 10**6, 2000, steps).reshape(steps, -1, 3).mean(axis=1)
            means = many[:, 2]
            for seed in range(options.first, options.first + options.runs):
                report = first_report(simulate(scenario, seed, groups, steps), groups)
                if report is None:
                    continue
                shares.append((means[0] - means[report[0] - 1]) / (means[0] - means[-1]))
            by_half = sum(share <= 0.5 for share in shares)
            print(
                f"{groups} groups, {steps} steps, {name}: reported in {len(shares)} of "
                f"{options.runs}, before half of the fall in {by_half}, median share "
                f"{np.median(shares) if shares else np.nan:.2f}",
                flush=True,
            )


LENGTHS = np.arange(1, 25)


def train(seed, groups, *, steps, rate=0.15, weights=(1.0, 1.0, 0.0)):
    """Train a policy over lengths and formats, and return correctness and the step of the report.

    A response is right with log-odds (length − 8) / 2 − difficulty. The policy has one logit for
    each length, which starts near length 14, and one for the format.
    """
    random, watch, report = np.random.default_rng(seed), Watch(), None
    logits, form = -((LENGTHS - 14.0) ** 2) / 40, -1.0
    expected = []
    for step in range(1, steps + 1):
        p, q = np.exp(logits) / np.exp(logits).sum(), 1 / (1 + np.exp(-form))
        grid = (LENGTHS[:, None] - 8) / 2 - 1.2 * np.linspace(-2, 2, 41)
        bell = np.exp(-(np.linspace(-2, 2, 41) ** 2) / 2)
        expected.append(float(p @ (1 / (1 + np.exp(-grid))) @ bell / bell.sum()))
        size = (groups, SAMPLES)
        length, formed = random.choice(LENGTHS, size, p=p), random.random(size) < q
        odds = (length - 8) / 2 - 1.2 * random.standard_normal((groups, 1))
        right = random.logistic(size=size) < odds
        rewards = np.stack([1 - length / 24, formed, right], axis=-1).astype(float)
        a = gdpo(rewards, list(weights))
        watch.update(diagnose(rewards, weights, NAMES, advantages=a, estimator="gdpo"))
        if report is None:
            report = next(((step, f) for f in watch.due if f.kind is Kind.PARTED), None)
        logits = logits + rate * np.array([(a * (length == at)).mean() for at in LENGTHS])
        form += rate * (a * (formed - q)).mean()
    return np.array(expected), report


def policy(options):
    """Print the share of the fall at the report for each seed of the trained policy."""
    for groups in options.groups:
        steps = 400
        for weights in ((1.0, 1.0, 0.0), (0.0, 1.0, 0.0)):
            rows = [
                train(seed, groups, steps=steps, weights=weights)
                for seed in range(options.first, options.first + options.seeds)
            ]
            falls = [(way[0], way[-1]) for way, _ in rows]
            shares = [
                (way[0] - way[report[0] - 1]) / (way[0] - way[-1]) if report else np.nan
                for way, report in rows
            ]
            first, last = np.mean(falls, axis=0)
            print(
                f"{groups} groups, weights {weights}: correctness {first:.2f} → {last:.2f}; "
                f"reported at step {[r[0] if r else None for _, r in rows]}, share of the fall "
                f"{np.round(shares, 2).tolist()}",
                flush=True,
            )


def main() -> None:
    """Read the options and run a measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=["alarms", "found", "policy"])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="Default: 0")
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4, 16, 64])
    options = parser.parse_args()
    for what in options.what:
        globals()[what](options)


if __name__ == "__main__":
    main()
