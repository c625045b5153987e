"""Draws the rare reward and correctness over the steps, with GRPO and with GDPO."""

import numpy as np
from matplotlib.figure import Figure

from gdpo.lab.experiments.threshold import REACHED, WINDOW, running_mean
from gdpo.report.colours import style

_SHOWN = ("grpo", "gdpo")
_GREY = "#666666"


def draw(path, experiment):
    """Draw one panel per reward: each seed, the median over the seeds, and a band of quartiles."""
    rewards = {reward.name: reward for reward in experiment.rewards}
    figure = Figure(figsize=(9.2, 3.9), dpi=160)
    figure.subplots_adjust(left=0.07, right=0.93, top=0.9, bottom=0.25, wspace=0.32)
    for axis, name in zip(figure.subplots(1, 2), ("tags", "correctness"), strict=True):
        _panel(axis, rewards[name], {label: experiment.curves(label, name) for label in _SHOWN})
    caption = (
        f"SmolLM2-135M-Instruct on small sums and products; {len(experiment.seeds)} seeds. "
        f"Thin: each seed, mean over the last {WINDOW} steps.\n"
        "Thick: median over the seeds. Band: first to third quartile. Dashed: 80 % of the range."
    )
    figure.text(0.012, 0.02, caption, fontsize=8, color=_GREY)
    figure.savefig(path)


def _panel(axis, reward, curves):
    span = reward.high - reward.low
    for label, of_seeds in curves.items():
        smooth = np.array([running_mean(curve) for curve in of_seeds])
        steps = np.arange(WINDOW, WINDOW + smooth.shape[1])
        low, middle, high = np.percentile(smooth, [25, 50, 75], axis=0)
        colour = style(label).light
        axis.plot(steps, smooth.T, color=colour, alpha=0.35, linewidth=0.8)
        axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(steps, middle, color=colour, linewidth=2.2, label=label.upper())
    threshold = reward.low + REACHED * span
    axis.axhline(threshold, color=_GREY, linewidth=0.8, linestyle=(0, (4, 4)))
    axis.text(3, threshold + 0.012 * span, "80 %", fontsize=7.5, color=_GREY)
    axis.set_title(f"{reward.name} reward", fontsize=10.5, loc="left")
    axis.set_ylabel(f"mean over rollouts ({reward.low:g} to {reward.high:g})", fontsize=8.5)
    axis.set_xlabel("optimizer step", fontsize=8.5)
    axis.set_ylim(reward.low - 0.03 * span, reward.high + 0.03 * span)
    axis.legend(loc="lower right", frameon=False, fontsize=9)
    axis.grid(alpha=0.2, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
