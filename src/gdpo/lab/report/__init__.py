"""Writes a self-contained HTML page about gdpo's own runs.

The page shows which estimator is better, by how much, and with what confidence.
"""

from gdpo._left import absent
from gdpo.lab.report._summary import summary
from gdpo.lab.report.runs_page import write_report

__all__ = ["summary", "write_report"]


def __getattr__(name: str) -> None:
    raise absent(__name__, name)
