"""Writes self-contained HTML pages about gdpo's own runs or about rollouts of any framework.

A page about runs shows which estimator is better, by how much, and with what confidence. A page
about rollouts shows the influence of each reward.
"""

from gdpo.report._summary import summary
from gdpo.report.rollouts_page import write_rollouts_report
from gdpo.report.runs_page import write_report

__all__ = ["summary", "write_report", "write_rollouts_report"]
