"""Checks recipes, trains them with TRL, and resumes interrupted runs."""

from gdpo.lab.training.exploits import find_exploits
from gdpo.lab.training.preflight import check
from gdpo.lab.training.run import train

__all__ = ["check", "find_exploits", "train"]
