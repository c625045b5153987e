"""Tells how the columns of a CSV file are separated, and how its numbers are written.

Comma, semicolon and tab separate columns. Files with a semicolon or tab may have decimal commas.
"""

import csv
import io
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from gdpo.errors import DataError
from gdpo.rollouts.readers.text import BROKEN, opened_text

pc: Any = pyarrow.compute
_DELIMITERS = ",;\t"
_LOOKED_AT = 32
"""Number of rows that decide between two delimiters that are both in the first line."""
_WIDEST = 2**20
"""Maximum number of characters of a line that is looked at."""
_NUMBER = r"^[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?$"
_WITH_COMMA = r"^[+-]?\d+,\d+([eE][+-]?\d+)?$"
_WITH_POINT = r"^[+-]?\d+\.\d+([eE][+-]?\d+)?$"
_PARTS = r"^([+-]?\d+),(\d+([eE][+-]?\d+)?)$"
_THOUSANDS = r"^[+-]?[1-9]\d{0,2},\d{3}$"
"""Numbers in which a comma may separate thousands or decimals."""


def delimiter_of(path: Path) -> str:
    """Return the character that separates the columns of a CSV file.

    It is the one that splits the first line, or, if several do, the one that splits all of the
    first rows into equally many fields.
    """
    with opened_text(path) as stream:
        text = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
        try:
            lines = list(islice(iter(lambda: text.readline(_WIDEST), ""), _LOOKED_AT))
        except BROKEN:
            return ","
    counts = {each: _counts(lines, each) for each in _DELIMITERS}
    splitting = [each for each, found in counts.items() if found and found[0] > 1]
    even = [each for each in splitting if len(set(counts[each])) == 1]
    return next(iter(even or splitting), ",")


def _counts(lines: list[str], delimiter: str) -> list[int]:
    try:
        rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []
    return [len(row) for row in (rows[:-1] if len(lines) == _LOOKED_AT else rows)]


class DecimalCommas:
    """Replaces decimal commas with points in blocks of text columns.

    The first block decides: in columns that contain only numbers there, or nothing, numbers may
    have decimal commas.
    """

    def __init__(self) -> None:
        self._places: list[int] | None = None

    def __call__(self, block: Any) -> Any:
        """Return the block with decimal points."""
        columns = list(block.columns)
        if self._places is None:
            numbers = [i for i, column in enumerate(columns) if _all(column, _NUMBER)]
            empty = [i for i, column in enumerate(columns) if column.null_count == len(column)]
            self._places = numbers + empty if _has_decimal_commas(block, numbers) else []
        for place in self._places:
            columns[place] = pc.replace_substring_regex(columns[place], _PARTS, r"\1.\2")
        return pa.RecordBatch.from_arrays(columns, schema=block.schema)


def _has_decimal_commas(block: Any, numbers: list[int]) -> bool:
    with_comma = [p for p in numbers if len(_matching(block.column(p), _WITH_COMMA))]
    if not with_comma:
        return False
    names = [block.schema.names[place] for place in with_comma]
    clear = any(not _all(_matching(block.column(p), _WITH_COMMA), _THOUSANDS) for p in with_comma)
    with_point = [p for p in numbers if len(_matching(block.column(p), _WITH_POINT))]
    if clear and not with_point:
        return True
    if with_point and not clear:
        return False
    example = _matching(block.column(with_comma[0]), _WITH_COMMA)[0].as_py()
    if clear:
        other = block.schema.names[with_point[0]]
        raise DataError(
            f"the column {names[0]!r} has decimal commas ({example}), but {other!r} has decimal "
            "points: write all numbers with a decimal point"
        )
    raise DataError(
        f"the comma in {example}, in the column {names[0]!r}, may separate decimals or thousands: "
        "write the numbers with a decimal point, and without separators of thousands"
    )


def _matching(column: Any, pattern: str) -> Any:
    return pc.drop_null(column.filter(pc.match_substring_regex(column, pattern)))


def _all(column: Any, pattern: str) -> bool:
    found = pc.all(pc.match_substring_regex(column, pattern)).as_py()
    return len(column) > column.null_count and bool(found)
