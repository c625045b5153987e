"""One file read, by what it is: its rollouts as tables in the order of the file."""

from collections.abc import Iterator
from pathlib import Path

from gdpo.rollouts.readers._finding import ENDINGS, Found
from gdpo.rollouts.readers._of_columns import read_csv, read_parquet
from gdpo.rollouts.readers._of_records import read_records
from gdpo.rollouts.readers._open import UNREADABLE, Wanted
from gdpo.rollouts.readers._piece import Piece, Reading
from gdpo.rollouts.readers._report import FileReport, ReadReport

_LONGEST = 1000
"""Characters that are told of a file that cannot be read; a library may say more."""
_READERS = {
    "jsonl": read_records,
    "pt": read_records,
    "csv": read_csv,
    "parquet": read_parquet,
}


def read_file(found: Found, wanted: Wanted, report: ReadReport) -> Iterator[Piece]:
    """The rollouts of a file; what cannot be read is told to the report."""
    if found.kind not in _READERS:
        report.left_out[found.path] = f"its name has none of the endings {', '.join(ENDINGS)}"
        return
    reading = Reading(found, wanted, FileReport(found.path, "", ""), report)
    try:
        yield from _READERS[found.kind](reading)
    except UNREADABLE as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _lose_rest(found.path, f"cannot be read: {why}"[:_LONGEST], report)
        if found.path in report.left_out and reading.file.numbers:
            report.unrecognized.append(reading.file)


def _lose_rest(path: Path, why: str, report: ReadReport) -> None:
    """All rows of the file that were not read by then."""
    file = next((f for f in reversed(report.files) if f.path == path), None)
    if file is None:
        report.left_out[path] = why
        return
    file.rows = max(file.rows, file.expected)
    rest = max(file.rows - file.read - file.skipped, 0)
    report.lose(file, file.read + file.skipped, why, rows=rest)
