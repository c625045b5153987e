"""Checks recipes, trains them with TRL, and resumes interrupted runs."""

from gdpo.training.exploits import find_exploits
from gdpo.training.preflight import check
from gdpo.training.run import train

__all__ = ["check", "find_exploits", "train"]
