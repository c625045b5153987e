"""The rollouts of a run, batch after batch, into one file per step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gdpo.rollouts._record import Rollout, rollout_file, write_rollouts


class StepWriter:
    """Writes what a step generates, each time the whole file: a step may have several batches.

    Args:
        folder: Where the files are kept, see `rollout_file`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: Path | None = None
        self._rollouts: list[Rollout] = []
        self._groups = 0

    def write(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write a batch; it joins those before it if they are of the same step.

        Args:
            step: Which file they go into.
            rollouts: Their groups are counted from 0, and renumbered if the file has some already.
        """
        file = rollout_file(self.folder, step)
        if file != self._file:
            self._file, self._rollouts, self._groups = file, [], 0
        first = self._groups
        self._rollouts += [replace(r, group_id=first + r.group_id) for r in rollouts]
        self._groups = 1 + max((r.group_id for r in self._rollouts), default=-1)
        write_rollouts(file, self._rollouts)
