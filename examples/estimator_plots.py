"""What each estimator does with the same batches: one picture per estimator, and two tables.

    python examples/estimator_plots.py --output docs/images/estimators

Left: the advantages on six prompts with four rollouts each, for a format of 0 or 1 and a
correctness from -3 to 3, both with weight 1. Right, and in the tables: seven situations of 4,000
prompts with 8 rollouts and two or three rewards of weight 1. They show the influence of the first
reward: Cov(A, z_k) over the batch, where z_k is the reward normalized in its group, as a share of
the sum of absolute values of all rewards. Below 0, the reward is pushed against its weight. One
percentage point is within chance. A plain reward is uniform from 0 to 1. Two rewards that agree are
equal in nine rollouts of ten, and an opposed reward is 1 minus the other in nine of ten. No policy
is trained here.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from gdpo.advantages import ESTIMATORS, mo_grpo
from gdpo.errors import MissingExtraError
from gdpo.report.colours import styles

BATCH = {
    "together": [(0, -3), (0, -1), (1, 1), (1, 3)],
    "at odds": [(1, -1), (1, 0), (0, 1), (0, 2)],
    "format\nonly": [(0, 2), (0, 2), (0, 2), (1, 2)],
    "correctness\nonly": [(0, -2), (0, 0), (0, 1), (0, 3)],
    "correctness\nby 0.1": [(1, 1), (1, 1), (1, 1), (1, 1.1)],
    "nothing": [(1, 3), (1, 3), (1, 3), (1, 3)],
}
"""(format, correctness) of each rollout, keyed by what varies in its group."""

GREY = "#777777"
STYLES = styles(list(ESTIMATORS))


def situations(groups=4000, samples=8, seed=0):
    """Return rewards `[prompt, sample, reward]`, keyed by a description of the first reward."""
    rng = np.random.default_rng(seed)
    plain = partial(rng.random, (groups, samples))
    number, one = np.arange(groups * samples).reshape(groups, samples), plain()
    columns = {
        "one of two alike": [plain(), plain()],
        "of 1/8 the other's std": [plain(), 8 * plain()],
        "earned once in 20 groups": [number % (20 * samples) == 0, plain()],
        "earned by 95 %": [plain() < 0.95, plain()],
        "only 0.1 % jitter": [0.5 + 0.001 * plain(), plain()],
        "next to two that agree": [plain(), one, np.where(plain() < 0.9, one, plain())],
        "opposed by twice its std": [1 - np.where(plain() < 0.9, one, plain()), 2 * one],
    }
    return {name: np.stack(rewards, axis=2) for name, rewards in columns.items()}


def advantages(name, rewards):
    """Return the advantages for weights of 1, with integer ranges and a multiplier of 2."""
    low, high = np.floor(rewards.min(axis=(0, 1))), np.ceil(rewards.max(axis=(0, 1)))
    options = {"sa_mrpo": {"low": low, "high": high}, "saw": {"low": low}}
    options["constrained_grpo"] = {"multipliers": [2.0] + [np.nan] * (len(low) - 1)}
    return ESTIMATORS[name](rewards, np.ones(len(low)), **options.get(name, {}))


def measure(name, worlds):
    """Return, per situation, the first reward's influence share, weight share and largest |A|."""
    figures = {}
    for situation, rewards in worlds.items():
        result = advantages(name, rewards)
        z = (mo_grpo(rewards[..., [k]], [1]) for k in range(rewards.shape[2]))
        covariances = np.array([(result * z_k).mean() for z_k in z])
        share = covariances[0] / np.abs(covariances).sum()
        figures[situation] = share, 1 / len(covariances), np.abs(result).max()
    return figures


