"""Prints the trade-off between two rewards as a table for a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gdpo._text import visible
from gdpo.experiments.fronts import Front
from gdpo.experiments.statistics import Interval

_NOTE = (
    "front: no variant of the same estimator has a mean at least as high in both rewards and "
    "higher in one. hypervolume: both rewards are scaled to 0 to 1 by their ranges, and the "
    "reference point is (0, 0). Intervals: Student's t over the seeds, 95 %."
)


def front_summary(fronts: Sequence[Front], rewards: tuple[str, str]) -> RenderableType:
    """Return a table of the variants and a line with the hypervolume of each estimator."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("variant", style="bold", overflow="fold")
    for heading in (*rewards, "front"):
        table.add_column(Text(visible(heading)), justify="right")
    for front in fronts:
        for point in front.points:
            cells = [visible(point.label), _shown(point.first), _shown(point.second)]
            table.add_row(*map(Text, cells), "yes" if point.on_front else "no")
    lines = [Text(_hypervolume(front, fronts[0].estimator)) for front in fronts]
    return Group(table, *lines, Text(_NOTE, style="dim"))


def _hypervolume(front: Front, baseline: str) -> str:
    seeds = f"{front.seeds} seed{'s' * (front.seeds != 1)}"
    text = f"hypervolume of {visible(front.estimator)}: {_shown(front.hypervolume)}, {seeds}"
    if front.difference is None:
        return text
    return f"{text}; minus {visible(baseline)}: {_shown(front.difference)}"


def _shown(found: Interval) -> str:
    if found.value != found.value:
        return "–"
    known = found.low == found.low
    return f"{found.value:.3f}" + (f" [{found.low:.3f}, {found.high:.3f}]" if known else "")
