"""Training: a recipe becomes a run directory, through checks, TRL's trainer and interruptions."""

from gdpo.training.preflight import check
from gdpo.training.run import train

__all__ = ["check", "train"]
