"""Defines what a check of a recipe reports."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Defines the results of a check. The value is the mark that is printed before the text."""

    FINE = "✓"
    NOTE = "!"
    """The run can start, but the user should read the text."""
    WRONG = "✗"


@dataclass(frozen=True, slots=True)
class Finding:
    """Stores the verdict and the text of one check, which is printed as one line."""

    verdict: Verdict
    text: str
    table: tuple[tuple[str, ...], ...] = ()
    """Rows that are printed below the text, the headings first."""
