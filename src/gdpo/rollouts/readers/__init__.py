"""Reads rollout files from any framework into columns of numbers.

The format of each file is detected from its fields, unless the caller specifies a format.
`docs/reference/rollout_formats.md` lists the formats.
"""

from gdpo._left import absent
from gdpo.rollouts.readers.columns import Rescored, RolloutText
from gdpo.rollouts.readers.formats import NAMES as FORMATS
from gdpo.rollouts.readers.reading import RolloutReading, read_rollout_files, read_texts
from gdpo.rollouts.readers.report import ReadReport
from gdpo.rollouts.table import RewardArrays, RolloutTable, TableTurns

__all__ = [
    "FORMATS",
    "ReadReport",
    "Rescored",
    "RewardArrays",
    "RolloutReading",
    "RolloutTable",
    "RolloutText",
    "TableTurns",
    "read_rollout_files",
    "read_texts",
]


def __getattr__(name: str) -> None:
    raise absent(__name__, name)
