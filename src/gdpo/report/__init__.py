"""Writes a self-contained HTML page about rollouts: the influence of each reward."""

from gdpo.report.rollouts_page import write_rollouts_report

__all__ = ["write_rollouts_report"]
