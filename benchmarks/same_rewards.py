"""Prints the advantages of TRL, ms-swift, verl, NeMo-RL and gdpo for the same rewards.

    python benchmarks/same_rewards.py --peers-python PATH --nemo-rl FOLDER

Each framework runs its own code on tiny batches (see `benchmarks/peers/frameworks.py`), in float32,
with all weights 1. A framework that cannot be imported is skipped, with a message. Prints Markdown:
versions, the table, and an explanation of the differences for each row.
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
    """One group per prompt, with a tuple of rewards per rollout."""
    why: str
    lengths: tuple[int, ...] = ()
    """Tokens of each completion. Default: the same number for all."""

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
        "All compute the same formula. verl's numbers are larger by a constant factor: it "
        "normalizes the batch over tokens, and repeating values makes their standard deviation "
        "smaller. NeMo-RL's default uses mean and standard deviation of the *other* rollouts.",
    ),
    Case(
        "The second reward in thousandths",
        [[(0, 0), (0, 0.001), (1, 0.001)], [(0, 0), (0, 0), (1, 0)]],
        "The scale of a reward should not matter in GDPO. It does if ε is added to the standard "
        "deviation: TRL adds 1e-4, verl and NeMo-RL 1e-6, ms-swift 1e-8, gdpo nothing.",
    ),
    Case(
        "Rewards of 10,000 and 10,001",
        [[(0, 10000), (0, 10001), (1, 10001)], [(0, 10000), (0, 10000), (1, 10000)]],
        "A constant added to the second reward should not matter. NeMo-RL computes the variance as "
        "a difference of squares, which loses most digits in float32 here.",
    ),
    Case(
        "All rollouts equal: 0.3 and 1",
        [[(0.3, 1)] * 6] * 2,
        "In float32, the mean of six times 0.3 is not 0.3. The rounding error is divided by ε or "
        "by itself: ms-swift gives every rollout a negative advantage, NeMo-RL gives two of six a "
        "positive one. gdpo compares the standard deviation with the rounding error and gives "
        "exactly 0. With other numbers or group sizes, other columns show the noise.",
    ),
    Case(
        "Rollouts equal within each prompt, and different between prompts",
        [[(0.3, 1)] * 6, [(0.6, 0.1)] * 6, [(0.9, 0.7)] * 6],
        "Each prompt has another rounding error, so the batch has a standard deviation, by which "
        "batch normalization divides.",
    ),
    Case(
        "0.3 for one prompt and 0.5 for the other, plus a reward that varies",
        [[(1, 0.3)] + [(0, 0.3)] * 5, [(1, 0.5)] * 2 + [(0, 0.5)] * 4],
        "The mean of six times 0.5 is exact. ms-swift adds the enlarged rounding error of 0.3 only "
        "to the first prompt, and batch normalization then changes both.",
    ),
    Case(
        "Two rewards with a constant sum",
        [[(0.1, 0.9), (0.4, 0.6), (0.8, 0.2)], [(0.2, 0.8), (0.9, 0.1), (0.3, 0.7)]],
        "The two normalized rewards cancel, so there is no signal. Only rounding is left, and "
        "batch normalization divides it by its own standard deviation.",
    ),
    Case(
        "One reward is None",
        [[(0, 0), (0, nan), (1, 1)], [(0, 0), (0, 0), (1, 0)]],
        "In verl and NeMo-RL, one missing value makes the whole batch NaN. The others leave it "
        "out.",
    ),
    Case(
        "One reward is infinite",
        [[(0, 0), (0, 1), (1, inf)], [(0, 0), (0, 0), (1, 0)]],
        "TRL and ms-swift drop the second reward in that group without an error. In verl and "
        "NeMo-RL the batch becomes NaN. gdpo raises an error that names the reward and the "
        "rollout.",
    ),
    Case(
        "One rollout per prompt",
        [[(0, 1)], [(1, 1)], [(1, 0)]],
        "A rollout has no group to compare with. verl uses mean 0 and standard deviation 1, and so "
        "compares raw rewards across prompts. TRL raises an error at the start.",
    ),
    Case(
        "Prompts with three and with two rollouts",
        [[(0, 0), (0, 1), (1, 1)], [(0, 0), (1, 0)]],
        "TRL and ms-swift need groups of equal size. gdpo accepts groups padded with NaN.",
    ),
    Case(
        "The rewards of row 1, completions of 2, 2, 40, 10, 10, 10 tokens",
        PLAIN,
        "verl's batch normalization weights a rollout by its tokens: the long, good rollout raises "
        "the mean, so an average rollout gets a lower advantage. `gdpo(..., token_counts=...)` "
        "does the same.",
        lengths=(2, 2, 40, 10, 10, 10),
    ),
]


def short(x):
    """Format with two decimals; a smaller value as its order of magnitude; exact 0 as 0."""
    if isnan(x):
        return "NaN"
    if x == 0:
        return "0"
    return f"{x:.2f}" if abs(x) >= 0.005 else f"±1e{int(f'{x:e}'.split('e')[1])}"


def in_short(values, sizes):
    """Format as `a b c · d e`: a dot between prompts, and repeated values as a count."""
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
        return "groups of equal size only"
    except ValueError as error:
        return f"`{type(error).__name__}`"


def rewards_of(case):
    def shown(rewards):
        return "(" + ", ".join("None" if isnan(r) else f"{r:g}" for r in rewards) + ")"

    groups = []
    for group in case.groups:
        runs = [(rewards, len(list(run))) for rewards, run in groupby(map(shown, group))]
        groups.append(" ".join(text if n == 1 else f"{n}×{text}" for text, n in runs))
    return " · ".join(groups)


def versions(found):
    names = [f"{name} {version}" for name, (_, version) in found.items() if "default" not in name]
    return f"{', '.join(names)}; torch {torch.__version__}, Python {platform.python_version()}."


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
