"""One self-contained HTML page from run directories: which arm, by how much, and how sure.

And one from the rollouts that any framework left behind: what the rewards did.
"""

from gdpo.report._page import write_report
from gdpo.report._rollouts_page import MARK, write_rollouts_report
from gdpo.report._rollouts_summary import LINES, estimators_summary, rollouts_summary
from gdpo.report._summary import summary

__all__ = [
    "LINES",
    "MARK",
    "estimators_summary",
    "rollouts_summary",
    "summary",
    "write_report",
    "write_rollouts_report",
]
