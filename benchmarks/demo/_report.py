"""Reports the results of the demo: reward curves, a table, a plot and the last responses."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import gdpo
from gdpo.errors import MissingExtraError
from gdpo.lab.experiments.process import Training
from gdpo.lab.experiments.threshold import REACHED, WINDOW, final, first_reached, start, tenth
from gdpo.report.colours import style
from gdpo.rewards import Reward
from gdpo.rollouts import Rollout, read_rollouts, rollout_file

_ONE_SEED = "One seed shows how the two behave, not which is better."


@dataclass(frozen=True, slots=True)
class Curve:
    """Stores the mean of one reward over the rollouts of each step, for one estimator."""

    label: str
    """Name of the estimator."""
    reward: str
    low: float
    high: float
    values: tuple[float, ...]
    """One mean per step. At least one step is required."""

    @property
    def start(self) -> float:
        """Mean over the first tenth of the steps."""
        return start(np.array(self.values))

    @property
    def end(self) -> float:
        """Mean over the last tenth of the steps."""
        return final(np.array(self.values))

    @property
    def threshold(self) -> float:
        """80 % of the way from the lowest to the highest possible value."""
        return self.low + REACHED * (self.high - self.low)

    @property
    def steps_to_threshold(self) -> int | None:
        """First step at which the mean of the last 5 steps reaches the threshold. None: never."""
        window = min(WINDOW, len(self.values))
        return first_reached(np.array(self.values), self.threshold, window=window)

    @property
    def smooth(self) -> tuple[float, ...]:
        """Centred running mean over a tenth of the run, or over fewer steps near both ends."""
        half = max(1, tenth(len(self.values)) // 2)
        places = range(len(self.values))
        return tuple(_mean(self.values[max(0, i - half) : i + half + 1]) for i in places)


def curves(trainings: Sequence[Training], rewards: Sequence[Reward]) -> tuple[Curve, ...]:
    """Return one curve per reward and estimator, from the logged metrics."""
    rows = {training.name: training.run.read_steps() for training in trainings}
    return tuple(
        Curve(name, reward.name, reward.low, reward.high, _values(logged, reward))
        for reward in rewards
        for name, logged in rows.items()
    )


def _values(rows: Sequence[dict[str, Any]], reward: Reward) -> tuple[float, ...]:
    return tuple(row[f"rewards/{reward.name}/mean"] for row in rows)


def report_table(all_curves: Sequence[Curve]) -> Table:
    """Return a table of the start, the end and the step that reached the threshold, per curve."""
    table = Table(
        title="start and end: mean over the first and the last tenth of the steps; reached: mean "
        "of 5 steps",
        title_justify="left",
    )
    table.add_column("reward", style="cyan")
    table.add_column("estimator", style="bold")
    for heading in ("start", "end", "80 % of range", "reached at step"):
        table.add_column(heading, justify="right")
    for reward, of_reward in groupby(all_curves, key=lambda curve: curve.reward):
        for i, curve in enumerate(of_reward):
            table.add_row(
                escape(f"{reward} ({curve.low:g} to {curve.high:g})") if i == 0 else "",
                curve.label.upper(),
                f"{curve.start:.2f}",
                f"{curve.end:.2f}",
                f"{curve.threshold:g}",
                str(curve.steps_to_threshold or "never"),
            )
        table.add_section()
    return table


def conclusions(all_curves: Sequence[Curve]) -> list[str]:
    """Return a line per reward: where each estimator ended, and which reached 80 % earlier."""
    lines: list[str] = []
    for reward, of_reward in groupby(all_curves, key=lambda curve: curve.reward):
        found = list(of_reward)
        ends = ", ".join(f"{curve.label.upper()} ended at {curve.end:.2f}" for curve in found)
        lines.append(f"{reward}: {ends}. {_earlier(found)}")
    return lines


def _earlier(found: Sequence[Curve]) -> str:
    goal = f"reached {100 * REACHED:g} % of the range"
    steps = sorted((step, c.label.upper()) for c in found if (step := c.steps_to_threshold))
    if not steps:
        return f"Neither {goal} by step {len(found[0].values)}."
    (step, name), (later, _) = steps[0], steps[-1]
    if len(steps) == 1:
        return f"Only {name} {goal} (step {step})."
    if step == later:
        return f"Both {goal} at step {step}."
    return f"{name} {goal} {later - step} steps earlier (step {step} instead of {later})."


def last_responses(trainings: Sequence[Training]) -> RenderableType:
    """Return the first response of each estimator to the first prompt of the last step.

    All estimators get the same prompts in the same order.
    """
    rollouts = [
        read_rollouts(rollout_file(training.run.rollouts, len(training.run.read_steps())))[0]
        for training in trainings
    ]
    request = _content(rollouts[0], "prompt")
    parts: list[RenderableType] = [Text(f"Responses to {request!r} after training:", style="bold")]
    for training, rollout in zip(trainings, rollouts, strict=True):
        scored = [(name, value) for name, value in rollout.rewards.items() if value is not None]
        scores = ", ".join(f"{name} {value:.3g}" for name, value in scored)
        parts.append(Text(f"{training.name.upper()} ({scores})", style="cyan"))
        parts.append(Text(_content(rollout, "completion")))
    return Group(*parts)


def _content(rollout: Rollout, field: str) -> str:
    text = getattr(rollout, field)
    return text if isinstance(text, str) else str(text[-1]["content"])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_GREY = "#666666"


_SMOOTHING = "Thin lines: each step. Thick lines: running mean over a tenth of the steps."


def draw_picture(path: Path, curves: Sequence[Curve], *, setup: str) -> None:
    """Draw one panel per reward, with one curve per estimator.

    Args:
        path: The PNG file to write.
        curves: Curves of all estimators and rewards.
        setup: Description of the training run, for the caption.

    Raises:
        MissingExtraError: If matplotlib is not installed.
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
    caption = f"{setup} {_versions()}.\n{_SMOOTHING} {_ONE_SEED}"
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
        axis.plot(steps, curve.values, color=style(curve.label).light, alpha=0.3, linewidth=0.8)
        axis.plot(steps, curve.smooth, color=style(curve.label).light, linewidth=2.2)
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
    """Label each curve at its right end, with a distance of at least `least` between labels."""
    height = float("-inf")
    for curve in sorted(curves, key=lambda curve: curve.smooth[-1]):
        height = max(curve.smooth[-1], height + least)
        axis.annotate(
            curve.label.upper(),
            (len(curve.values), height),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            fontweight="bold",
            color=style(curve.label).light,
            annotation_clip=False,
        )
