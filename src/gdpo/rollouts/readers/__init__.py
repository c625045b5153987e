"""Readers of the rollouts that any framework leaves behind, as columns of numbers.

The format of each file is recognized by its fields, or said; `docs/reference/rollout_formats.md`
has them all. Nothing is lost silently: every row that was not read is in the report.
"""

from gdpo.rollouts.readers._formats import NAMES as FORMATS
from gdpo.rollouts.readers._reading import RolloutReading, read_rollout_files
from gdpo.rollouts.readers._report import FileReport, Notice, ReadReport
from gdpo.rollouts.readers._rescoring import Rescore, Rescored, Written
from gdpo.rollouts.readers._table import RolloutTable
from gdpo.rollouts.readers._texts import RolloutText, read_texts

__all__ = [
    "FORMATS",
    "FileReport",
    "Notice",
    "ReadReport",
    "Rescore",
    "Rescored",
    "RolloutReading",
    "RolloutTable",
    "RolloutText",
    "Written",
    "read_rollout_files",
    "read_texts",
]
