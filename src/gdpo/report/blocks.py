"""Defines the blocks of which a report consists, and how a terminal prints them.

Pages show the same blocks with `templates/parts.html`. Control characters in text from files are
made visible, so they have no effect on the terminal.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from textwrap import wrap
from typing import ClassVar, NamedTuple, TypeAlias

from rich.cells import cell_len
from rich.text import Text

from gdpo._text import counted, one_line
from gdpo.diagnostics import Finding
from gdpo.diagnostics.diagnosis import MARKS, Severity
from gdpo.diagnostics.watch import Span
from gdpo.report.charts import Chart
from gdpo.report.text import NAMES, shortened, table, without_middle
from gdpo.rollouts.readers.report import Oddity

ALL = "(--output json prints all)"

_STYLES = {Severity.WARNING: "bold red", Severity.NOTE: "yellow"}

_NOTICES = 3
"""Maximum number of notices in a terminal."""

_FINDINGS = 3
"""Maximum number of findings in a terminal. The others are counted."""

_PLACE = 40
"""Minimum width of a shortened file name, in terminal cells."""

WHOLE = 500
"""Maximum width of the verdict, and of the sentence about a file, which ends with a remedy."""


Lines: TypeAlias = Iterator[Text]
"""Lines of a terminal."""


class Terminal(NamedTuple):
    """Stores how blocks are printed."""

    width: int = 100
    """Width in cells. Longer lines are wrapped."""
    whole: bool = False
    """Whether tables contain whole names and may be wider, as in a file."""
    page: Path | None = None
    """Page with all findings, if one is written."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """Stores sentences, each of which begins a line. Names in backticks are code on a page."""

    kind: ClassVar[str] = "sentences"
    texts: Sequence[str]
    style: str = ""
    """Style in the terminal: "dim", "green" or "bold". On pages, dim text is small."""
    most: int = 99
    """Maximum number of sentences that a terminal prints."""
    unit: str = ""
    """What a sentence is about, to count those that a terminal does not print."""
    lines: int = 0
    """Maximum number of lines that a terminal prints of a sentence. 0: all."""
    wrapped: bool = True
    """Whether lines are broken at words. False: the terminal breaks them, so that a command in a
    sentence can be copied."""

    def printed(self, on: Terminal) -> Lines:
        """Yield the lines in a terminal."""
        texts, room = list(self.texts[: self.most]), self.lines * on.width - 4
        if (more := len(self.texts) - self.most) > 0:
            texts.append(f"and {counted(more, f'more {self.unit}')}")
        for text in texts:
            shown = shortened(text, room, f" … {ALL}") if self.lines else text
            lines = wrap(shown, on.width, subsequent_indent="  ") if self.wrapped else [shown]
            yield from (Text(line, style=self.style) for line in lines)


@dataclass(frozen=True, slots=True)
class Notices:
    """Stores what is odd about the files. In a terminal, a command in it can be copied."""

    kind: ClassVar[str] = "sentences"
    style: ClassVar[str] = ""
    found: Sequence[Oddity]

    @property
    def texts(self) -> list[str]:
        """The sentences of a page."""
        return [each.line(options=True) for each in self.found]

    def printed(self, on: Terminal) -> Lines:
        """Yield the lines in a terminal."""
        found = list(self.found)
        if len(found) > _NOTICES:
            more = f"and {len(found) - _NOTICES + 1:,} more notices {ALL}"
            found[_NOTICES - 1 :] = [Oddity(more)]
        for each in found:
            text = without_middle(one_line(each.sentence(options=True)), WHOLE)
            room = max(_PLACE, 2 * on.width - len(text) - len("! : "))
            where = without_middle(one_line(each.place), room)
            yield Text(f"! {where}{': ' if where else ''}{text}", style="yellow")


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
    most: int = 99
    """Maximum number of rows that a terminal prints. 0: only a page shows the block."""

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The headings and the rows in the order of columns of a page."""
        columns = zip(self.headings, *self.rows, strict=True)
        ordered = sorted(columns, key=lambda c: (c[0] not in NAMES, c[0] not in self.first))
        return list(zip(*ordered, strict=True))

    def printed(self, on: Terminal) -> Lines:
        """Yield the lines in a terminal."""
        if not self.most:
            return
        columns = [
            column
            for column in zip(self.headings, *self.rows[: self.most], strict=True)
            if column[0] not in self.on_page
        ]
        fitting = columns
        if self.column and not on.whole:
            names = sum(column[0] in NAMES for column in columns) + 2
            ends = accumulate(2 + max(map(cell_len, column)) for column in columns)
            fits = sum(end - 2 <= on.width for end in ends)
            fitting = columns[: max(names, fits)]
        if self.title:
            yield Text(self.title, style="bold")
        yield from table(list(zip(*fitting, strict=True)), on.width, whole=on.whole)
        left = (
            (len(self.rows) - self.most, f"more {self.unit}"),
            (len(columns) - len(fitting), f"more {self.column}"),
        )
        more = [counted(count, what) for count, what in left if count > 0]
        if more := [*more, *self.others]:
            yield Text(f"and {', '.join(more)} {ALL}", style="dim")


class When(NamedTuple):
    """Stores when a run had a finding."""

    drawn: Sequence[Span]
    """The spans of steps, drawn as bars, counted from 1."""
    total: int
    """Number of steps of the run."""
    spans: Sequence[Span]
    """The spans in the numbers of the steps."""
    seed: int | None = None
    steps: int | None = None
    """Number of steps with the finding. None: not counted."""


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Stores a lasting finding, with the sentences to show."""

    finding: Finding
    message: str
    remedy: str
    when: Sequence[When]
    """When each run had the finding."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Stores findings, the worst first."""

    kind: ClassVar[str] = "findings"
    rows: Sequence[FindingRow]

    def printed(self, on: Terminal) -> Lines:
        """Yield the lines in a terminal."""
        for row in self.rows[:_FINDINGS]:
            severity = row.finding.severity
            message = f"{MARKS[severity]} {row.message}"
            for line in wrap(message, on.width, subsequent_indent="  "):
                yield Text(line, style=_STYLES[severity])
            if row.remedy:
                remedy = f"  → {row.remedy}"
                yield from map(Text, wrap(remedy, on.width, subsequent_indent="    "))
        if (more := len(self.rows) - _FINDINGS) > 0:
            where = ALL if on.page is None else f"(on {one_line(str(on.page))})"
            yield Text(f"and {counted(more, 'more finding')} {where}", style="dim")


@dataclass(frozen=True, slots=True)
class Charts:
    """Stores charts, which only pages show."""

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart]


Block: TypeAlias = Sentences | Notices | Table | Findings

Contents: TypeAlias = Mapping[str, Sequence[Block]]
"""The blocks of a report by the name of their part, in the order of the terminal."""


def printed(blocks: Iterable[Block], on: Terminal) -> list[Text]:
    """Return lines to print with rich."""
    return [line for block in blocks for line in block.printed(on)]
