"""The rewards of a run over its steps, as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdpo.errors import MissingExtraError
from gdpo.training._progress import number
from gdpo.training._summary import RewardChange

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which people with any colour vision can tell apart."""

_LENGTH_COLOUR = "#555555"

_LENGTHS = {
    "completions/mean_length": "answer length",
    "completions/max_length": "longest answer of a step",
}
"""Metrics, and the titles of their panels."""


def draw_curves(
    path: Path, title: str, rows: Sequence[Mapping[str, Any]], rewards: Sequence[RewardChange]
) -> None:
    """Draw one panel per reward, one for the mean length of the answers, and one for the longest.

    Thin: each step. Thick: their running mean.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots", "to draw the curves of a run") from error
    steps = [row for row in rows if "loss" in row]
    panels = len(rewards) + len(_LENGTHS)
    figure = Figure(figsize=(3.4 * panels, 3.0), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize=11, fontweight="bold")
    axes: Any = figure.subplots(1, panels)
    for i, reward in enumerate(rewards):
        _panel(axes[i], steps, f"rewards/{reward.name}/mean", _COLOURS[i % len(_COLOURS)])
        axes[i].set_title(reward.name, fontsize=10)
        axes[i].set_ylabel(f"mean reward ({reward.low:g} to {reward.high:g})", fontsize=8)
    for axis, (key, title) in zip(axes[len(rewards) :], _LENGTHS.items(), strict=True):
        _panel(axis, steps, key, _LENGTH_COLOUR)
        axis.set_title(title, fontsize=10)
        axis.set_ylabel("tokens", fontsize=8)
    partial = path.with_name(f".{path.stem}.partial.png")
    figure.savefig(partial)
    partial.replace(path)


def _panel(axis: Any, rows: Sequence[Mapping[str, Any]], key: str, colour: str) -> None:
    points = [(row["step"], value) for row in rows if (value := number(row, key)) is not None]
    steps, values = [step for step, _ in points], [value for _, value in points]
    axis.plot(steps, values, color=colour, alpha=0.35, linewidth=0.9)
    axis.plot(steps, _running_mean(values), color=colour, linewidth=2)
    _widen_if_flat(axis)
    axis.set_xlabel("optimizer step", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.get_major_locator().set_params(integer=True)


def _widen_if_flat(axis: Any) -> None:
    """A line that does not move is drawn in the middle, not blown up to its rounding errors."""
    low, high = axis.get_ylim()
    middle, least = (low + high) / 2, 0.05 * max(1.0, abs(low + high) / 2)
    if high - low < least:
        axis.set_ylim(middle - least, middle + least)


def _running_mean(values: Sequence[float]) -> list[float]:
    """Mean over a tenth of the run around each step, fewer at the ends."""
    half = max(1, len(values) // 20)
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
