"""The same rewards through TRL, ms-swift, verl, NeMo-RL and gdpo: one table of advantages.

    python benchmarks/same_rewards.py --peers-python PATH --nemo-rl FOLDER

Each framework runs its own code on tiny batches (`benchmarks/peers/frameworks.py` says how), in
float32, with all weights 1. A framework that is not there is left out, with a line that says so.
Prints Markdown: versions, the table, a line per row on why the columns differ.
"""

import argparse
import platform
from dataclasses import dataclass
from itertools import groupby
from math import inf, isnan, nan
from textwrap import fill

import torch
from peers.frameworks import FRAMEWORKS, Batch, add_options, present, quietly, run_in_peers_python


@dataclass(frozen=True)
class Case:
    title: str
    groups: list[list[tuple[float, ...]]]
    """A group per prompt, in it a tuple of rewards per rollout."""
    why: str
    lengths: tuple[int, ...] = ()
    """Tokens of each completion; left out: the same for all."""

    def batch(self):
        rollouts = [rewards for group in self.groups for rewards in group]
        rewards = torch.tensor(rollouts, dtype=torch.float32)
        sizes = [len(group) for group in self.groups]
        return Batch(rewards, sizes, [1.0] * rewards.shape[1], list(self.lengths))


PLAIN = [[(0, 0), (0, 1), (1, 1)], [(0, 0), (0, 0), (1, 0)]]

CASES = [
    Case(
        "Two binary rewards",
        PLAIN,
        "All compute the same formula. verl's numbers are larger by one factor: its batch step is "
        "over tokens, and the sample standard deviation of copies is smaller than that of what was "
        "copied. NeMo-RL's default takes mean and standard deviation of the *other* rollouts.",
    ),
    Case(
        "The second reward in thousandths",
        [[(0, 0), (0, 0.001), (1, 0.001)], [(0, 0), (0, 0), (1, 0)]],
        "The unit of a reward should not matter to GDPO. It does where ε is added to the standard "
        "deviation, most in TRL (1e-4); verl and NeMo-RL add 1e-6, ms-swift 1e-8, gdpo nothing.",
    ),
    Case(
        "Rewards of 10,000 and 10,001",
        [[(0, 10000), (0, 10001), (1, 10001)], [(0, 10000), (0, 10000), (1, 10000)]],
        "A constant added to the second reward should not matter either. NeMo-RL computes the "
        "variance as a difference of squares, of which float32 keeps few digits here.",
    ),
    Case(
        "Nobody did better than anybody: 0.3 and 1 for all",
        [[(0.3, 1)] * 6] * 2,
        "The mean of six times 0.3 is not 0.3 in float32. What is left over is divided by ε or by "
        "itself: ms-swift pushes every rollout down, NeMo-RL two of six up. gdpo compares a spread "
        "with the rounding error beneath it and gives exactly 0. With other numbers or group sizes "
        "the noise shows up in other columns.",
    ),
    Case(
        "0.3 for all of one prompt, 0.5 for all of the other, beside a reward that varies",
        [[(1, 0.3)] + [(0, 0.3)] * 5, [(1, 0.5)] * 2 + [(0, 0.5)] * 4],
        "The mean of six times 0.5 is exact. ms-swift adds the rounding of the 0.3, blown up, to "
        "the first prompt alone, and the batch step then moves both.",
    ),
    Case(
        "Two rewards with a constant sum",
        [[(0.1, 0.9), (0.4, 0.6), (0.8, 0.2)], [(0.2, 0.8), (0.9, 0.1), (0.3, 0.7)]],
        "The two normalized rewards cancel, so that nothing is to be learnt. What is left is "
        "rounding, and the batch step divides it by its own standard deviation.",
    ),
    Case(
        "One reward is None",
        [[(0, 0), (0, nan), (1, 1)], [(0, 0), (0, 0), (1, 0)]],
        "verl and NeMo-RL lose the whole batch to one missing value; the others leave it out.",
    ),
    Case(
        "One reward is infinite",
        [[(0, 0), (0, 1), (1, inf)], [(0, 0), (0, 0), (1, 0)]],
        "TRL and ms-swift drop the second reward in that group, without an error; verl and NeMo-RL "
        "lose the batch; gdpo stops with an error that names the reward and the rollout.",
    ),
    Case(
        "One rollout per prompt",
        [[(0, 1)], [(1, 1)], [(1, 0)]],
        "There is nothing to compare a rollout with. verl takes 0 for the mean and 1 for the "
        "standard deviation, and compares raw rewards across prompts; TRL refuses to start.",
    ),
    Case(
        "Prompts with three and with two rollouts",
        [[(0, 0), (0, 1), (1, 1)], [(0, 0), (1, 0)]],
        "TRL and ms-swift reshape to one number of rollouts. gdpo takes a group padded with NaN.",
    ),
    Case(
        "The first row's rewards, completions of 2, 2, 40, 10, 10, 10 tokens",
        PLAIN,
        "verl's batch step counts a rollout as often as it has tokens: the long, good one moves "
        "the mean, and an average rollout looks bad. `gdpo(..., token_counts=...)` does so if "
        "asked.",
        lengths=(2, 2, 40, 10, 10, 10),
    ),
]


def short(x):
    """Two decimals; of what they would hide, the order of magnitude; 0 for what is exactly 0."""
    if isnan(x):
        return "NaN"
    if x == 0:
        return "0"
    return f"{x:.2f}" if abs(x) >= 0.005 else f"±1e{int(f'{x:e}'.split('e')[1])}"


def in_short(values, sizes):
    """`a b c · d e`, with equal ones that follow each other counted, and a dot between prompts."""
    texts = [short(x) for x in values]
    if len(texts) > 2 and len(set(texts)) == 1:
        return f"all {texts[0]}"
    parts = []
    for size in sizes:
        runs = [(text, len(list(run))) for text, run in groupby(texts[:size])]
        parts.append(" ".join(text if n == 1 else f"{n}×({text})" for text, n in runs))
        texts = texts[size:]
    return " · ".join(parts)


def cell(framework, batch):
    try:
        with quietly():
            return in_short(framework.adapter(batch)().tolist(), batch.sizes)
    except NotImplementedError:
        return "groups of one size only"
    except ValueError as error:
        return f"`{type(error).__name__}`"


def rewards_of(case):
    def told(rewards):
        return "(" + ", ".join("None" if isnan(r) else f"{r:g}" for r in rewards) + ")"

    groups = []
    for group in case.groups:
        runs = [(rewards, len(list(run))) for rewards, run in groupby(map(told, group))]
        groups.append(" ".join(text if n == 1 else f"{n}×{text}" for text, n in runs))
    return " · ".join(groups)


def versions(found):
    told = [f"{name} {version}" for name, (_, version) in found.items() if "default" not in name]
    return f"{', '.join(told)}; torch {torch.__version__}, Python {platform.python_version()}."


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    run_in_peers_python(parser.parse_args())
    torch.set_num_threads(1)
    found = present(FRAMEWORKS)
    print(versions(found), end="\n\n")
    print("|  | rewards |", *(f"{name} |" for name in found))
    print("|---|---|" + "---|" * len(found))
    for number, case in enumerate(CASES, 1):
        torch.manual_seed(0)
        cells = [cell(framework, case.batch()) for framework, _ in found.values()]
        print(f"| {number}. {case.title} | {rewards_of(case)} |", *(f"{text} |" for text in cells))
    print()
    for number, case in enumerate(CASES, 1):
        print(fill(f"{number}. {case.why}", 150, subsequent_indent="   "))


if __name__ == "__main__":
    main()