def table(title, measured, column, form):
    lines = [[title, *measured["gdpo"]], ["---"] * (1 + len(measured["gdpo"]))]
    for name, figures in measured.items():
        lines.append([f"`{name}`", *(form.format(figure[column]) for figure in figures.values())])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw(path, name, measured):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots", "to draw the pictures") from error
    figure = Figure(figsize=(11, 4.2), dpi=96)
    figure.subplots_adjust(left=0.035, right=0.985, top=0.84, bottom=0.2, wspace=0.44)
    figure.suptitle(name, x=0.01, ha="left", weight="bold")
    axes = figure.subplots(1, 2, width_ratios=(1.25, 1))
    draw_batch(axes[0], name, "grpo" if name == "gdpo" else "gdpo")
    draw_influence(axes[1], name, measured)
    for axis in axes:
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        place = {"loc": "upper right", "bbox_to_anchor": (1, -0.13)}
        axis.legend(**place, frameon=False, fontsize=8, ncols=4, columnspacing=1.3)
    figure.savefig(path)


def draw_batch(axis, name, reference):
    rewards = np.array(list(BATCH.values()))
    values, others = (advantages(n, rewards).ravel() for n in (name, reference))
    formats, corrects = rewards.reshape(-1, 2).T
    places = np.arange(len(values)) + np.arange(len(values)) // 4
    colour, other = STYLES[name].light, STYLES[reference].light
    for has, label, face in ((1, "with format", colour), (0, "without", "white")):
        bars = places[formats == has], values[formats == has]
        axis.bar(*bars, 0.75, label=label, facecolor=face, edgecolor=colour)
    axis.hlines(others, places - 0.55, places + 0.55, color=other, label=reference)
    limit = max(2.6, np.abs(values).max() * 1.05)
    axis.set_ylim(-limit, limit * 1.2)
    for place, kind in zip(places[1::4] + 0.5, BATCH, strict=True):
        axis.text(place, limit * 1.2, kind, ha="center", va="top", fontsize=7.5, color=GREY)
    axis.set_xticks(places, [f"{value:g}" for value in corrects], rotation=90)
    axis.set_xlabel("correctness of the rollout", fontsize=8, loc="left")
    axis.set_title("advantages, by what varies in the group", fontsize=10, loc="left", pad=10)


def draw_influence(axis, name, measured):
    rows = np.arange(len(measured[name]))[::-1]
    shares = {other: np.array(list(figures.values())) for other, figures in measured.items()}
    axis.plot(shares[name][:, 1], rows, "k|", markersize=17, label="share of weight")
    own = STYLES[name].light
    marks = {"grpo": ("s", 9, "none"), "gdpo": ("o", 9, "none"), name: ("D", 5.5, own)}
    for other, (marker, size, face) in marks.items():
        look = {"mec": STYLES[other].light, "ms": size, "mfc": face}
        axis.plot(shares[other][:, 0], rows, marker, label=other, **look)
    axis.set(xlim=(-0.65, 1.05), yticks=rows, yticklabels=measured[name])
    axis.axvline(0, color=GREY, linewidth=0.8)
    axis.xaxis.set_major_formatter("{x:.0%}")
    for row, text in zip(rows, shares[name][:, 2], strict=True):
        axis.text(1.05, row, f"{text:.3g}", ha="right", va="center", fontsize=8, color=own)
    axis.set_title("influence of a reward that is …", fontsize=10, loc="left", pad=10)
    axis.set_title("largest |A|", fontsize=8, loc="right", color=own)


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--only", choices=ESTIMATORS, metavar="NAME")
    parser.add_argument("--output", type=Path, default=Path("estimators"), metavar="FOLDER")
    options = parser.parse_args()
    wanted, worlds = [options.only] if options.only else list(ESTIMATORS), situations()
    measured = {name: measure(name, worlds) for name in dict.fromkeys([*wanted, "grpo", "gdpo"])}
    print(table("influence of a reward that is", measured, 0, "{:.0%}"), "\n")
    print(table("largest advantage", measured, 2, "{:.3g}"))
    options.output.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        draw(options.output / f"{name}.png", name, measured)


if __name__ == "__main__":
    main()
