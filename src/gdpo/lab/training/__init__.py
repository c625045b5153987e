"""Checks recipes, trains them with TRL, and resumes interrupted runs."""

from gdpo.lab.training.preflight import check
from gdpo.lab.training.priority_checks import priority_findings
from gdpo.lab.training.run import train

__all__ = ["check", "priority_findings", "train"]
