"""One self-contained HTML page from run directories: which arm, by how much, and how sure."""

from gdpo.report._page import write_report
from gdpo.report._summary import summary

__all__ = ["summary", "write_report"]
