"""Defines the blocks of which a report consists, and prints them in a terminal.

Pages show the same blocks with `templates/parts.html`. Control characters in text from files are
made visible, so they have no effect on the terminal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from rich.cells import cell_len
from rich.text import Text

from gdpo._text import counted
from gdpo.analysis.run import RunAnalysis
from gdpo.diagnostics.watch import HeldFinding
from gdpo.report.charts import Chart
from gdpo.report.html import bars, finding_row, in_words
from gdpo.report.text import NAMES, finding_lines, table, wrapped

ALL = "(--output json prints all)"


@dataclass(frozen=True, slots=True)
class Sentences:
    """Stores sentences, each of which begins a line. Names in backticks are code on a page."""

    kind: ClassVar[str] = "sentences"
    texts: tuple[str, ...]
    style: str = ""
    """Style in the terminal: "dim", "yellow" or "green". On pages, dim text is small. Yellow text
    is not wrapped, so that a command in it can be copied."""


@dataclass(frozen=True, slots=True)
class Table:
    """Stores a table. A column of remarks has an empty heading."""

    kind: ClassVar[str] = "table"
    title: str
    """Line above the table. On a page, its caption."""
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    unit: str
    """What a row is about."""
    on_page: tuple[str, ...] = ()
    """Headings of columns that only a page shows."""
    first: tuple[str, ...] = ()
    """Headings of the columns that follow the name on a page, so that a phone shows them."""
    column: str = ""
    """What the last columns are about, if a terminal may leave out those that do not fit."""
    others: tuple[str, ...] = ()
    """What a terminal shows neither in this table nor elsewhere."""

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The headings and the rows in the order of columns of a page."""
        columns = zip(self.headings, *self.rows, strict=True)
        ordered = sorted(columns, key=lambda c: (c[0] not in NAMES, c[0] not in self.first))
        return list(zip(*ordered, strict=True))


@dataclass(frozen=True, slots=True)
class FindingBlock:
    """Stores a lasting finding of a run, with the sentences to show."""

    kind: ClassVar[str] = "finding"
    run: RunAnalysis
    held: HeldFinding
    message: str
    remedy: str

    @property
    def row(self) -> dict[str, Any]:
        """The finding as a row of a page."""
        numbers, held = self.run.steps, self.held
        spans = [(numbers[first - 1], numbers[last - 1]) for first, last in held.spans]
        words = f"{in_words(spans)}: {held.steps:,} of {held.of:,}"
        finding = replace(held.finding, message=self.message, remedy=self.remedy, setting=None)
        return finding_row(finding, [(bars(held.spans[:400], held.of), words)])


@dataclass(frozen=True, slots=True)
class Charts:
    """Stores charts, which only pages show."""

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart]


Block: TypeAlias = Sentences | Table | FindingBlock | Charts


@dataclass(frozen=True, slots=True)
class Section:
    """Stores a section of a page."""

    name: str
    title: str
    note: str
    """Explanation of the numbers, in small letters."""
    blocks: Sequence[Block]


def printed(blocks: Iterable[Block], width: int, *, most: int = 99, whole: bool) -> list[Text]:
    """Return lines to print with rich.

    Args:
        blocks: What to print.
        width: Terminal width in cells. Longer lines are wrapped.
        most: Maximum number of rows of a table.
        whole: Whether tables contain whole names and may be wider, as in a file.
    """
    lines: list[Text] = []
    for block in blocks:
        if isinstance(block, Sentences):
            kept = (
                map(Text, block.texts) if block.style == "yellow" else wrapped(block.texts, width)
            )
            lines += [Text(line.plain, style=block.style) for line in kept]
        elif isinstance(block, FindingBlock):
            severity = block.held.finding.severity
            lines += finding_lines(severity, block.message, block.remedy, width)
        elif isinstance(block, Table):
            lines += _table(block, width, most, whole=whole)
    return lines


def _table(block: Table, width: int, most: int, *, whole: bool) -> Iterator[Text]:
    columns = [
        column
        for column in zip(block.headings, *block.rows[:most], strict=True)
        if column[0] not in block.on_page
    ]
    fitting = columns
    if block.column and not whole:
        names = sum(column[0] in NAMES for column in columns) + 2
        wide = [2 + max(map(cell_len, column)) for column in columns]
        fits = sum(sum(wide[: end + 1]) - 2 <= width for end in range(len(columns)))
        fitting = columns[: max(names, fits)]
    if block.title:
        yield Text(block.title, style="bold")
    yield from table(list(zip(*fitting, strict=True)), width, whole=whole)
    left = (
        (len(block.rows) - most, f"more {block.unit}"),
        (len(columns) - len(fitting), f"more {block.column}"),
    )
    more = [counted(count, what) for count, what in left if count > 0]
    if more := [*more, *block.others]:
        yield Text(f"and {', '.join(more)} {ALL}", style="dim")
