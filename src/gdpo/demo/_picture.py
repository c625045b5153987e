"""The curves of the demo as a picture."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gdpo
from gdpo.demo._report import ONE_SEED, Curve
from gdpo.errors import MissingExtraError

_COLOURS = {"grpo": "#D55E00", "gdpo": "#0072B2"}
"""Okabe and Ito's, which people with any colour vision can tell apart."""

_GREY = "#666666"

_SMOOTHING = "Thin: each step; thick: mean over its neighbours."


def draw_picture(path: Path, curves: Sequence[Curve], *, setup: str) -> None:
    """Draw one panel per reward, with all arms in it.

    Thin: each step. Thick: the mean over its neighbourhood.

    Args:
        path: A PNG file.
        curves: Of all arms and rewards.
        setup: What was trained, for the caption.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots", "to draw the demo's curves") from error
    rewards = list(dict.fromkeys(curve.reward for curve in curves))
    figure = Figure(figsize=(4.6 * len(rewards), 4.1), dpi=160)
    figure.suptitle(
        "Two rewards, one tiny policy: GRPO and GDPO side by side",
        x=0.012, y=0.98, ha="left", fontsize=13, fontweight="bold",
    )  # fmt: skip
    figure.subplots_adjust(left=0.065, right=0.95, top=0.80, bottom=0.24, wspace=0.3)
    axes: Any = figure.subplots(1, len(rewards), squeeze=False)[0]
    for axis, reward in zip(axes, rewards, strict=True):
        _panel(axis, [curve for curve in curves if curve.reward == reward])
    caption = f"{setup}\n{_SMOOTHING} {ONE_SEED} {_versions()}"
    figure.text(0.012, 0.02, caption, fontsize=7.5, color=_GREY)
    partial = path.with_name(f".{path.stem}.partial.png")
    figure.savefig(partial)
    partial.replace(path)


def _versions() -> str:
    libraries = [f"{name} {version(name)}" for name in ("trl", "torch")]
    return ", ".join([f"gdpo {gdpo.__version__}", *libraries])


def _panel(axis: Any, curves: Sequence[Curve]) -> None:
    first = curves[0]
    span = first.high - first.low
    for curve in curves:
        steps = range(1, len(curve.values) + 1)
        axis.plot(steps, curve.values, color=_COLOURS[curve.arm], alpha=0.3, linewidth=0.8)
        axis.plot(steps, curve.smooth, color=_COLOURS[curve.arm], linewidth=2.2)
    _label_ends(axis, curves, least=0.07 * span)
    axis.axhline(first.threshold, color=_GREY, linewidth=0.8, linestyle=(0, (4, 4)))
    axis.text(1, first.threshold + 0.012 * span, "80 % of the range", fontsize=7, color=_GREY)
    axis.set_title(f"{first.reward} reward", fontsize=10.5, loc="left")
    axis.set_ylabel(f"mean over rollouts ({first.low:g} to {first.high:g})", fontsize=8.5)
    axis.set_xlabel("optimizer step", fontsize=8.5)
    axis.set_ylim(first.low - 0.03 * span, first.high + 0.03 * span)
    axis.set_xlim(0, len(first.values) + 1)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.2, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _label_ends(axis: Any, curves: Sequence[Curve], *, least: float) -> None:
    """Name each curve at its right end, the names at least so far apart."""
    height = float("-inf")
    for curve in sorted(curves, key=lambda curve: curve.smooth[-1]):
        height = max(curve.smooth[-1], height + least)
        axis.annotate(
            curve.arm.upper(),
            (len(curve.values), height),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            fontweight="bold",
            color=_COLOURS[curve.arm],
            annotation_clip=False,
        )
