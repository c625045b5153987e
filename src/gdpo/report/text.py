"""Formats numbers for pages and terminals, and tables for a terminal."""

from collections.abc import Iterator, Sequence
from math import ceil, isfinite, isnan, log10

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from gdpo._text import one_line

NAME = 20
"""Number of characters of a reward's name that a terminal shows on one line."""

NAMES = ("run", "reward", "estimator", "turn", "setting", "rollout", "completion")
"""Headings of the columns with names, which are aligned to the left and may be shortened."""

_NAME = 32
"""Maximum number of characters in a name."""

_LEAST = 14
"""Minimum width of a shortened name, in terminal cells."""


def number(value: float, low: float = 0.0, high: float = 1.0, *, sign: bool = False) -> str:
    """Return a number rounded to about a thousandth of `high - low`. NaN becomes –."""
    if isnan(value):
        return "–"
    digits = min(6, max(0, 3 - ceil(log10(high - low)))) if high > low else 3
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text if float(text) else f"{0:.{digits}f}"


def probability(p: float) -> str:
    """Return a p-value as text with two digits."""
    if isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def as_number(value: float, form: str = ".3g") -> str:
    """Return a number, with three significant digits by default. NaN becomes –."""
    return "–" if value != value else f"{value:{form}}"


def as_trend(change: float, margin: float) -> str:
    """Return a change with the half-width of its interval. It is `none` if the interval has 0."""
    if not isfinite(margin):
        return "too few steps" if isnan(margin) else "unclear"
    if abs(change) <= margin:
        return "none" if margin == 0 else f"none (± {as_number(margin)})"
    verb = "rises" if change > 0 else "falls"
    return f"{verb} by {as_number(abs(change))} ± {as_number(margin)}"


def table(rows: Sequence[Sequence[str]], width: int, *, whole: bool = False) -> Iterator[Text]:
    """Align names and remarks to the left, and numbers to the right.

    Names that are long or do not fit are shortened in the middle, starting with the widest column.
    If too little of a name would remain, the terminal wraps the lines. With `whole`, no name is
    shortened, as in a file.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    names = [i for i, head in enumerate(rows[0]) if head in NAMES]
    if not whole:
        widths = [min(size, _NAME) if i in names else size for i, size in enumerate(widths)]
    width = sum(widths) + 2 * len(widths) if whole else width
    fitted = widths.copy()
    for _ in range(sum(widths) + 2 * (len(widths) - 1) - width):
        fitted[max(names, key=fitted.__getitem__)] -= 1
    if min(fitted[i] for i in names) >= min(_LEAST, *(widths[i] for i in names)):
        widths = fitted
    for place, row in enumerate(rows):
        cells = (
            set_cell_size(without_middle(cell, size), size)
            if i in names or not rows[0][i]
            else " " * (size - cell_len(cell)) + cell
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        )
        yield Text("  ".join(cells).rstrip(), style="" if place else "dim")


def without_middle(text: str, size: int) -> str:
    """Shorten a text in the middle to `size` cells, because similar names often end differently."""
    if cell_len(text) <= size:
        return text
    end, start = (size - 1) // 2, size - 1 - (size - 1) // 2
    return f"{chop_cells(text, start)[0]}…{chop_cells(text[::-1], end)[0][::-1]}"


def shortened(text: str, limit: int = 60, end: str = "…") -> str:
    """Return the text, or its start and `end` beyond the limit. The default is for names."""
    return text if len(text) <= limit else f"{text[: limit - len(end)]}{end}"


def short_name(name: str) -> str:
    """Return a name on one line, shortened in the middle."""
    return without_middle(one_line(name), _NAME)
