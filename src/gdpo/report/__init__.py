"""One self-contained HTML page from run directories: which estimator, by how much, and how sure.

And one from the rollouts that any framework left behind: what the rewards did.
"""

from gdpo.report._summary import summary
from gdpo.report.rollouts_page import write_rollouts_report
from gdpo.report.runs_page import write_report

__all__ = ["summary", "write_report", "write_rollouts_report"]
