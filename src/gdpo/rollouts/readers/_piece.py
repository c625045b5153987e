"""One file while it is read, and what comes of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from gdpo.rollouts.readers._finding import Found
from gdpo.rollouts.readers._inference import Kind, is_like_rollouts, layout
from gdpo.rollouts.readers._open import Wanted
from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._rows import LARGEST
from gdpo.rollouts.readers._table import RolloutTable

MOST_OFFERED = 64
"""Numbers of a file that are kept to be named."""
WEIGHTS_DIFFER = "other weights than a rollout before it in the step, whose weights count for all"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rollouts of a file, of one step; none, if it is no step."""

    table: RolloutTable
    grouped_by: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One file, what was asked of it, and what is told of it."""

    found: Found
    wanted: Wanted
    file: FileReport
    report: ReadReport

    def note(self, line: int | None, what: str, *, count: int = 1) -> None:
        """Something is odd, and no row is lost by it."""
        self.report.note(self.file.path, line, what, count=count)

    def tell_rewards(self, names: tuple[str, ...], told: str) -> None:
        """The rewards of some of its rollouts, and how they were told."""
        self.file.rewards = tuple(dict.fromkeys((*self.file.rewards, *names)))
        self.file.rewards_told_by = told

    def offer(self, numbers: Iterable[str], fields: Mapping[str, Kind]) -> None:
        """Keep which numbers the file has, should no reward be found among them."""
        self.report.fields |= dict.fromkeys(islice(fields, MOST_OFFERED - len(self.report.fields)))
        if is_like_rollouts(fields):
            self.file.numbers = tuple(islice(numbers, MOST_OFFERED))
            self.file.step = layout(None, fields).step

    def tell_empty(self) -> None:
        """No row of it can be read: perhaps there is none."""
        if self.file.skipped:
            self.file.format = "unknown"
            self.report.files.append(self.file)
        else:
            self.report.left_out[self.file.path] = "it is empty"

    def usable_weights(self, weights: tuple[float, ...], line: int) -> tuple[float, ...] | None:
        """The weights that a file has; None: one is none that can be used, which is told."""
        if all(abs(weight) <= LARGEST for weight in weights):
            return weights
        self.note(line, "its weights are not all numbers that can be used: 1 is, for each reward")
        return None

    def piece(self, table: RolloutTable, grouped_by: str, lines: list[int] | None) -> Piece:
        """The rollouts whose step is known; the others are lost. All get their number.

        Args:
            table: Rollouts that follow those of the piece before.
            grouped_by: By what they are put into groups.
            lines: Where each stands in the file; None: its number says it.
        """
        self.file.numbered += len(table)
        wrong = np.flatnonzero(table.steps < 0)
        if len(wrong):
            line = lines[wrong[0]] if lines is not None else int(table.row[wrong[0]])
            what = "its step is no whole number from 0"
            self.report.lose(self.file, line, what, rows=len(wrong))
            table = table.take(np.flatnonzero(table.steps >= 0))
        self.file.read += len(table)
        return Piece(table, grouped_by)
