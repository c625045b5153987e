"""Writes tables as CSV, Markdown and LaTeX. No text in a table is code in any of the three."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gdpo.report.text import one_line

NOTHING = "–"
"""A value that does not exist. It is an empty cell in CSV."""


@dataclass(frozen=True, slots=True)
class Name:
    """A text that did not come from gdpo: the name of an estimator or a reward, or a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval, as text. CSV has three columns for it."""

    value: str
    low: str = NOTHING
    high: str = NOTHING

    def __str__(self) -> str:
        unknown = self.low == self.high == NOTHING
        return self.value if unknown else f"{self.value} [{self.low}, {self.high}]"


Cell: TypeAlias = str | Name | Estimate


@dataclass(frozen=True, slots=True)
class Table:
    """A table of an export."""

    file: str
    """Name of its files, without the ending."""
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def to_csv(table: Table) -> str:
    """Return a table as CSV: an interval in columns of its own, and `-` as the minus sign.

    A spreadsheet reads a cell that begins with `=`, `+`, `-` or `@` as a formula. A name that does
    so gets an apostrophe in front.
    """
    wide = [
        any(isinstance(row[place], Estimate) for row in table.rows)
        for place in range(len(table.columns))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        heading
        for column, intervals in zip(table.columns, wide, strict=True)
        for heading in _headings(_harmless(one_line(column)), intervals=intervals)
    )
    for row in table.rows:
        writer.writerow(
            value
            for cell, intervals in zip(row, wide, strict=True)
            for value in _csv_cells(cell, intervals=intervals)
        )
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, as GitHub reads it."""
    lines = [[_markdown(column) for column in table.columns], ["---"] * len(table.columns)]
    lines += [[_shown(cell, _markdown) for cell in row] for row in table.rows]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{_markdown(table.caption)}**\n\n{rows}\n"


def to_latex(table: Table) -> str:
    r"""Return a table as LaTeX, for a document with `\usepackage{booktabs}`."""
    rows = [_latex_row([_latex(column) for column in table.columns])]
    body = [_latex_row([_shown(cell, _latex) for cell in row]) for row in table.rows]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_latex(table.caption)}}}",
            rf"  \label{{tab:{table.file}}}",
            rf"  \begin{{tabular}}{{{'l' * len(table.columns)}}}",
            r"    \toprule",
            *rows,
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def markdown_text(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return _markdown(text)


def _headings(column: str, *, intervals: bool) -> Sequence[str]:
    return (column, f"{column}, low", f"{column}, high") if intervals else (column,)


def _csv_cells(cell: Cell, *, intervals: bool) -> Iterator[str]:
    if isinstance(cell, Name):
        yield _harmless(one_line(cell.text))
        rest = 2 if intervals else 0
    elif isinstance(cell, Estimate):
        yield from map(_plain, (cell.value, cell.low, cell.high))
        rest = 0
    else:
        yield _plain(cell)
        rest = 2 if intervals else 0
    yield from [""] * rest


def _plain(text: str) -> str:
    return "" if text == NOTHING else text.replace("−", "-")


def _harmless(text: str) -> str:
    # Spreadsheets take the wide forms of these characters, too.
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")) else text


def _shown(cell: Cell, escape: Callable[[str], str]) -> str:
    return escape(cell.text if isinstance(cell, Name) else str(cell))


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*_{}\[\]()#~|$!])", r"\\\1", one_line(text))
    # An address would become a link.
    escaped = re.sub(r"(?i)(https?|ftp|www)([:.])", r"\1\\\2", escaped)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",  # babel makes this character a command in some languages
    "-": "{-}",
    # Behind the end of a row these two would be its arguments.
    "[": "{[}",
    "*": "{*}",
    "−": "$-$",
    "–": "--",
    "…": r"\ldots{}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "×": r"$\times$",
    "→": r"$\to$",
    "⟨": r"$\langle$",
    "⟩": r"$\rangle$",
    "’": "'",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def _latex_row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"
