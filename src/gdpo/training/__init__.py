"""Checks a recipe, trains it with TRL into a run directory, and resumes interrupted runs."""

from gdpo.training.preflight import check
from gdpo.training.run import train

__all__ = ["check", "train"]
