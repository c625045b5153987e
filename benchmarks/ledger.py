"""What was reported during finished runs, and what happened next: contradicted findings first.

    python -m benchmarks.ledger RUNS...          # folders with recorded rollouts, at any depth
    python -m benchmarks.ledger --toys 5         # the toys, with grpo and gdpo and so many seeds

Each run is replayed step by step through `Watch`, so a finding counts from the step at which a
watched run logs it. Every value *then* is the mean of the last 5 steps, and *end* that of the last
tenth of the run. The shares are over the last 256 groups. A reward is learned if the mean of 5
steps reached 80 % of its range (declared, or seen in the run). Nobody acted on the findings.

- A reward without enough signal (`ignored`, `reversed`, `out_of_reach`, `constant`,
  `no_signal`) implies that it is not learned. *contradicted*: it was learned later.
  *partly*: it rose by 10 % of its range or more. *late*: it was learned already.
- `opposed` implies that not both are learned, and `redundant` that both change in one direction.
- Other kinds say nothing about the means: *no prediction*.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from unittest import mock

import numpy as np
from benchmarks.toys import _run
from benchmarks.toys._toys import TOYS

from gdpo.analysis import analyze_steps
from gdpo.diagnostics import Watch, diagnose
from gdpo.diagnostics.diagnosis import Diagnosis, Finding, Kind
from gdpo.lab.experiments.threshold import REACHED, WINDOW, final, first_reached
from gdpo.rollouts.readers import read_rollout_files

OUTCOMES = ("contradicted", "late", "partly", "followed", "no prediction")
"""Worst first."""
TOO_LITTLE = {"ignored", "reversed", "out_of_reach", "constant", "no_signal"}
ROSE = 0.1
Entry = tuple[list[str], str]
"""The row of a finding, and its message."""
Rewards = dict[bool, list[float]]
"""When each reward was learned, as a share of its run, by whether it was reported."""
MEAN, SHARE, STD = range(3)


@dataclass
class Course:
    """The rewards of a run over its steps."""

    names: list[str]
    values: np.ndarray
    """`[mean, share or std, step, reward]`."""
    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def of(steps: list[Diagnosis]) -> "Course":
        numbers = [[(r.mean, r.influence_share, r.group_std) for r in s.rewards] for s in steps]
        values = np.array(numbers, dtype=float)
        ranges = np.array([(r.low, r.high) for r in steps[-1].rewards], dtype=float).T
        seen = np.nanmin(values[..., MEAN], axis=0), np.nanmax(values[..., MEAN], axis=0)
        low, high = (np.where(np.isnan(a), b, a) for a, b in zip(ranges, seen, strict=True))
        names = [reward.name for reward in steps[-1].rewards]
        return Course(names, np.moveaxis(values, -1, 0), low, high)

    def then(self, step: int, reward: int) -> np.ndarray:
        return np.nanmean(self.values[:, max(0, step - WINDOW) : step, reward], axis=1)

    def end(self, reward: int) -> np.ndarray:
        return np.array([final(each) for each in self.values[:, :, reward]])

    def learned(self, reward: int) -> int | None:
        """Return the step at which a reward was learned, or None."""
        threshold = self.low[reward] + REACHED * (self.high[reward] - self.low[reward])
        return first_reached(self.values[MEAN, :, reward], threshold)

    def rise(self, step: int, reward: int) -> float:
        """Return the change of a mean after a step, as a share of the range."""
        change = self.end(reward)[MEAN] - self.then(step, reward)[MEAN]
        return float(change / max(self.high[reward] - self.low[reward], 1e-12))


def outcome(finding: Finding, step: int, course: Course) -> str:
    """Return what followed a finding, one of `OUTCOMES`."""
    kind = finding.kind
    about = [course.names.index(name) for name in finding.rewards]
    about = about or list(range(len(course.names)))
    learned = [course.learned(reward) for reward in about]
    rises = [course.rise(step, reward) for reward in about]
    if kind in TOO_LITTLE:
        if any(at is not None and at > step for at in learned):
            return "contradicted"
        if all(at is not None for at in learned):
            return "late"
        return "partly" if max(rises) >= ROSE else "followed"
    if kind is Kind.OPPOSED:
        later = all(at is not None and at > step for at in learned)
        return "contradicted" if later else "followed"
    if kind is Kind.REDUNDANT:
        return "contradicted" if min(rises) <= -ROSE and max(rises) >= ROSE else "followed"
    return "no prediction"


def entries(run: str, diagnoses: Iterable[Diagnosis], rewards: Rewards) -> Iterator[Entry]:
    """Yield the findings of a run, and note when its rewards were learned."""
    watch, steps, reported = Watch(), [], []
    for diagnosis in diagnoses:
        steps.append(watch.update(diagnosis))
        reported += [(len(steps), finding) for finding in watch.due]
    course = Course.of(steps)
    short = {name for _, each in reported if each.kind in TOO_LITTLE for name in each.rewards}
    for k, reward in enumerate(steps[-1].rewards):
        if reward.weight:
            rewards[reward.name in short].append((course.learned(k) or inf) / len(steps))
    for step, finding in reported:
        name = (finding.rewards or (course.names[0],))[0]
        k = course.names.index(name)
        forms = ("{:.3g} → {:.3g}", "{:.0%} → {:.0%}", "{:.2g} → {:.2g}")
        values = zip(forms, course.then(step, k), course.end(k), strict=True)
        about = f"{finding.kind.value} {', '.join(finding.rewards)}"
        row = [outcome(finding, step, course), run, f"{step} of {len(steps)}", about]
        row += [form.format(then, end) for form, then, end in values]
        yield [*row, str(course.learned(k) or "never")], finding.message


def recorded(folder: Path, rewards: Rewards) -> Iterator[Entry]:
    """Yield the entries of all runs below a folder."""
    for rollouts in sorted(folder.rglob("rollouts")):
        tables = sorted(analyze_steps(read_rollout_files(rollouts)), key=lambda each: each.step)
        name = str(rollouts.parent.relative_to(folder))
        yield from entries(name, [table.diagnosis for table in tables], rewards)


def of_toys(seeds: int, rewards: Rewards) -> Iterator[Entry]:
    """Yield the entries of the toys."""
    for toy, estimator, seed in product(TOYS.values(), ("grpo", "gdpo"), range(seeds)):
        seen: list[Diagnosis] = []
        record = partial(_Recording, seen=seen, rule_for=_run.rule_for)
        with mock.patch.object(_run, "rule_for", record):
            _run.run_toy(toy, estimator, seeds=[seed])
        yield from entries(f"{toy.name}, {estimator}, {seed}", seen, rewards)


class _Recording:
    """An advantage rule that diagnoses each batch."""

    def __init__(self, toy, estimator, options=None, *, seen, rule_for) -> None:
        self.rule, self.seen = rule_for(toy, estimator, options), seen
        low, high = [m.low for m in toy.measured], [m.high for m in toy.measured]
        given = {"names": toy.names, "estimator": estimator, "low": low, "high": high}
        self.diagnose, self.update = partial(diagnose, **given), self.rule.update

    def __call__(self, rewards, weights):
        advantages = self.rule(rewards, weights)
        self.seen.append(self.diagnose(rewards, weights, advantages=advantages))
        return advantages


def main() -> None:
    """Print the ledger."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--toys", type=int, default=0, metavar="SEEDS")
    given = parser.parse_args()
    rewards: Rewards = {True: [], False: []}
    found = [each for folder in given.runs for each in recorded(folder, rewards)]
    found += of_toys(given.toys, rewards)
    found.sort(key=lambda each: OUTCOMES.index(each[0][0]))
    heads = ["outcome", "run", "step", "finding", "mean", "share", "std", "learned at"]
    for row in [heads, ["---"] * len(heads), *(row for row, _ in found)]:
        print("| " + " | ".join(row) + " |")
    counts = Counter((row[3].split()[0], row[0]) for row, _ in found)
    print(f"\n| kind | {' | '.join(OUTCOMES)} |\n|---|{'---|' * len(OUTCOMES)}")
    for kind in sorted({kind for kind, _ in counts}):
        print(f"| `{kind}` | {' | '.join(str(counts[kind, what]) for what in OUTCOMES)} |")
    for short, what in ((True, "reported with too little signal"), (False, "never so reported")):
        learned = [at for at in rewards[short] if at < inf]
        when = f", at {np.median(learned):.0%} of the run (median)" if learned else ""
        print(f"\nRewards {what}: {len(learned)} of {len(rewards[short])} were learned{when}.")
    print("\nWhat the contradicted findings said:\n")
    for row, message in found:
        if row[0] == OUTCOMES[0]:
            print(f"- {row[1]}, step {row[2]}: {message}")


if __name__ == "__main__":
    main()
