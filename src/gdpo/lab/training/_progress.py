"""Shows the progress of a training run."""

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gdpo._terminal import Shown, say
from gdpo.lab.runs.directory import Facts
from gdpo.lab.runs.summary import duration, number

_RECENT = 20
"""Number of recent steps from which the remaining time is estimated."""

STOPPING = "stopping and saving the last finished step. Press Ctrl-C again to stop without saving"


@dataclass(slots=True)
class RunView:
    """Stores the state of a training run that the display shows."""

    name: str
    rewards: Sequence[tuple[str, float]]
    """Name and weight of each reward."""
    total_steps: int
    rows: list[Facts] = field(default_factory=list)
    """Metrics logged so far, with one row per step."""
    note: str = ""
    scoring: str = ""
    """Progress of scoring a batch. Empty if scoring is fast or finished."""
    started: float = field(default_factory=time.monotonic)

    @property
    def step(self) -> int:
        """Return the number of finished steps."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def newest(self, key: str) -> float | None:
        """Return the latest logged value of a metric, or None if it is not finite.

        Of the steps on one generation, only the first has rollout metrics.
        """
        return next((number(row, key) for row in reversed(self.rows) if key in row), None)

    def seconds_left(self) -> float | None:
        """Return the remaining time, estimated from recent steps. None: no step is finished."""
        times = [
            time for row in self.rows[-_RECENT:] if (time := number(row, "step_time")) is not None
        ]
        return sum(times) / len(times) * (self.total_steps - self.step) if times else None


@dataclass(frozen=True, slots=True)
class Display:
    """Stores the two functions that update the display."""

    update: Callable[[], None]
    """Shows the step that was added to the view."""
    stopping: Callable[[], object]
    """Shows the stop request, without a lock because a signal handler calls it."""


@contextmanager
def show(view: RunView, console: Console | None) -> Generator[Display]:
    """Show a run inside the `with` block: a table on a terminal, a line per step in a log or pipe.

    Without a console, nothing is shown.
    """
    if console is None:
        yield Display(lambda: None, lambda: None)
    elif console.is_terminal:
        with Live(
            console=console, get_renderable=lambda: Shown(dashboard(view)), refresh_per_second=2
        ) as live:
            yield Display(live.refresh, lambda: setattr(view, "note", STOPPING))
    else:
        yield Display(
            lambda: say(console, one_line(view)),
            # Not Python's stream, which may be in use when the signal arrives.
            lambda: os.write(2, f"\n{STOPPING}\n".encode()),
        )


def dashboard(view: RunView) -> RenderableType:
    """Return the progress bar, one line per reward, and the other metrics."""
    bar, left = Table.grid(padding=(0, 1)), view.seconds_left()
    bar.add_row(
        Text(view.name, style="bold"),
        ProgressBar(total=view.total_steps, completed=view.step, width=40),
        f"step {view.step} of {view.total_steps}",
        Text(f"{duration(time.monotonic() - view.started)} elapsed", style="dim"),
        Text("" if left is None else f"{duration(left)} left", style="dim"),
    )
    parts: list[RenderableType] = [bar, _reward_table(view)]
    if view.rows:
        parts.append(Text(_rest(view), style="dim"))
    if view.scoring:
        parts.append(Text(view.scoring, style="dim"))
    if view.note:
        parts.append(Text(view.note, style="yellow"))
    return Group(*parts)


def one_line(view: RunView) -> str:
    """Return the metrics of the newest step in one line."""
    rewards = " | ".join(
        f"{name} {_figure(view.newest(f'rewards/{name}/mean'))}, "
        f"zero variance in {_percent(view.newest(f'rewards/{name}/zero_variance_groups'))}, "
        f"influence share {_percent(view.newest(f'rewards/{name}/influence_share'))}"
        for name, _ in view.rewards
    )
    left = view.seconds_left()
    remaining = (
        f" | {duration(left)} left" if left is not None and view.step < view.total_steps else ""
    )
    return f"step {view.step}/{view.total_steps} | {rewards} | {_rest(view)}{remaining}"


def _reward_table(view: RunView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("reward", style="cyan")
    for heading in ("weight", "mean", "zero-variance groups", "influence share"):
        table.add_column(heading, justify="right")
    for name, weight in view.rewards:
        logged = view.newest(f"rewards/{name}/weight")
        table.add_row(
            escape(name),
            f"{weight if logged is None else logged:.3g}",
            _figure(view.newest(f"rewards/{name}/mean")),
            _percent(view.newest(f"rewards/{name}/zero_variance_groups")),
            _percent(view.newest(f"rewards/{name}/influence_share")),
        )
    return table


def _rest(view: RunView) -> str:
    parts = [
        f"{_figure(view.newest('completions/mean_length'), 0)} tokens per response, "
        f"{_percent(view.newest('completions/clipped_ratio'))} truncated",
        f"gradient {_figure(view.newest('grad_norm'))}",
        f"learning rate {view.newest('learning_rate') or 0:.2g}",
        f"{_figure(view.newest('step_time'), 1)} s per step",
    ]
    return " · ".join(parts)


def _figure(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    # Adding 0 turns -0 into 0: a watched reward has a share of nearly 0, with either sign.
    return "–" if share is None else f"{round(100 * share, 0) + 0.0:.0f} %"
