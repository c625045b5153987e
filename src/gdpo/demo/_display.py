"""What is shown while the demo runs: the warm start, then both arms in one display."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gdpo.rewards import Reward

_BLOCKS = "▁▂▃▄▅▆▇█"
_TREND_WIDTH = 20
_EVERY = 10
"""A console that is no terminal gets a line per arm every so many steps."""


@dataclass(slots=True)
class ArmView:
    """What is shown of an arm."""

    name: str
    total_steps: int
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def means(self, reward: Reward) -> list[float]:
        """The mean reward of each step."""
        return [row[f"rewards/{reward.name}/mean"] for row in self.rows]


@contextmanager
def warm_start_bar(console: Console, total: int) -> Generator[Callable[[int], None]]:
    """A bar for the supervised phase; yields what is told how many steps are done."""
    columns = (
        TextColumn("warm start"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def arms_display(
    console: Console, views: Sequence[ArmView], rewards: Sequence[Reward]
) -> Generator[Callable[[], None]]:
    """Show the arms while the context lasts; yields what is called after the views have changed."""
    if not console.is_terminal:
        shown = dict.fromkeys((view.name for view in views), 0)
        yield lambda: _print_lines(console, views, rewards, shown)
        return
    started = time.monotonic()
    with Live(
        console=console,
        get_renderable=lambda: _dashboard(views, rewards, time.monotonic() - started),
        refresh_per_second=4,
    ) as live:
        yield live.refresh


def _dashboard(
    views: Sequence[ArmView], rewards: Sequence[Reward], seconds: float
) -> RenderableType:
    bars = Table.grid(padding=(0, 1))
    for view in views:
        bars.add_row(
            Text(view.name.upper(), style="bold"),
            ProgressBar(total=view.total_steps, completed=view.step, width=40),
            f"step {view.step} of {view.total_steps}" if view.rows else "starting …",
        )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("mean reward", style="cyan")
    for view in views:
        table.add_column(view.name.upper(), justify="right")
        table.add_column("", width=_TREND_WIDTH)
    for reward in rewards:
        cells = [cell for view in views for cell in _cells(view, reward)]
        table.add_row(f"{reward.name} ({reward.low:g} to {reward.high:g})", *cells)
    return Group(bars, table, Text(f"{seconds:.0f} s", style="dim"))


def _cells(view: ArmView, reward: Reward) -> tuple[str, str]:
    means = view.means(reward)
    return (f"{means[-1]:.2f}" if means else "–", trend(means, reward.low, reward.high))


def trend(values: Sequence[float], low: float, high: float, width: int = _TREND_WIDTH) -> str:
    """A line of blocks, the newest value at the right, on a scale from `low` to `high`.

    >>> trend([0.0, 0.5, 1.0, 1.0], 0.0, 1.0, width=2)
    '▃█'
    """
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)] if width else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((mean - low) / (high - low) * top)] for mean in means)


def _print_lines(
    console: Console, views: Sequence[ArmView], rewards: Sequence[Reward], shown: dict[str, int]
) -> None:
    for view in views:
        due = view.step - view.step % _EVERY if view.step < view.total_steps else view.step
        if due > shown[view.name]:
            shown[view.name] = due
            console.print(Text(_line(view, view.rows[due - 1], rewards)), soft_wrap=True)


def _line(view: ArmView, row: Mapping[str, Any], rewards: Sequence[Reward]) -> str:
    means = ", ".join(f"{r.name} {row[f'rewards/{r.name}/mean']:.2f}" for r in rewards)
    return f"{view.name.upper()} step {row['step']} of {view.total_steps}: {means}"
