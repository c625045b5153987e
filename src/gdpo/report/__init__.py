"""Writes a self-contained HTML page about rollouts: the influence of each reward."""

from gdpo._left import absent
from gdpo.report.rollouts_page import write_rollouts_report

__all__ = ["write_rollouts_report"]


def __getattr__(name: str) -> None:
    raise absent(__name__, name)
