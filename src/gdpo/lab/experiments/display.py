"""Shows a comparison's progress: the runs, the remaining time and the cost."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gdpo._terminal import say
from gdpo._text import one_line
from gdpo.lab.experiments.grid import Cell, Grid
from gdpo.lab.experiments.process import Update
from gdpo.lab.runs.directory import Facts, RunDirectory, read_run
from gdpo.lab.runs.summary import duration, number

_RECENT = 5
"""Number of last steps over which the printed rewards are averaged."""

_HOUR = 3600.0


@contextmanager
def grid_display(
    grid: Grid, console: Console, *, jobs: int, total_steps: int, price: float
) -> Generator[Update]:
    """Print a line when a run ends. In a terminal, also show the step of each run in training.

    Yield a function that updates the display. `total_steps` of a run and its `price` per hour are
    0 if unknown.
    """
    began = time.monotonic()
    open_cells = grid.open()

    def update() -> None:
        for cell in [cell for cell in open_cells if cell.done]:
            open_cells.remove(cell)
            ended = f"{'failed' if cell.failed else 'finished'} at step {len(_rows(cell))}"
            say(console, f"{cell.name}: {ended}; {_means(cell)}. {left()}")
        steps = (f"{cell.name} at step {len(_rows(cell))}" for cell in grid.running())
        status.update(Text(one_line("; ".join([left(), *steps]))))

    def left() -> str:
        """Return the number of ended runs, and the remaining time and cost at the current pace."""
        text = f"{len(grid.cells) - len(open_cells)} of {len(grid.cells)} runs"
        done = sum(len(_rows(cell)) - cell.steps_before for cell in grid.cells if cell.began)
        rest = sum(total_steps - len(_rows(cell)) for cell in open_cells)
        if not total_steps or done < 1 or rest < 1:
            return text
        seconds = rest * (time.monotonic() - began) / done
        text += f"; {duration(seconds)} left"
        if jobs > 1:
            text += f" ({duration(seconds * jobs)} of run time)"
        return f"{text}, cost {seconds * jobs / _HOUR * price:.2f}" if price else text

    with console.status("") as status:
        yield update
        update()


def _rows(cell: Cell) -> tuple[Facts, ...]:
    """Return a run's metrics. Read the file again only if its size has changed."""
    file = cell.run.metrics
    return _read(cell.run.path, file.stat().st_size) if file.is_file() else ()


@lru_cache(maxsize=4096)
def _read(path: Path, _size: int) -> tuple[Facts, ...]:
    return tuple(read_run(RunDirectory(path)).steps)


def _means(cell: Cell) -> str:
    """Return the mean of each reward over the last steps."""
    rows = _rows(cell)[-_RECENT:]
    keys = [key for key in (rows[-1] if rows else ()) if key.startswith("rewards/")]
    means = {
        key.removeprefix("rewards/").removesuffix("/mean"): [
            value for row in rows if (value := number(row, key)) is not None
        ]
        for key in keys
        if key.endswith("/mean")
    }
    return ", ".join(
        f"{name} {sum(values) / len(values):.2f}" for name, values in means.items() if values
    )
