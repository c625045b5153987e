"""A rollout of several outputs, each of which is a row of the dump: one of them stands for it."""

from collections.abc import Iterator
from typing import Any

from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._rows import Row

OTHER = "another output of a rollout: its last is read, which stands for it in verl's GRPO"
APART = "another output of a rollout that was read before, apart from it"


class OnePerRollout:
    """The last output of each rollout, with its line; the others are lost and told.

    As in verl's GRPO, which compares the last and gives its advantage to all of them. In what verl
    writes they follow each other; where they do not, the first that is met stands for them.
    """

    def __init__(self, file: FileReport, report: ReadReport) -> None:
        self._file, self._report = file, report
        self._held: tuple[int, Row] | None = None
        self._step: Any = None
        self._read: set[str] = set()
        """The rollouts of this step."""

    def of(self, rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        """One row per rollout, in order; a row that is no output is one."""
        for line, row in rows:
            if row.output is None:
                yield from self._settled()
                yield line, row
            elif self._held is not None and _rollout(self._held[1]) == _rollout(row):
                other, self._held = sorted((self._held, (line, row)), key=_number)
                self._report.lose(self._file, other[0], OTHER)
            else:
                yield from self._settled()
                self._held = line, row
        yield from self._settled()

    def _settled(self) -> Iterator[tuple[int, Row]]:
        """The row that was held back until all outputs of its rollout were met."""
        if self._held is None:
            return
        (line, row), self._held = self._held, None
        if row.step != self._step:
            self._step = row.step
            self._read.clear()
        if _rollout(row) in self._read:
            self._report.lose(self._file, line, APART)
        else:
            self._read.add(_rollout(row))
            yield line, row


def _rollout(row: Row) -> str:
    return row.output[0] if row.output is not None else ""


def _number(numbered: tuple[int, Row]) -> int:
    output = numbered[1].output
    return output[1] if output is not None else 0
