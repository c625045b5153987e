"""Builds the summary of a trade-off between two rewards for a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gdpo._text import visible
from gdpo.lab.experiments.comparison import Comparison
from gdpo.lab.experiments.fronts import trade_off
from gdpo.lab.report._front_chart import front_table
from gdpo.lab.report._tables import Name

_NOTE = (
    "front: yes if no variant of the same estimator has means at least as high in both rewards and "
    "higher in one. Intervals: Student's t over the seeds, 95 %."
)


def front_summary(comparison: Comparison, rewards: tuple[str, str]) -> RenderableType:
    """Return a table of the variants.

    Args:
        comparison: The results of an experiment.
        rewards: Names of two rewards.

    Raises:
        ConfigError: If the experiment has no such reward, or labels define it differently.
    """
    shown = front_table(trade_off(comparison, rewards))
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("variant", style="bold", overflow="fold")
    for heading in shown.columns[2:]:
        table.add_column(Text(visible(heading)), justify="right")
    for _, *row in shown.rows:
        texts = (cell.text if isinstance(cell, Name) else str(cell) for cell in row)
        table.add_row(*(Text(visible(text)) for text in texts))
    return Group(table, Text(_NOTE, style="dim"))
