"""Builds the summary of a trade-off between two rewards for a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gdpo._text import visible
from gdpo.experiments.comparison import Comparison
from gdpo.experiments.fronts import TradeOff, trade_off
from gdpo.report._front_tables import hypervolumes, variants
from gdpo.report._tables import Cell, Name

_NOTE = (
    "front: yes if no variant of the same estimator has means at least as high in both rewards and "
    "higher in one. hypervolume: each reward is scaled to [0, 1] by its range, and the reference "
    "point is (0, 0). Intervals: Student's t over the seeds, 95 %."
)


def front_summary(comparison: Comparison, rewards: tuple[str, str]) -> RenderableType:
    """Return a table of the variants and a line with the hypervolume of each estimator.

    Args:
        comparison: The results of an experiment.
        rewards: Names of two rewards.

    Raises:
        ConfigError: If the experiment has no such reward, or labels define it differently.
    """
    found = trade_off(comparison, rewards)
    shown = variants(found)
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("variant", style="bold", overflow="fold")
    for heading in shown.columns[1:]:
        table.add_column(Text(visible(heading)), justify="right")
    for row in shown.rows:
        table.add_row(*(Text(_text(cell)) for cell in row))
    return Group(table, *map(Text, _lines(found)), Text(_NOTE, style="dim"))


def _lines(found: TradeOff) -> list[str]:
    """Return a line for each estimator with its hypervolume and its difference from the first."""
    baseline = found.fronts[0].estimator
    lines: list[str] = []
    for name, volume, *difference, seeds in hypervolumes(found).rows:
        text = f"hypervolume of {_text(name)}: {volume}, {seeds} seed{'s' * (seeds != '1')}"
        if lines:
            text += f"; minus {visible(baseline)}: {difference[0]}"
        lines.append(text)
    return lines


def _text(cell: Cell) -> str:
    return visible(cell.text if isinstance(cell, Name) else str(cell))
