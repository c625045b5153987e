"""Training: a recipe becomes a run directory, through checks, TRL's trainer and interruptions."""

from gdpo.training._progress import RunView, show
from gdpo.training._train import RunResult, leave_processes, train
from gdpo.training.preflight import Finding, RowCheck, Verdict, check

__all__ = [
    "Finding",
    "RowCheck",
    "RunResult",
    "RunView",
    "Verdict",
    "check",
    "leave_processes",
    "show",
    "train",
]
