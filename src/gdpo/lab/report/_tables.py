"""Writes tables as CSV and Markdown. All text is escaped for the respective format."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gdpo._text import one_line
from gdpo.lab.experiments.reading import Measured
from gdpo.lab.experiments.statistics import Interval
from gdpo.report.text import number

NOTHING = "–"
"""Placeholder for a missing value. CSV files have an empty cell instead."""


@dataclass(frozen=True, slots=True)
class Name:
    """Stores untrusted text, such as the name of an estimator or a reward, or a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Stores a number and its interval as text. CSV files use three columns for an estimate."""

    value: str
    low: str = NOTHING
    high: str = NOTHING

    def __str__(self) -> str:
        unknown = self.low == self.high == NOTHING
        return self.value if unknown else f"{self.value} [{self.low}, {self.high}]"


Cell: TypeAlias = str | Name | Estimate


@dataclass(frozen=True, slots=True)
class Table:
    """Stores a table to be exported."""

    file: str
    """Name of the table's files, without the extension."""
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def estimate(found: Interval, reward: Measured, *, sign: bool = False) -> Estimate:
    """Return a number and its interval, rounded to about a thousandth of the reward's range."""
    ends = (found.value, found.low, found.high)
    return Estimate(*(number(end, reward.low, reward.high, sign=sign) for end in ends))


def to_csv(table: Table) -> str:
    """Return a table as CSV, with separate columns for intervals and `-` as the minus sign.

    Names that begin with `=`, `+`, `-` or `@` get an apostrophe in front, because a spreadsheet
    would take them for formulas.
    """
    widths = [
        3 if any(isinstance(row[place], Estimate) for row in table.rows) else 1
        for place in range(len(table.columns))
    ]
    headings: list[str] = []
    for column, width in zip(table.columns, widths, strict=True):
        name = _harmless(one_line(column))
        headings += [name, f"{name}, low", f"{name}, high"][:width]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    for row in table.rows:
        cells: list[str] = []
        for cell, width in zip(row, widths, strict=True):
            if isinstance(cell, Estimate):
                cells += map(_plain, (cell.value, cell.low, cell.high))
            else:
                text = _harmless(one_line(cell.text)) if isinstance(cell, Name) else _plain(cell)
                cells += [text, "", ""][:width]
        writer.writerow(cells)
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """Return a table as GitHub-flavoured Markdown."""
    lines = [[markdown_text(column) for column in table.columns], ["---"] * len(table.columns)]
    lines += [
        [markdown_text(cell.text if isinstance(cell, Name) else str(cell)) for cell in row]
        for row in table.rows
    ]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{markdown_text(table.caption)}**\n\n{rows}\n"


def markdown_text(text: str) -> str:
    """Return the text on one line, with all Markdown characters escaped."""
    escaped = re.sub(r"([\\`*_{}\[\]()#~|$!])", r"\\\1", one_line(text))
    # Prevent automatic links.
    escaped = re.sub(r"(?i)(https?|ftp|www)([:.])", r"\1\\\2", escaped)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str) -> str:
    return "" if text == NOTHING else text.replace("−", "-")


def _harmless(text: str) -> str:
    # Spreadsheets also accept the full-width forms of these characters.
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")) else text
