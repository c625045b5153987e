"""Shows a comparison's progress: each run's state, the remaining time and the cost."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gdpo._terminal import Shown
from gdpo.lab.experiments.grid import Cell, Grid
from gdpo.lab.experiments.reading import state_of
from gdpo.lab.runs.directory import RunDirectory
from gdpo.lab.runs.summary import duration, number

_RECENT = 5
"""Number of most recent steps over which the displayed reward is averaged."""

_MOST_ROWS = 30
"""Maximum number of runs in the table: those in progress, then those that ended most recently."""

_HOUR = 3600.0


@contextmanager
def grid_display(
    grid: Grid, console: Console, *, jobs: int, total_steps: int, price: float
) -> Generator[Callable[[], None]]:
    """Show a live table of runs. Outside a terminal, print a line when a run ends.

    Yield a function that updates the display. `total_steps` of a run and its `price` per hour are
    0 if unknown.
    """
    board = _Board(grid, jobs, total_steps, price)
    if not console.is_terminal:
        yield lambda: board.print_ended(console)
        board.print_ended(console)
        return
    with Live(Shown(board.table()), console=console, refresh_per_second=2) as live:
        yield lambda: live.update(Shown(board.table()))
        live.update(Shown(board.table()))


class _Board:
    def __init__(self, grid: Grid, jobs: int, total_steps: int, price: float) -> None:
        self._grid, self._jobs, self._total, self._price = grid, jobs, total_steps, price
        self._began = time.monotonic()
        self._printed = {id(cell) for cell in grid.cells if cell not in grid.open()}

    def table(self) -> RenderableType:
        shown = self._grid.cells
        if len(shown) > _MOST_ROWS:
            running = self._grid.running()
            ended = [cell for cell in shown if cell.training is None and cell.begun]
            room = max(0, _MOST_ROWS - len(running))
            shown = [*running, *ended[len(ended) - min(room, len(ended)) :]]
        names = _rewards([_rows(cell) for cell in shown])
        table = Table("estimator", "seed", "state", "step", *map(escape, names))
        for cell in shown:
            rows = _rows(cell)
            means = [_recent(rows, name) for name in names]
            step = f"{len(rows)}/{self._total}" if self._total else str(len(rows))
            trains = cell.training is not None
            state = "running" if trains else state_of(cell.run, cell.failure)[0]
            table.add_row(escape(cell.label), str(cell.seed), state, step, *means)
        ended = sum(cell.done for cell in self._grid.cells)
        return Group(table, Text(self._left(ended)))

    def print_ended(self, console: Console) -> None:
        for cell in self._grid.cells:
            if id(cell) not in self._printed and cell.done:
                self._printed.add(id(cell))
                rows = _rows(cell)
                means = ", ".join(f"{name} {_recent(rows, name)}" for name in _rewards([rows]))
                ended = "failed" if cell.failed else "finished"
                line = f"{cell.label}, seed {cell.seed}: {ended} at step {len(rows)}; {means}"
                left = self._left(len(self._printed))
                console.print(f"{line}. {left}", markup=False, soft_wrap=True)

    def _left(self, ended: int) -> str:
        """Return the number of ended runs, and the remaining time and cost at the current pace."""
        cells = self._grid.cells
        done = sum(len(_rows(cell)) - cell.steps_before for cell in cells if cell.began)
        passed = time.monotonic() - self._began
        text = f"{ended} of {len(cells)} runs"
        rest = sum(self._total - len(_rows(cell)) for cell in cells if not cell.done)
        if not self._total or done < 1 or rest < 1:
            return text
        left = rest * passed / done
        text += f"; {duration(left)} left"
        if self._jobs > 1:
            text += f" ({duration(left * self._jobs)} of run time)"
        if self._price:
            text += f", cost {left * self._jobs / _HOUR * self._price:.2f}"
        return text


def _rows(cell: Cell) -> list[dict[str, Any]]:
    """Return a run's metrics. Read the file again only if its size has changed."""
    file = cell.run.metrics
    return list(_read(cell.run, file.stat().st_size)) if file.is_file() else []


@lru_cache(maxsize=4096)
def _read(run: RunDirectory, _size: int) -> tuple[dict[str, Any], ...]:
    return tuple(run.read_steps())


def _rewards(runs: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    keys = dict.fromkeys(key for rows in runs for row in rows[-1:] for key in row)
    means = (key for key in keys if key.startswith("rewards/") and key.endswith("/mean"))
    return [key.removeprefix("rewards/").removesuffix("/mean") for key in means]


def _recent(rows: Sequence[dict[str, Any]], name: str) -> str:
    values = [
        v for row in rows[-_RECENT:] if (v := number(row, f"rewards/{name}/mean")) is not None
    ]
    return f"{sum(values) / len(values):.2f}" if values else "–"
