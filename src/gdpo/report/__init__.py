"""Writes self-contained HTML pages: of runs that gdpo trained, and of rollouts of any framework.

A page of runs shows which estimator is better, by how much, and how certain that is. A page of
rollouts shows what each reward did.
"""

from gdpo.report._summary import summary
from gdpo.report.rollouts_page import write_rollouts_report
from gdpo.report.runs_page import write_report

__all__ = ["summary", "write_report", "write_rollouts_report"]
