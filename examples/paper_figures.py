"""Figures 2 and 3 of the GDPO paper (arXiv 2601.05242), from gdpo's own estimators.

    python examples/paper_figures.py --output paper_figures.png

A group is all samples of one prompt, each with n rewards of 0 or 1. The figures count how many
different groups of advantages all possible groups give. Two groups are equal if they differ only in
the order of their samples. GDPO is counted before batch normalization, which scales all groups of a
batch by one factor: that is the estimator `mo_grpo`. So two samples with the rewards (0, 0) and
(1, 1) get -1.41 and 1.41 in the figures, and -0.71 and 0.71 with `gdpo` as a batch of their own.
The paper's Figure 3 shows GRPO and GDPO. GRPO without the standard deviation is the third estimator
of its section 3.1.
"""

import argparse
from itertools import combinations_with_replacement, product
from math import comb
from pathlib import Path

import numpy as np

from gdpo.advantages import grpo, grpo_no_std, mo_grpo
from gdpo.errors import MissingExtraError
from gdpo.report.colours import styles

ESTIMATORS = {"GRPO": grpo, "GRPO w/o std": grpo_no_std, "GDPO": mo_grpo}
NAMES = {"GRPO": "grpo", "GRPO w/o std": "grpo_no_std", "GDPO": "gdpo"}
STYLES = dict(zip(NAMES, styles([*NAMES.values()]).values(), strict=True))
MARKERS = {"GRPO": "o", "GRPO w/o std": "s", "GDPO": "^"}
PAIRS = [(0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (0, 2)]
"""Number of rewards that each of two samples gets, for Figure 2."""

SAMPLES = range(2, 17)
REWARDS = range(1, 9)
MOST_REWARDS = {"GDPO": 6}
"""Largest number of rewards in the paper's curve."""


def every_group(samples, rewards):
    """Return an array `[group, sample, reward]` of all groups, up to order.

    The order of samples and rewards does not matter. The groups are combinations of samples or
    combinations of rewards, whichever list is shorter. Combinations of rewards are kept only if
    their samples are in ascending order.
    """
    by_sample = comb(2**rewards + samples - 1, samples)
    by_reward = comb(2**samples + rewards - 1, rewards)
    length, count = (rewards, samples) if by_sample <= by_reward else (samples, rewards)
    vectors = np.array(list(product((0, 1), repeat=length)), dtype=np.int8)
    groups = vectors[np.array(list(combinations_with_replacement(range(len(vectors)), count)))]
    groups = groups if by_sample <= by_reward else groups.swapaxes(1, 2)
    in_binary = groups @ 2 ** np.arange(rewards)[::-1]
    return groups[(np.diff(in_binary, axis=1) >= 0).all(axis=1)].astype(float)


def distinct_groups(estimator, samples, rewards):
    """Return the number of different groups of advantages. Differences below 1e-6 are rounding."""
    advantages = estimator(every_group(samples, rewards), np.ones(rewards))
    return len(np.unique(np.sort(advantages, axis=1).round(6) + 0.0, axis=0))


def better_ones_advantage(estimator):
    """Return, for each pair of Figure 2, the larger of the two advantages."""
    earned = [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    groups = np.array([[earned[a], earned[b]] for a, b in PAIRS])
    return estimator(groups, np.ones(2)).max(axis=1)


def by_samples(name):
    return [distinct_groups(ESTIMATORS[name], samples, 2) for samples in SAMPLES]


def by_rewards(name):
    upto = MOST_REWARDS.get(name, max(REWARDS))
    return [distinct_groups(ESTIMATORS[name], 4, rewards) for rewards in REWARDS if rewards <= upto]


def table(corner, columns, rows):
    """Return a Markdown table, with dashes at the end of short rows."""
    lines = [[corner, *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *row, *"–" * (len(columns) - len(row))] for name, row in rows.items()]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def draw(path, pairs, samples, rewards):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots", "to draw the figures") from error
    figure = Figure(figsize=(12.6, 3.9), dpi=150)
    figure.subplots_adjust(left=0.075, right=0.97, top=0.79, bottom=0.14, wspace=0.27)
    title = "How many different groups of advantages GRPO and GDPO give"
    figure.suptitle(title, x=0.012, y=0.98, ha="left", weight="bold")
    axes = figure.subplots(1, 3)
    draw_pairs(axes[0], pairs, "Figure 2: two samples, two rewards")
    draw_counts(axes[1], SAMPLES, samples, "Figure 3: two rewards, 2 to 16 samples")
    draw_counts(axes[2], REWARDS, rewards, "Figure 3: four samples, 1 to 8 rewards")
    handles = axes[1].get_legend_handles_labels()
    figure.legend(*handles, loc="upper right", bbox_to_anchor=(0.98, 1), ncols=3, frameon=False)
    figure.savefig(path)


def draw_pairs(axis, pairs, title):
    heights = np.arange(len(PAIRS))[::-1]
    for offset, (name, advantages) in zip((0.2, 0, -0.2), pairs.items(), strict=True):
        axis.plot(advantages, heights + offset, MARKERS[name], color=STYLES[name].light)
    axis.set_yticks(heights, [f"{a} and {b}" for a, b in PAIRS])
    axis.set_xlim(-0.08, 1.55)
    axis.set_ylabel("rewards that each sample gets", fontsize=8.5)
    axis.set_xlabel("advantage of the better sample", fontsize=8.5)
    tidy(axis, title)


def draw_counts(axis, places, counts, title):
    for name, row in counts.items():
        style = {"color": STYLES[name].light, "marker": MARKERS[name], "markersize": 4.5}
        axis.plot(places[: len(row)], row, label=name, **style)
        end, above = (places[len(row) - 1], row[-1]), (0, -13 if name == "GRPO" else 6)
        place = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
        axis.annotate(row[-1], end, above, color=STYLES[name].light, **place)
    axis.set_xlabel(title.rsplit(" ", 1)[1], fontsize=8.5)
    axis.set_ylabel("different groups of advantages", fontsize=8.5)
    axis.margins(y=0.08)
    axis.xaxis.get_major_locator().set_params(integer=True)
    tidy(axis, title)


def tidy(axis, title):
    axis.set_title(title, fontsize=10, loc="left")
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("paper_figures.png"))
    options = parser.parse_args()
    pairs = {name: better_ones_advantage(ESTIMATORS[name]).round(4) for name in ESTIMATORS}
    print(table("sums of the two samples", [f"{a}, {b}" for a, b in PAIRS], pairs), "\n")
    samples = {name: by_samples(name) for name in ESTIMATORS}
    print(table("two rewards, samples", SAMPLES, samples), "\n")
    rewards = {name: by_rewards(name) for name in ESTIMATORS}
    print(table("four samples, rewards", REWARDS, rewards), "\n")
    draw(options.output, pairs, samples, rewards)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
