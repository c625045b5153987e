"""What a run shows while it trains: a bar and one line per reward, or lines of plain text."""

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gdpo.runs.summary import duration, number

_BLOCKS = "▁▂▃▄▅▆▇█"
_TREND_WIDTH = 24
_RECENT = 20
"""Steps that the remaining time is estimated from."""

STOPPING = "stopping, and saving what is done; Ctrl-C again stops without saving"


@dataclass(slots=True)
class RunView:
    """What is known of a running training, and shown."""

    name: str
    rewards: Sequence[tuple[str, float]]
    """Name and weight of each."""
    total_steps: int
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The metrics so far, one per logged step."""
    note: str = ""
    scoring: str = ""
    """How far the scoring of a batch is; empty unless it takes long."""
    started: float = field(default_factory=time.monotonic)

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def newest(self, key: str) -> float | None:
        """A figure of the latest step that has it; None where it could not be measured there.

        Where one generation serves several steps, only the step that it was made for has the
        figures of its rollouts.
        """
        return next((number(row, key) for row in reversed(self.rows) if key in row), None)

    def seconds_left(self) -> float | None:
        """From the duration of the latest steps; None before the first."""
        times = [
            time for row in self.rows[-_RECENT:] if (time := number(row, "step_time")) is not None
        ]
        return sum(times) / len(times) * (self.total_steps - self.step) if times else None


@dataclass(frozen=True, slots=True)
class Display:
    """How a running training is shown."""

    update: Callable[[], None]
    """Show the step that was added to the view."""
    stopping: Callable[[], None]
    """Say that a stop was asked for. Called inside a signal handler, so it takes no lock."""


def _nothing() -> None:
    """Shows nothing."""


@contextmanager
def show(view: RunView, console: Console | None) -> Generator[Display]:
    """Show a run while the context lasts, in the way that suits the console.

    A terminal gets a bar and a table that stay in place; a log or a pipe one line per step.

    Args:
        view: What is shown; whoever trains adds to it.
        console: None: nothing is shown.
    """
    if console is None:
        yield Display(_nothing, _nothing)
    elif console.is_terminal:
        with Live(
            console=console, get_renderable=lambda: dashboard(view), refresh_per_second=2
        ) as live:
            yield Display(live.refresh, lambda: setattr(view, "note", STOPPING))
    else:
        yield Display(
            lambda: console.print(Text(one_line(view)), soft_wrap=True),
            lambda: _write_to_stderr(STOPPING),
        )


def _write_to_stderr(text: str) -> None:
    """Past Python's streams, which may be in the middle of a line."""
    os.write(2, f"\n{text}\n".encode())


def dashboard(view: RunView) -> RenderableType:
    """The bar, one line per reward, and what else matters."""
    parts: list[RenderableType] = [_bar(view), _reward_table(view)]
    if view.rows:
        parts.append(Text(_rest(view), style="dim"))
    if view.scoring:
        parts.append(Text(view.scoring, style="dim"))
    if view.note:
        parts.append(Text(view.note, style="yellow"))
    return Group(*parts)


def one_line(view: RunView) -> str:
    """The newest step in one line."""
    rewards = " | ".join(
        f"{name} {_figure(view.newest(f'rewards/{name}/mean'))} "
        f"± {_figure(view.newest(f'rewards/{name}/group_std'))} in groups, "
        f"dead {_percent(view.newest(f'rewards/{name}/zero_variance_groups'))}"
        for name, _ in view.rewards
    )
    left = view.seconds_left()
    remaining = (
        f" | {duration(left)} left" if left is not None and view.step < view.total_steps else ""
    )
    return f"step {view.step}/{view.total_steps} | {rewards} | {_rest(view)}{remaining}"


def trend(values: Sequence[float], width: int = _TREND_WIDTH) -> str:
    """A line of blocks from the lowest to the highest of the values, the newest at the right.

    >>> trend([0, 1, 2, 3], width=4)
    '▁▃▆█'
    """
    if not values:
        return ""
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def _bar(view: RunView) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    left = view.seconds_left()
    grid.add_row(
        Text(view.name, style="bold"),
        ProgressBar(total=view.total_steps, completed=view.step, width=40),
        f"step {view.step} of {view.total_steps}",
        Text(f"{duration(time.monotonic() - view.started)} elapsed", style="dim"),
        Text("" if left is None else f"{duration(left)} left", style="dim"),
    )
    return grid


def _reward_table(view: RunView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("reward", style="cyan")
    for heading in ("weight", "mean"):
        table.add_column(heading, justify="right")
    table.add_column("trend", width=_TREND_WIDTH)
    for heading in ("± in groups", "zero-variance groups"):
        table.add_column(heading, justify="right")
    for name, weight in view.rewards:
        means = [v for past in view.rows if (v := number(past, f"rewards/{name}/mean")) is not None]
        table.add_row(
            escape(name),
            f"{weight:g}",
            _figure(view.newest(f"rewards/{name}/mean")),
            trend(means),
            _figure(view.newest(f"rewards/{name}/group_std")),
            _percent(view.newest(f"rewards/{name}/zero_variance_groups")),
        )
    return table


def _rest(view: RunView) -> str:
    parts = [
        f"{_figure(view.newest('completions/mean_length'), 0)} tokens per answer, "
        f"{_percent(view.newest('completions/clipped_ratio'))} cut off",
        f"gradient {_figure(view.newest('grad_norm'))}",
        f"learning rate {view.newest('learning_rate') or 0:.2g}",
        f"{_figure(view.newest('step_time'), 1)} s per step",
    ]
    return " · ".join(parts)


def _figure(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
